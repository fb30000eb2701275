"""A run that failed, one that a later one has overtaken, and whose ledger it was: what later runs make of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dbt_reverse_etl.serve.metrics import counts
from dbt_reverse_etl.serve.position import LONGEST, State, Trouble
from dbt_reverse_etl.serve.worker import Worker
from tests.support.config.manifest import manifest
from tests.support.serve.desk import AT_ONCE, Desk, ran, sample, state
from tests.support.servers.cloud_api import JOB, results
from tests.support.servers.http import Reply


def add_run_of_models(desk: Desk, run_id: int, *models: str, which: str = "run", job: int = JOB, **about: Any) -> None:
    """A run of these models, in a project with the syncs a and b. `wrong`: settings of a; the rest are arguments of dbt."""
    wrong, rows = about.pop("wrong", {}), {f"model.shop.{name}": "success" for name in models}
    desk.api.add_run(run_id, {f"dbt {which} {run_id}": results(f"inv-{run_id}", which, rows, **about)}, job=job)
    project = manifest({name: {"destination": "crm", "object": name} for name in "ab"})
    project["exposures"]["a"]["config"]["meta"]["reverse_etl"] |= wrong
    project["metadata"] |= {"invocation_id": f"inv-{run_id}", "project_name": "shop"}
    desk.api.files[run_id, 2, "manifest.json"] = json.dumps(project).encode()


class TestARunThatALaterOneHasOvertaken:
    @pytest.mark.guarantee("dbt Cloud")
    def test_is_no_success_is_not_tried_again_and_shows_until_a_later_run_of_the_job_is_pushed(
        self, desk: Desk
    ) -> None:
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id)
            desk.codes = [6]
            desk.later(worker)
            assert state(worker, run_id) == "overtaken"
        assert worker.worst == 6
        assert worker.position.value.done_at == {}
        assert counts(worker.position.value, [JOB]) == {"waiting": 0, "untimed": 0, "failed": 0, "overtaken": 2}
        assert float(sample(worker, "oldest_open_run_seconds")) > 0
        assert desk.said("run 2: overtaken, a later run had captured more") == ["warn"]
        again = desk.worker()
        desk.later(again)
        assert len(desk.pushed) == 2, "another try would start Spark for nothing"
        assert desk.kept() == [], "nobody can push these results any more"
        desk.api.add_run(3)
        desk.later(again)
        assert counts(again.position.value, [JOB]) == {"waiting": 0, "untimed": 0, "failed": 0, "overtaken": 0}
        assert again.position.value.done_at.keys() == {JOB}
        assert float(sample(again, "oldest_open_run_seconds")) == 0

    def test_is_a_failure_if_another_step_of_it_failed(self, desk: Desk) -> None:
        both = {"dbt run -s a": results("ran"), "dbt build -s b": results("built", "build", {"model.b": "success"})}
        desk.api.add_run(1, both)
        desk.patience, desk.codes = replace(AT_ONCE, push=(1, 0)), [6, 2]
        worker = desk.worker()
        desk.later(worker)
        assert worker.position.value.runs[1].reason == "not tried again: exit code 2, the configuration is wrong"


@pytest.mark.guarantee("dbt Cloud")
def test_an_error_that_is_over_does_not_show_while_a_push_runs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def push(*_: object) -> int:
        shown.append(worker.broken)
        return 0

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    worker = desk.worker()
    worker.process.run = push  # type: ignore[assignment]
    desk.api.add_run(1)
    with monkeypatch.context() as patched:
        patched.setattr(worker.position, "put", full)
        desk.later(worker)
    assert worker.broken == "OSError"
    desk.later(worker)
    assert (shown, worker.broken) == ([""], "")
    assert state(worker, 1) == "done"


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(("codes", "worst"), [([6, 0], 0), ([6, 6], 6), ([0, 6], 6)])
def test_poll_ends_with_the_code_of_an_overtaken_run_unless_a_later_one_was_pushed(
    codes: list[int], worst: int, desk: Desk
) -> None:
    worker = desk.worker()
    desk.api.add_run(1)
    desk.later(worker)
    for number in (2, 3):
        desk.api.add_run(number, steps=ran(number))
    desk.codes = codes
    desk.later(worker)
    assert worker.worst == worst


class TestARunThatFailed:
    @pytest.mark.guarantee("dbt Cloud")
    def test_stays_one_with_its_artifacts_while_later_runs_bring_nothing_that_is_pushed(self, desk: Desk) -> None:
        desk.codes, desk.patience = [2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()
        steps: Sequence[dict[str, Any] | None] = (
            None,
            {"dbt test": results("t", "test")},
            {"dbt run": results("o", target="dev")},
        )
        for run_id, each in enumerate(steps, 1):
            desk.api.add_run(run_id, each)
            desk.later(worker)
        assert [state(worker, run_id) for run_id in (1, 2, 3)] == ["failed", "done", "failed"]
        assert worker.position.value.done_at == {}
        assert desk.kept() == ["1"], "a person may push it with an override"
        desk.api.add_run(4, ran(4))
        desk.codes = [2]
        desk.later(worker)
        assert desk.kept() == ["4"], "those of the newest are enough"
        desk.api.add_run(5)
        desk.later(worker)
        assert counts(worker.position.value, [JOB])["failed"] == 0
        assert desk.kept() == []

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(("code", "ending"), [(2, "failed"), (6, "overtaken")])
    def test_stays_one_while_later_runs_push_other_syncs_only(self, desk: Desk, code: int, ending: str) -> None:
        desk.patience = replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()

        def run(run_id: int, *models: str, **args: object) -> dict[str, int]:
            add_run_of_models(desk, run_id, *models, which="build", **args)
            desk.later(worker)
            return counts(worker.position.value, [JOB])

        desk.codes = [code]
        assert run(1, "a", "b")[ending] == 1
        assert run(2, "a")[ending] == 1
        assert desk.kept() == (["1"] if ending == "failed" else [])
        assert run(3, "b", exclude=["exposure:b"])[ending] == 1, "its model alone is not enough"
        worker = desk.worker()
        assert run(4, "b")[ending] == 0
        assert desk.kept() == []

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(("target", "left"), [("prod", 0), ("prod2", 1)])
    def test_is_none_any_more_once_another_job_of_its_target_has_pushed_its_syncs(
        self, desk: Desk, target: str, left: int
    ) -> None:
        desk.codes, desk.patience = [2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker(JOB, JOB + 1)
        worker.targets[JOB + 1] = target
        for run_id, job in ((1, JOB), (2, JOB + 1)):
            add_run_of_models(desk, run_id, "a", job=job, target=worker.targets[job])
            desk.later(worker)
        assert counts(worker.position.value, [JOB, JOB + 1])["failed"] == left

    @pytest.mark.guarantee("dbt Cloud")
    def test_stays_one_after_a_wrong_setting_of_a_sync_until_each_sync_is_pushed(self, desk: Desk) -> None:
        desk.codes, desk.patience = [2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()
        assert self._pushed(desk, worker, 1, "a", "b", mode="mirorr") == 1
        assert [self._pushed(desk, worker, run_id, *names) for run_id, *names in ((2, "b"), (3, "a"))] == [1, 0]

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("is_killed", [False, True])
    def test_stays_one_until_each_sync_of_its_project_is_pushed_if_its_artifacts_never_came(
        self, desk: Desk, is_killed: bool
    ) -> None:
        desk.patience = replace(AT_ONCE, fetch=(1, 0))
        worker = desk.worker()
        desk.api.add_run(1)
        with desk.answering(Reply(503), "/artifacts/"):
            desk.later(worker)
        if is_killed:  # each time before it noted with which trouble
            run = replace(worker.position.value.runs[1], state=State.WAITING, reason="", trouble=Trouble.NONE)
            worker.position.put(worker.position.value.updated(run))
            desk.later(worker)
        assert state(worker, 1) == "failed"
        assert [self._pushed(desk, worker, run_id, *names) for run_id, *names in ((2, "a"), (3, "b"))] == [1, 0]

    def test_waits_for_no_sync_that_no_command_pushes(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, fetch=(1, 0))
        worker = desk.worker()
        desk.api.add_run(1)
        with desk.answering(Reply(503), "/artifacts/"):
            desk.later(worker)
        assert state(worker, 1) == "failed"
        assert self._pushed(desk, worker, 2, "b", push_on=[]) == 0

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_none_any_more_after_any_push_of_its_job_if_it_had_nothing_for_these_destinations(
        self, desk: Desk
    ) -> None:
        worker = desk.worker()
        desk.api.add_run(1, trigger={"schema_override": "try"})
        with desk.answering(Reply(503), "run_steps"):
            desk.later(worker)
        desk.later(worker)
        assert state(worker, 1) == "failed"
        assert self._pushed(desk, worker, 2, "a") == 0

    @staticmethod
    def _pushed(desk: Desk, worker: Worker, run_id: int, *names: str, **wrong: object) -> int:
        """Failed runs after one that ran these models."""
        add_run_of_models(desk, run_id, *names, wrong=wrong)
        desk.later(worker)
        return counts(worker.position.value, [JOB])["failed"]

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_forgotten_with_a_warning_after_a_month_and_is_not_found_again(self, desk: Desk) -> None:
        desk.codes, desk.patience = [2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()
        desk.api.add_run(1)
        desk.later(worker)
        failed = worker.position.value.runs[1]
        worker.position.put(
            worker.position.value.updated(replace(failed, found_at=time.time() - LONGEST[State.FAILED] - 1))
        )
        for _ in range(2):
            desk.later(worker)
        assert counts(worker.position.value, [JOB]) == {"waiting": 0, "untimed": 0, "failed": 0, "overtaken": 0}
        assert desk.said("run 1 of job 345: found failed for 30 days; expected a later push of its syncs.") == ["warn"]
        assert len(desk.pushed) == 1
        assert desk.kept() == []


class TestTheLedger:
    @pytest.mark.guarantee("dbt Cloud")
    def test_of_another_place_is_refused_by_each_job_of_the_target_until_a_person_accepts_it(self, desk: Desk) -> None:
        """Its positions are empty: all rows of other tables would be sent."""
        worker = desk.worker(JOB, JOB + 1)
        desk.api.add_run(1, ledger="`shop`.`reverse_etl_ledger`")
        desk.later(worker)
        desk.api.add_run(2, ledger="SHOP.reverse_etl_ledger")
        desk.later(worker)
        assert len(desk.pushed) == 2
        worker = desk.worker(JOB, JOB + 1)
        desk.api.add_run(3, ledger="try.reverse_etl_ledger")
        desk.api.add_run(4, job=JOB + 1, ledger="try.reverse_etl_ledger")
        desk.later(worker)
        for run_id in (3, 4):
            run = worker.position.value.runs[run_id]
            assert run.state is State.FAILED
            assert run.reason.startswith(
                "found the ledger try.reverse_etl_ledger; "
                "expected shop.reverse_etl_ledger, as in earlier runs for target prod. Next: "
            )
        assert len(desk.pushed) == 2
        assert (
            not worker.reports.known("prod") or b"try" not in (desk.folder / "reports/prod/manifest.json").read_bytes()
        )
        (desk.folder / "position.json").unlink()
        desk.later(desk.worker(JOB, JOB + 1))
        assert len(desk.pushed) == 4

    def test_of_another_place_supersedes_no_run_with_that_of_the_target(self, desk: Desk) -> None:
        worker = desk.worker()
        desk.api.add_run(1, ledger="shop.reverse_etl_ledger")
        desk.later(worker)
        desk.api.add_run(2, ledger="shop.reverse_etl_ledger")
        desk.api.add_run(3, ledger="try.reverse_etl_ledger")
        desk.later(worker)
        assert (state(worker, 2), state(worker, 3)) == ("done", "failed")
        assert len(desk.pushed) == 2

    def test_of_another_place_takes_the_artifacts_of_an_earlier_failed_run_from_nobody(self, desk: Desk) -> None:
        desk.codes, desk.patience = [0, 2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()
        for run_id, ledger in enumerate(("shop.l", "shop.l", "try.l"), 1):
            desk.api.add_run(run_id, ledger=ledger)
            desk.later(worker)
        assert counts(worker.position.value, [JOB])["failed"] == 2
        assert desk.kept() == ["2"]

    def test_is_not_remembered_where_the_package_is_not_installed(self, desk: Desk) -> None:
        worker = desk.worker()
        for run_id, ledger in ((1, ""), (2, "shop.reverse_etl_ledger"), (3, "")):
            desk.api.add_run(run_id, ledger=ledger)
            desk.later(worker)
        assert worker.position.value.ledgers == {"prod": "shop.reverse_etl_ledger"}
        assert len(desk.pushed) == 3
