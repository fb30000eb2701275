"""The report page of each target: made between two pushes once somebody asked for it, at most once a minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from dbt_reverse_etl.base.durable import put
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.serve.artifacts import MANIFEST
from dbt_reverse_etl.serve.pace import Pace
from dbt_reverse_etl.serve.pushing import PushProcess
from dbt_reverse_etl.serve.surroundings import Surroundings

AT_MOST_EVERY = 60.0  # seconds from one beginning to the next
_AT_MOST = 600.0  # seconds for one report: pushes wait for it


@dataclass
class Reports:
    """Pages and what they are made from, in a folder for each target; asked by the server, made by the worker.

    Attributes:
        wake: called when a page is to be made.
        pace: rests by target.
    """

    folder: Path
    process: PushProcess
    around: Surroundings
    wake: Callable[[], object]
    pace: Pace = field(default_factory=Pace)
    _asked: set[str] = field(default_factory=set)
    _failed: dict[str, int] = field(default_factory=dict)

    def keep(self, artifacts: Path, target: str) -> None:
        """The manifest of the newest run is what a report is made from. An older run may be pushed later, after its failures."""
        folder = self.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        if _made_at(artifacts / MANIFEST) >= _made_at(folder / MANIFEST):
            put(folder / MANIFEST, (artifacts / MANIFEST).read_bytes())

    def known(self, target: str) -> bool:
        """Whether there was a run from which a page can be made."""
        return (self.folder / target / MANIFEST).is_file()

    def ask(self, target: str) -> tuple[bytes | None, int | None]:
        """The newest page, if there is one, and the exit code if the last try failed. A page older than a minute is replaced for the
        next who asks.
        """
        if self.pace.is_due(target):
            self._asked.add(target)
            self.wake()
        file = self.folder / target / "report.html"
        return file.read_bytes() if file.is_file() else None, self._failed.get(target)

    def make_those_asked_for(self) -> None:
        """In the caller's thread."""
        while self._asked:
            target = self._asked.pop()
            if self.pace.is_due(target):
                self.pace.rest(target, AT_MOST_EVERY)
                self._make(target)

    def _make(self, target: str) -> None:
        folder = self.folder / target
        made = folder / "report.new"
        made.touch()  # with our rights: the process has those of a push
        arguments = self.around.arguments("report", folder, target, "--out", str(made.resolve()))
        code = self.process.run(arguments, _AT_MOST)
        if code == ExitCode.OK:
            made.replace(folder / "report.html")
            self._failed.pop(target, None)
        else:
            self._failed[target] = code
            self.around.say(f"the report of {target} was not made: exit code {code}", "error")


def _made_at(manifest: Path) -> str:
    """By dbt's clock, as ISO 8601 in UTC; empty if that is not known."""
    if not manifest.is_file():
        return ""
    try:
        metadata = orjson.loads(manifest.read_bytes())["metadata"]
    except (orjson.JSONDecodeError, KeyError, TypeError):  # a file that was cut must not keep a newer one out
        return ""
    return str((metadata or {}).get("generated_at") or "")
