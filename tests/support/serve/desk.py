"""A worker of `serve` at a desk of its own: an API on loopback, and pushes that only give exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.surroundings import Patience, Surroundings
from dbt_reverse_etl.serve.worker import Worker
from tests.support.servers.cloud_api import ACCOUNT, JOB, SECRET, TOKEN, CloudApi, results
from tests.support.servers.http import Reply

AT_ONCE = Patience(first=0, most=0, fetch=(3, 0), push=(3, 0), busy=(3, 0))


@dataclass
class Desk:
    """One folder of `serve`, and workers that begin in it one after the other.

    Attributes:
        codes: with what the next pushes exit; 0 after them.
        pushed: the arguments of each push.
    """

    folder: Path
    api: CloudApi = field(default_factory=CloudApi)
    patience: Patience = AT_ONCE
    codes: list[int] = field(default_factory=list)
    pushed: list[Sequence[str]] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    now: float = 0.0

    def settings(self, *jobs: int) -> ServeSettings:
        listed = [{"job_id": job, "target": "prod"} for job in jobs]
        told = {"account_id": ACCOUNT, "url": self.api.server.url, "token": TOKEN, "webhook_secret": SECRET}
        return ServeSettings.model_validate({**told, "timeout": 5, "jobs": listed})

    def around(self) -> Surroundings:
        def tell(line: str, level: str) -> None:
            self.log.append((line, level))

        return Surroundings(self.folder, None, {}, tell, patience=self.patience, clock=lambda: self.now)

    def worker(self, *jobs: int) -> Worker:
        for name in ("runs", "reports"):
            (self.folder / name).mkdir(exist_ok=True)
        made = Worker(self.settings(*jobs or (JOB,)), self.around(), self.folder, 0o022)
        made.process.run = self._push  # type: ignore[method-assign]
        return made

    def later(self, worker: Worker) -> None:
        """Its next turn, when every wait is over."""
        self.now += 4000
        worker.turn()

    @contextmanager
    def answering(self, reply: Reply, text: str) -> Iterator[None]:
        """The API gives this reply for paths with this text."""
        answer = self.api.server.default
        assert callable(answer)
        self.api.server.default = lambda request: reply if text in request.path else answer(request)
        yield
        self.api.server.default = answer

    def _push(self, arguments: Sequence[str], seconds: float = 0) -> int:
        self.pushed.append(arguments)
        return self.codes.pop(0) if self.codes else 0

    def kept(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "runs").iterdir())

    def said(self, text: str) -> list[str]:
        """The levels of the lines with a text."""
        return [level for line, level in self.log if text in line]


def state(worker: Worker, run_id: int) -> str:
    return worker.position.value.runs[run_id].state.value


def sample(worker: Worker, name: str) -> str:
    """The value of the one sample with this name."""
    (found,) = [
        line for line in worker.metrics.page().decode().splitlines() if line.startswith(f"dbt_reverse_etl_{name} ")
    ]
    return found.rpartition(" ")[2]


def ran(number: int) -> dict[str, dict[str, Any]]:
    """Steps that no other run has, so that none is superseded."""
    return {f"dbt run --select {number}": results(f"inv-{number}")}
