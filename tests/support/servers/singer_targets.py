"""Published Singer targets, each in a virtual environment of its own below `.tools/singer`, installed once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

CACHE = ROOT / ".tools" / "singer"
_OLD = [  # what targets of the first days need, in versions for Python 3.10 to 3.13
    "singer-python==6.8.0",
    "jsonschema==2.6.0",
    "simplejson==3.20.2",
    "python-dateutil==2.9.0.post0",
    "six==1.17.0",
    "pytz==2025.2",
    "backoff==2.2.1",
    "ciso8601==2.3.3",
]


@dataclass(frozen=True)
class Target:
    """A program and how it is installed.

    Attributes:
        command: its name.
        packages: for pip.
        startup: a line that its Python runs at the start: what Python removed since the target was published.
    """

    command: str
    packages: tuple[str, ...]
    startup: str = ""


JSONL = Target("target-jsonl", ("--no-deps", "target-jsonl==0.1.4", "adjust-precision-for-schema==0.3.3", *_OLD))
SQLITE = Target(
    "target-sqlite",
    ("--no-deps", "target-sqlite==0.2.0", "SQLAlchemy==1.4.54", "inflection==0.5.1", *_OLD),
    "import collections.abc; collections.MutableMapping = collections.abc.MutableMapping",
)
POSTGRES = Target("target-postgres", ("meltanolabs-target-postgres==0.8.1",))


def installed(target: Target) -> str:
    """The path of the program; the first call installs it, and other processes wait for that."""
    digest = hashlib.sha256(repr((target, sys.version_info[:2])).encode()).hexdigest()[:12]
    home = CACHE / f"{target.command}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "installed").exists():
            shutil.rmtree(home, ignore_errors=True)
            _install(target, home)
            (home / "installed").touch()
    return str(home / "bin" / target.command)


def _install(target: Target, home: Path) -> None:
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    without_compiler = {**os.environ, "DISABLE_SQLALCHEMY_CEXT": "1"}  # there is no wheel of 1.4 for Python 3.13
    subprocess.run([*pip, *target.packages], check=True, env=without_compiler)
    if target.startup:
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        folder = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        (Path(folder) / "startup.pth").write_text(target.startup + "\n")
