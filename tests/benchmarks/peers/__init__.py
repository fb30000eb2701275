"""Other tools, each in a virtual environment of its own, driven in a process of its own by what it documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOME = HERE.parents[2] / ".bench"


@dataclass(frozen=True)
class Peer:
    """One tool.

    Attributes:
        requirements: what pip installs; the first names the tool and its version.
        script: beside this file; reads its work as JSON from stdin, and prints `{"seconds": ...}` as its last line.
    """

    requirements: tuple[str, ...]
    script: str

    @property
    def name(self) -> str:
        return self.requirements[0].replace("[postgres]", "").replace("[lz4]", "").replace("==", " ")

    @cached_property
    def absent(self) -> str:
        """Why it cannot run here; empty: it is installed."""
        if self._stamp.exists() and self._stamp.read_text() == " ".join(self.requirements):
            return ""
        print(f"Installing {self.name} in {self._folder} ...", file=sys.stderr, flush=True)
        pip = [str(self._python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *self.requirements]
        for command in ([sys.executable, "-m", "venv", "--clear", str(self._folder)], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        self._stamp.write_text(" ".join(self.requirements))
        return ""

    def seconds(self, **work: Any) -> float:
        """What the script measured of this work."""
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [str(self._python), str(HERE / self.script)],
                input=json.dumps({"home": home, **work}),
                capture_output=True,
                text=True,
                check=False,
                cwd=home,
                env={**_silent(os.environ), "HOME": home},
            )
        assert done.returncode == 0, f"{self.name}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
        return float(json.loads(done.stdout.splitlines()[-1])["seconds"])

    @property
    def _folder(self) -> Path:
        return HOME / Path(self.script).stem

    @property
    def _python(self) -> Path:
        return self._folder / "bin/python"

    @property
    def _stamp(self) -> Path:
        return self._folder / ".installed"


def _silent(environment: Mapping[str, str]) -> dict[str, str]:
    """Nobody's telemetry, and no module of ours."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**kept, "DO_NOT_TRACK": "1", "RUNTIME__DLTHUB_TELEMETRY": "false"}


def is_there(peer: Peer) -> bool:
    """False, with a line that says so, where it cannot be installed."""
    if peer.absent:
        print(f"{peer.name} is absent, its figures are left out: {peer.absent}", flush=True)
    return not peer.absent


DRT = Peer(("drt-core[postgres]==1.2.1",), "run_drt.py")
DLT = Peer(("dlt[postgres]==1.31.0", "pyarrow>=15", "adbc-driver-postgresql"), "run_dlt.py")
AIOKAFKA = Peer(("aiokafka[lz4]==0.14.0",), "run_aiokafka.py")
