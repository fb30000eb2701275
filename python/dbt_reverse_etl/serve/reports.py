"""The report page of each target: made between two pushes once somebody asked for it, at most once a minute."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.serve.pushing import PushProcess, Stopped

AT_MOST_EVERY = 60.0  # seconds from one beginning to the next
_AT_MOST = 600.0  # seconds for one report: pushes wait for it


@dataclass
class Reports:
    """Pages and what they are made from, on the disk; asked by the server, made by the worker.

    Attributes:
        folder: holds a folder for each target.
        arguments: from the folder of the manifest, the target and the file to write, to what `dbt-reverse-etl` is told.
        wake: called when a page is to be made.
    """

    folder: Path
    process: PushProcess
    arguments: Callable[[Path, str, Path], Sequence[str]]
    say: Callable[[str, str], None]
    wake: Callable[[], object]
    clock: Callable[[], float] = time.monotonic
    _asked: set[str] = field(default_factory=set)
    _begun: dict[str, float] = field(default_factory=dict)
    _failed: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, artifacts: Path, target: str) -> None:
        """The manifest of the newest run is what a report is made from."""
        folder = self.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifacts / "manifest.json", folder / "manifest.new")
        (folder / "manifest.new").replace(folder / "manifest.json")

    def known(self, target: str) -> bool:
        """Whether there was a run from which a page can be made."""
        return (self.folder / target / "manifest.json").is_file()

    def ask(self, target: str) -> tuple[bytes | None, int | None]:
        """The newest page, if there is one, and the exit code if the last try failed. A page that is not of this minute is made anew,
        for those who ask later.
        """
        with self._lock:
            due = self.clock() - self._begun.get(target, float("-inf")) >= AT_MOST_EVERY
            if due:
                self._asked.add(target)
        if due:
            self.wake()
        file = self.folder / target / "report.html"
        return file.read_bytes() if file.is_file() else None, self._failed.get(target)

    def make_those_asked_for(self) -> None:
        """In the caller's thread."""
        while self._asked:
            with self._lock:
                target = self._asked.pop()
                self._begun[target] = self.clock()
            self._make(target)

    def _make(self, target: str) -> None:
        folder = self.folder / target
        made = folder / "report.new"
        try:
            code = self.process.run(self.arguments(folder, target, made), _AT_MOST)
        except Stopped:
            return
        except OSError:
            code = ExitCode.FAILED
        if code == ExitCode.OK and made.is_file():
            made.replace(folder / "report.html")
            self._failed.pop(target, None)
        else:
            self._failed[target] = code or ExitCode.FAILED
            self.say(f"the report of {target} was not made: exit code {code}", "error")
