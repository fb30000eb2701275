"""Debian's packages, unpacked once below the home directory, without root."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path.home() / ".cache" / "dbt-reverse-etl-tests"


def unpacked(name: str, download: Callable[[Path], None], hint: str) -> Path:
    """The folder of a program; `download` puts its packages below a folder that it is given."""
    root = CACHE / f"{name}-{platform.machine()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            try:
                download(Path(place))
                for package in Path(place).rglob("*.deb"):
                    subprocess.run(["dpkg", "-x", package, Path(place) / "root"], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise RuntimeError(f"There is no {name}, and its packages cannot be fetched: {hint}") from error
            (Path(place) / "root").rename(root)
    return root
