"""The worker over an API on loopback, with a push that only gives exit codes: what becomes of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.serve.metrics import counts
from dbt_reverse_etl.serve.position import PositionFile, Run, State
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.surroundings import Patience, Surroundings
from dbt_reverse_etl.serve.worker import Worker
from tests.support.servers.cloud_api import ACCOUNT, JOB, SECRET, TOKEN, CloudApi, results

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

    def worker(self, *jobs: int) -> Worker:
        listed = [{"job_id": job, "target": "prod"} for job in jobs or (JOB,)]
        told = {"account_id": ACCOUNT, "url": self.api.server.url, "token": TOKEN, "webhook_secret": SECRET}
        settings = ServeSettings.model_validate({**told, "timeout": 5, "jobs": listed})
        for name in ("runs", "reports"):
            (self.folder / name).mkdir(exist_ok=True)
        around = Surroundings(self.folder, None, {}, lambda *line: self.log.append(line), patience=self.patience)
        made = Worker(settings, around, self.folder, 0o022)
        made.process.run = self._push  # type: ignore[method-assign]
        return made

    def _push(self, arguments: Sequence[str], seconds: float = 0) -> int:
        self.pushed.append(arguments)
        return self.codes.pop(0) if self.codes else 0

    def kept(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "runs").iterdir())

    def said(self, text: str) -> list[str]:
        """The levels of the lines with a text."""
        return [level for line, level in self.log if text in line]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.api.server.close()


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


class TestARunThatALaterOneHasOvertaken:
    @pytest.mark.guarantee("dbt Cloud")
    def test_is_no_success_is_not_tried_again_and_shows_until_a_later_run_of_the_job_is_pushed(
        self, desk: Desk
    ) -> None:
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id)
            desk.codes = [6]
            worker.turn()
            assert state(worker, run_id) == "overtaken"
        assert worker.worst == 6
        assert worker.position.value.done_at == {}
        assert counts(worker.position.value, [JOB]) == {"waiting": 0, "failed": 0, "overtaken": 2}
        assert float(sample(worker, "oldest_open_run_seconds")) > 0
        assert desk.said("run 2: overtaken, a later run had captured more") == ["warn"]
        again = desk.worker()
        again.turn()
        assert len(desk.pushed) == 2, "another try would start Spark for nothing"
        assert desk.kept() == [], "nobody can push these results any more"
        desk.api.add_run(3)
        again.turn()
        assert counts(again.position.value, [JOB]) == {"waiting": 0, "failed": 0, "overtaken": 0}
        assert again.position.value.done_at.keys() == {JOB}
        assert float(sample(again, "oldest_open_run_seconds")) == 0

    def test_is_a_failure_if_another_step_of_it_failed(self, desk: Desk) -> None:
        both = {"dbt run -s a": results("ran"), "dbt build -s b": results("built", "build", {"model.b": "success"})}
        desk.api.add_run(1, both)
        desk.codes = [6, 2]
        worker = desk.worker()
        worker.turn()
        assert worker.position.value.runs[1].reason == "exit code 2, the configuration is wrong"


class TestARunThatFailed:
    @pytest.mark.guarantee("dbt Cloud")
    def test_stays_one_with_its_artifacts_while_later_runs_bring_nothing_that_is_pushed(self, desk: Desk) -> None:
        desk.codes, worker = [2], desk.worker()
        steps: Sequence[dict[str, Any] | None] = (
            None,
            {"dbt test": results("t", "test")},
            {"dbt run": results("o", target="dev")},
        )
        for run_id, each in enumerate(steps, 1):
            desk.api.add_run(run_id, each)
            worker.turn()
        assert [state(worker, run_id) for run_id in (1, 2, 3)] == ["failed", "done", "failed"]
        assert worker.position.value.done_at == {}
        assert desk.kept() == ["1"], "a person may push it with an override"
        desk.api.add_run(4, ran(4))
        desk.codes = [2]
        worker.turn()
        assert desk.kept() == ["4"], "those of the newest are enough"
        desk.api.add_run(5)
        worker.turn()
        assert counts(worker.position.value, [JOB])["failed"] == 0
        assert desk.kept() == []


class TestHowLongARunIsTried:
    @pytest.mark.guarantee("dbt Cloud")
    def test_tries_of_another_trouble_do_not_count(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, busy=(9, 0))
        desk.api.add_run(1)
        worker, desk.codes = desk.worker(), [4, 4, 4, 1]
        for _ in range(4):
            worker.turn()
        assert state(worker, 1) == "waiting"
        worker.turn()
        assert state(worker, 1) == "done"

    @pytest.mark.guarantee("dbt Cloud")
    def test_the_time_counts_from_the_first_of_the_failures_that_are_alike(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.patience = replace(AT_ONCE, busy=(2, 7200))
        desk.api.add_run(1)
        now = [1e9]
        monkeypatch.setattr("time.time", lambda: now[0])
        worker, desk.codes = desk.worker(), [1, 4, 4, 4, 4]
        worker.turn()
        for hours, left in ((9, "waiting"), (10, "waiting"), (10.9, "waiting"), (11.1, "failed")):
            now[0] = 1e9 + hours * 3600
            worker.turn()
            assert state(worker, 1) == left

    def test_tries_of_the_artifacts_do_not_count_for_the_push(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, fetch=(9, 0))
        desk.api.add_run(1)
        manifest = desk.api.files.pop((1, 2, "manifest.json"))
        worker = desk.worker()
        for _ in range(5):
            worker.turn()
        desk.api.files[1, 2, "manifest.json"] = manifest
        desk.codes = [1, 1]
        for _ in range(3):
            worker.turn()
        assert state(worker, 1) == "done"

    def test_a_position_of_an_earlier_version_is_read_and_its_runs_go_on(self, desk: Desk) -> None:
        (desk.folder / "position.json").write_text(
            '{"since": {"345": 1.5}, "done_at": {"345": 4.0}, "runs": {"3": {"run_id": 3, "job_id": 345, '
            '"finished_at": 2.5, "found_at": 9.0, "state": "waiting", "tries": 2, "reason": "exit code 4"}}}'
        )
        assert PositionFile(desk.folder / "position.json").value.runs[3] == Run(
            3, JOB, 2.5, 9.0, State.WAITING, 2, "exit code 4"
        )
        desk.api.add_run(3)
        worker = desk.worker()
        worker.turn()
        assert state(worker, 3) == "done"
