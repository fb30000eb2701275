"""A project whose runs are in a dbt Cloud of our own, `serve` as a real process, and a push that only notes what it got."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import yaml

from dbt_reverse_etl.serve.position import PositionFile, Run
from tests.support import ROOT
from tests.support.processes import PROCESSES
from tests.support.serve.process import main
from tests.support.servers.cloud_api import ACCOUNT, JOB, SECRET, TOKEN, CloudApi

# Stands for `dbt-reverse-etl push --if-due`: what it pushed before it does not push again; and for `dbt-reverse-etl report`.
PUSH = """
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
told = sys.argv[1:]
folder = pathlib.Path(told[told.index("--target-path") + 1])
if told[0] == "report":
    assert (folder / "manifest.json").exists()
    with (here / "reports.log").open("a") as file:
        file.write("begun\\n")
    while (here / "hold-report").exists():
        time.sleep(0.02)
    number = len((here / "reports.log").read_text().split())
    pathlib.Path(told[told.index("--out") + 1]).write_text(f"<p>page {number} of {told[told.index('--target') + 1]}")
    sys.exit(int((here / "codes-report").read_text()) if (here / "codes-report").exists() else 0)
assert told[0] == "push" and "--if-due" in told
ran = json.loads((folder / "run_results.json").read_text())
manifest = json.loads((folder / "manifest.json").read_text())
invocation = ran["metadata"]["invocation_id"]
assert manifest["metadata"]["invocation_id"] == invocation
log = here / "pushed.log"
def note(word):
    with log.open("a") as file:
        file.write(f"{word} {invocation} {told[told.index('--target') + 1]} {','.join(r['unique_id'] for r in ran['results'])}\\n")
if log.exists() and f"pushed {invocation} " in log.read_text():
    note("again")
    sys.exit(0)
note("begun")
while (here / f"hold-{invocation}").exists():
    time.sleep(0.02)
codes = here / f"codes-{invocation}"
listed = codes.read_text().split() if codes.exists() else ["0"]
codes.write_text(" ".join(listed[1:] or ["0"]))
code = int(listed[0])
if code < 0:
    os.kill(os.getpid(), -code)
if code == 0:
    note("pushed")
sys.exit(code)
"""


def wait_for(done: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Look until it is so."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.02)


@dataclass
class Served:
    """A running process, and where it listens."""

    process: ForkServerProcess
    log: Path

    @property
    def url(self) -> str:
        found: list[str] = []

        def listens() -> bool:
            assert self.process.is_alive(), self.log.read_text()
            found[:] = re.findall(r"listening on (http://\S+)/webhook", self.log.read_text())
            return bool(found)

        wait_for(listens, "it never listened")
        return found[-1]

    def wait(self, seconds: float = 20) -> int:
        """Exit code; below zero: the signal that killed it."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"it did not end: {self.log.read_text()}"
        return self.process.exitcode

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        if self.process.is_alive():
            os.kill(self.process.pid or 0, number)
        return self.wait(seconds)


@dataclass
class World:
    """One dbt project with a folder of `serve`, and the processes that work in it."""

    folder: Path
    api: CloudApi = field(default_factory=CloudApi)
    outputs: str = "{prod: plan, dev: plan}"
    started: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "push.py").write_text(textwrap.dedent(PUSH))
        self.settings = {
            "account_id": ACCOUNT,
            "url": self.api.server.url,
            "token": "{{ env_var('CLOUD_TOKEN') }}",
            "webhook_secret": "{{ env_var('HOOK_SECRET') }}",
            "jobs": [{"job_id": JOB, "target": "prod"}],
            "listen": "127.0.0.1:0",
            "timeout": 5,
            "poll_interval": 3600,
            "push_command": [sys.executable, str(self.folder / "push.py")],
            **self.settings,
        }
        self.configure()

    def configure(self, **settings: object) -> None:
        self.settings |= settings
        block = {"serve": self.settings, "outputs": yaml.safe_load(self.outputs)}
        (self.folder / "profiles.yml").write_text(yaml.safe_dump({"dbt_reverse_etl": block}))

    def start(self, *words: str, kill_at: str = "", end_at: str = "") -> Served:
        """`serve`, or the command that the words say; killed, or told to end, at a step."""
        self.started += 1
        log = self.folder / f"log-{self.started}.txt"
        log.touch()
        at = f"{kill_at}:{signal.SIGKILL:d}" if kill_at else f"{end_at}:{signal.SIGTERM:d}" if end_at else ""
        env = {"CLOUD_TOKEN": TOKEN, "HOOK_SECRET": SECRET, "SIGNAL_AT": at, **self.env}
        env["PYTHONPATH"] = f"{ROOT / 'python'}{os.pathsep}{ROOT}"
        told = [*(words or ("serve",)), "--project-dir", str(self.folder)]
        process = PROCESSES.Process(target=main, args=(told, env, log))
        process.start()
        return Served(process, log)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its URL, once it has asked the API for the first time: runs that are added now come by webhook alone."""
        before = len(self.api.asked("order_by"))
        served = self.start()
        try:
            url = served.url
            wait_for(lambda: len(self.api.asked("order_by")) > before, "it never asked")
            wait_for((self.kept / "position.json").exists, "it never noted the answer")
            yield url
        finally:
            served.stop()

    def hold(self, run_id: int) -> Path:
        """A push of the run waits until this file is gone."""
        file = self.folder / f"hold-inv-{run_id}"
        file.touch()
        return file

    def codes(self, run_id: int, codes: str) -> None:
        """With what pushes of the run exit, one after the other, and 0 then; negative: a signal."""
        (self.folder / f"codes-inv-{run_id}").write_text(codes)

    def pushed(self, run_id: int) -> list[str]:
        """What the pushes of a run noted: `begun`, then `pushed`, or `again` where they had pushed it before."""
        return [line.split()[0] for line in self.notes() if line.split()[1] == f"inv-{run_id}"]

    def notes(self) -> list[str]:
        """Each with word, invocation, target and the nodes with a result."""
        log = self.folder / "pushed.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def kept(self) -> Path:
        """Its folder."""
        return self.folder / ".reverse-etl-serve"

    def runs(self) -> dict[int, Run]:
        """As its position says."""
        return dict(PositionFile(self.kept / "position.json").value.runs)

    def state(self, run_id: int) -> str:
        run = self.runs().get(run_id)
        return run.state.value if run else "unknown"

    def wait(self, run_id: int, state: str = "done") -> Run:
        wait_for(lambda: self.state(run_id) == state, f"run {run_id} never became {state}: {self.logs()}")
        return self.runs()[run_id]

    def wait_for_push(self, run_id: int) -> None:
        """Until a push of it has begun."""
        wait_for(lambda: self.pushed(run_id), f"run {run_id} was never pushed: {self.logs()}")

    def logs(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("log-*.txt")))

    def close(self) -> None:
        self.api.server.close()
