"""The worker over an API on loopback, with a push that only gives exit codes: what becomes of each run."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from dbt_reverse_etl.serve import cloud, looks
from dbt_reverse_etl.serve.cloud import PAGE
from dbt_reverse_etl.serve.metrics import counts
from dbt_reverse_etl.serve.position import LONGEST, PositionFile, Run, State, Trouble
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.surroundings import Patience, Surroundings
from dbt_reverse_etl.serve.webhooks import Receiver
from dbt_reverse_etl.serve.worker import Worker
from tests.support.config.manifest import manifest
from tests.support.serve.world import wait_for
from tests.support.servers.cloud_api import ACCOUNT, JOB, SECRET, TOKEN, CloudApi, event, results, signature
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
        assert worker.position.value.runs[1].reason == "given up: exit code 2, the configuration is wrong"


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
        models = {"model.shop.a": "success", "model.shop.b": "success"}

        def run(run_id: int, which: str, *names: str, **args: object) -> dict[str, int]:
            rows = {name: models[name] for name in map("model.shop.{}".format, names)}
            desk.api.add_run(run_id, {f"dbt {which} {run_id}": results(f"inv-{run_id}", which, rows, **args)})
            project = manifest({name: {"destination": "crm", "object": name} for name in "ab"})
            project["metadata"] |= {"invocation_id": f"inv-{run_id}", "project_name": "shop"}
            desk.api.files[run_id, 2, "manifest.json"] = json.dumps(project).encode()
            desk.later(worker)
            return counts(worker.position.value, [JOB])

        desk.codes = [code]
        assert run(1, "build", "a", "b")[ending] == 1
        assert run(2, "build", "a")[ending] == 1
        assert desk.kept() == (["1"] if ending == "failed" else [])
        assert run(3, "build", "b", exclude=["exposure:b"])[ending] == 1, "its model alone is not enough"
        worker = desk.worker()
        assert run(4, "build", "b")[ending] == 0
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
            model = {"model.shop.a": "success"}
            desk.api.add_run(
                run_id, {"dbt run": results(f"inv-{run_id}", rows=model, target=worker.targets[job])}, job=job
            )
            project = manifest({"a": {"destination": "crm"}})
            project["metadata"] |= {"invocation_id": f"inv-{run_id}", "project_name": "shop"}
            desk.api.files[run_id, 2, "manifest.json"] = json.dumps(project).encode()
            desk.later(worker)
        assert counts(worker.position.value, [JOB, JOB + 1])["failed"] == left

    @pytest.mark.guarantee("dbt Cloud")
    def test_stays_one_after_a_wrong_setting_of_a_sync_until_each_sync_is_pushed(self, desk: Desk) -> None:
        desk.codes, desk.patience = [2], replace(AT_ONCE, push=(1, 0))
        worker = desk.worker()

        def run(run_id: int, *names: str, **wrong: object) -> int:
            rows = {f"model.shop.{name}": "success" for name in names}
            desk.api.add_run(run_id, {f"dbt run {run_id}": results(f"inv-{run_id}", rows=rows)})
            project = manifest({name: {"destination": "crm", "object": name} for name in "ab"})
            project["exposures"]["a"]["config"]["meta"]["reverse_etl"] |= wrong
            project["metadata"] |= {"invocation_id": f"inv-{run_id}", "project_name": "shop"}
            desk.api.files[run_id, 2, "manifest.json"] = json.dumps(project).encode()
            desk.later(worker)
            return counts(worker.position.value, [JOB])["failed"]

        assert [run(1, "a", "b", mode="mirorr"), run(2, "b"), run(3, "a")] == [1, 1, 0]

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


class TestHowLongARunIsTried:
    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("code", [1, 2, 3, 5])
    def test_a_code_that_may_hide_that_of_another_sync_is_tried_again_to_a_limit(self, desk: Desk, code: int) -> None:
        worker, desk.codes = desk.worker(), [code] * 2
        desk.api.add_run(1)
        for left in ("waiting", "waiting", "done"):
            desk.later(worker)
            assert state(worker, 1) == left
        desk.codes = [code] * 9
        desk.api.add_run(2)
        for left in ("waiting", "waiting", "failed", "failed"):
            desk.later(worker)
            assert state(worker, 2) == left
        assert len(desk.codes) == 6

    @pytest.mark.guarantee("dbt Cloud")
    def test_tries_of_another_trouble_do_not_count(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, busy=(9, 0))
        desk.api.add_run(1)
        worker, desk.codes = desk.worker(), [4, 4, 4, 1]
        for _ in range(4):
            desk.later(worker)
        assert state(worker, 1) == "waiting"
        desk.later(worker)
        assert state(worker, 1) == "done"

    def test_a_run_that_is_busy_and_fails_in_turn_is_given_up_all_the_same(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, busy=(9, 0))
        desk.api.add_run(1)
        worker, desk.codes = desk.worker(), [1, 4] * 9
        for tries in range(1, 8):
            desk.later(worker)
            assert state(worker, 1) == ("failed" if tries == 2 * AT_ONCE.push[0] - 1 else "waiting")
            if state(worker, 1) == "failed":
                break
        assert state(worker, 1) == "failed"

    @pytest.mark.guarantee("dbt Cloud")
    def test_the_time_counts_from_the_first_of_the_failures_that_are_alike(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.patience = replace(AT_ONCE, busy=(2, 7200))
        desk.api.add_run(1)
        now = [1e9]
        monkeypatch.setattr("time.time", lambda: now[0])
        worker, desk.codes = desk.worker(), [1, 4, 4, 4, 4]
        desk.later(worker)
        for hours, left in ((9, "waiting"), (10, "waiting"), (10.9, "waiting"), (11.1, "failed")):
            now[0] = 1e9 + hours * 3600
            desk.later(worker)
            assert state(worker, 1) == left

    def test_tries_of_the_artifacts_do_not_count_for_the_push(self, desk: Desk) -> None:
        desk.patience = replace(AT_ONCE, fetch=(9, 0))
        desk.api.add_run(1)
        manifest = desk.api.files.pop((1, 2, "manifest.json"))
        worker = desk.worker()
        for _ in range(5):
            desk.later(worker)
        desk.api.files[1, 2, "manifest.json"] = manifest
        desk.codes = [1, 1]
        for _ in range(3):
            desk.later(worker)
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
        desk.later(worker)
        assert state(worker, 3) == "done"

    def test_tries_of_an_earlier_version_that_does_not_say_what_they_met_count_for_nothing(self, desk: Desk) -> None:
        desk.api.add_run(1)
        worker, desk.codes = desk.worker(), [4]
        desk.later(worker)
        run = replace(worker.position.value.runs[1], tries=9, trouble=Trouble.NONE, since=0.0)
        worker.position.put(worker.position.value.updated(run))
        desk.later(desk.worker())
        assert state(desk.worker(), 1) == "done"


class TestWhenSomethingIsTriedAgain:
    @pytest.mark.guarantee("dbt Cloud")
    def test_no_webhook_cuts_a_pause_short_that_the_api_asked_for(self, desk: Desk) -> None:
        desk.patience = Patience()
        desk.api.server.script(Reply(429, headers={"Retry-After": "1800"}))
        worker = desk.worker(JOB, JOB + 1)
        worker.turn()
        for run_id in range(1, 20):
            worker.hear(JOB, run_id)
            worker.hear(JOB + 1, run_id)
            desk.now += 90
            worker.turn()
        assert len(desk.api.server.received) == 1
        desk.now += 90
        worker.turn()
        assert len(desk.api.asked("order_by")) == 3

    @pytest.mark.guarantee("dbt Cloud")
    def test_no_webhook_cuts_the_wait_before_another_try_short(self, desk: Desk) -> None:
        desk.patience, desk.codes = Patience(), [1, 1]
        worker = desk.worker()
        desk.api.add_run(1)
        worker.turn()
        for run_id in range(2, 20):
            worker.hear(JOB, run_id)
            worker.turn()
        assert len(desk.api.asked("order_by")) == 19, "each brings a look"
        assert len(desk.pushed) == 1
        desk.now += 10
        worker.turn()
        assert len(desk.pushed) == 2
        desk.now += 9.9
        worker.turn()
        assert len(desk.pushed) == 2, "waits double"
        desk.now += 10.1
        worker.turn()
        assert state(worker, 1) == "done"

    @pytest.mark.guarantee("dbt Cloud")
    def test_after_a_limit_of_the_api_no_other_run_loses_a_try_and_what_is_fetched_is_pushed(self, desk: Desk) -> None:
        desk.patience, desk.codes = Patience(), [1]
        worker, answer = desk.worker(), desk.api.server.default
        desk.api.add_run(1)
        worker.turn()
        for run_id in (2, 3):
            desk.api.add_run(run_id, ran(run_id))
        asked = len(desk.api.asked("run_steps"))
        assert callable(answer)
        desk.api.server.default = lambda request: Reply(429) if "run_steps" in request.path else answer(request)
        desk.now += 400
        worker.turn()
        assert len(desk.api.asked("run_steps")) == asked + 1
        runs = worker.position.value.runs
        assert [(runs[run_id].state.value, runs[run_id].tries) for run_id in (1, 2, 3)] == [
            ("done", 2),
            ("waiting", 1),
            ("waiting", 0),
        ]
        desk.api.server.default = answer
        desk.later(worker)
        assert [state(worker, run_id) for run_id in (2, 3)] == ["done", "done"]

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_job_that_cannot_be_looked_at_holds_up_no_other(self, desk: Desk) -> None:
        desk.patience = Patience()
        desk.api.unknown_jobs = {JOB + 1}
        worker = desk.worker(JOB + 1, JOB)
        worker.turn()
        desk.api.add_run(1)
        worker.hear(JOB, 1)
        worker.turn()
        assert state(worker, 1) == "done"

    def test_it_sleeps_until_something_is_due_and_a_webhook_wakes_it(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.patience, desk.codes = Patience(first=60), [1]
        worker = desk.worker()
        desk.api.add_run(1)
        turns: list[int] = []
        turn = worker.turn
        monkeypatch.setattr(worker, "turn", lambda: (turn(), turns.append(1)))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        wait_for(lambda: len(turns) == 1, "it never began")
        desk.api.add_run(2, ran(2))
        worker.hear(JOB, 2)
        wait_for(lambda: len(turns) == 2, "it was never woken", 5)
        assert state(worker, 2) == "done"
        assert state(worker, 1) == "waiting"
        time.sleep(0.2)
        worker.stop()
        thread.join(5)
        assert len(turns) == 2

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_look_that_an_error_of_our_own_ended_is_repeated(self, desk: Desk) -> None:
        worker = desk.worker()
        worker.turn()
        desk.api.add_run(1)
        (desk.folder / "position.json.new").mkdir()
        worker.hear(JOB, 1)
        worker.turn()
        assert worker.broken == "IsADirectoryError"
        (desk.folder / "position.json.new").rmdir()
        worker.turn()
        assert state(worker, 1) == "done"

    def test_an_error_of_our_own_is_no_reason_to_spin(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.patience = Patience()
        desk.api.add_run(1)
        worker, turns = desk.worker(), list[int]()
        monkeypatch.setattr(worker.position, "put", lambda _: turns.append(1) or 1 / 0)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        wait_for(lambda: worker.broken == "ZeroDivisionError", "it never broke")
        time.sleep(0.2)
        worker.stop()
        thread.join(5)
        assert len(turns) == 1

    def test_a_run_that_a_webhook_named_is_looked_for_a_few_times(self, desk: Desk) -> None:
        desk.patience = Patience()
        worker = desk.worker()
        worker.turn()
        worker.hear(JOB, 1)
        for _ in range(9):
            desk.now += 100
            worker.turn()
        assert len(desk.api.asked("order_by")) in (6, 7), "at the start, five times, and perhaps the usual one"
        assert desk.said("a webhook named it") == ["warn"]

    def test_a_settled_run_that_a_webhook_names_once_more_is_not_looked_for(self, desk: Desk) -> None:
        desk.patience = Patience()
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id, minute=run_id * 100)
            desk.now += 400
            worker.turn()
        assert 1 not in worker.position.value.runs
        worker.hear(JOB, 1)
        worker.turn()
        assert worker.looks.is_settled
        assert desk.said("a webhook named it") == []
        assert len(desk.pushed) == 2


class TestARunWithoutTheTimeOfItsEnd:
    @pytest.mark.guarantee("dbt Cloud")
    def test_holds_up_no_other_and_is_pushed_once_it_has_one(self, desk: Desk) -> None:
        worker = desk.worker()
        for run_id in (1, 2, 3):
            desk.api.add_run(run_id, ran(run_id))
        at, desk.api.runs[3]["finished_at"] = desk.api.runs[3]["finished_at"], None
        desk.later(worker)
        assert [state(worker, run_id) for run_id in worker.position.value.runs] == ["untimed", "done"], "no earlier one"
        assert worker.looks.trouble == {}
        for run_id in (4, 5):
            desk.api.add_run(run_id, ran(run_id), minute=run_id * 100)
            desk.later(desk.worker())
        assert state(desk.worker(), 5) == "done"
        desk.api.runs[3]["finished_at"] = at
        desk.later(desk.worker())
        assert desk.said("run 3: done") == ["info"]
        assert len(desk.pushed) == 4

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_given_up_with_a_warning_after_a_day(self, desk: Desk) -> None:
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id)
        desk.api.runs[2]["finished_at"] = None
        desk.later(worker)
        untimed = worker.position.value.runs[2]
        worker.position.put(worker.position.value.updated(replace(untimed, found_at=time.time() - 86401)))
        desk.api.add_run(3, minute=300)
        desk.later(worker)
        said = "run 2 of job 345: found untimed for 1 day; expected the time of its end from dbt Cloud."
        assert desk.said(said) == ["warn"]
        assert 1 not in worker.position.value.runs, "it is no longer waited for"
        for later in (4, 5):
            desk.api.add_run(later, minute=300 * later)
            desk.later(worker)
            assert state(worker, 2) == "given up", "it is listed as ever"

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_pushed_soon_after_it_has_one_if_a_webhook_named_it(self, desk: Desk) -> None:
        at = self._named_by_a_webhook(desk)
        worker = desk.worker()
        worker.hear(JOB, 2)
        worker.turn()
        desk.api.runs[2]["finished_at"] = at
        desk.now += 10
        worker.turn()
        assert state(worker, 2) == "done"
        assert worker.looks.is_settled

    def test_is_looked_for_a_few_times_and_then_as_usual_if_a_webhook_named_it(self, desk: Desk) -> None:
        self._named_by_a_webhook(desk)
        worker = desk.worker()
        worker.hear(JOB, 2)
        for _ in range(9):
            worker.turn()
            desk.now += 100
        assert len(desk.api.asked("order_by")) == 7, "at the start, five times, and the usual one"
        assert worker.looks.is_settled
        assert desk.said("a webhook named it") == []

    @staticmethod
    def _named_by_a_webhook(desk: Desk) -> str:
        """Its time is still to come; an earlier run is pushed."""
        desk.patience = Patience()
        desk.api.add_run(1)
        desk.worker().turn()
        desk.api.add_run(2)
        at, desk.api.runs[2]["finished_at"] = desk.api.runs[2]["finished_at"], None
        return str(at)

    def test_is_counted_and_is_no_success_of_poll_once(self, desk: Desk) -> None:
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id)
        desk.api.runs[2]["finished_at"] = None
        worker.turn()
        assert counts(worker.position.value, [JOB])["untimed"] == 1
        assert 'dbt_reverse_etl_runs{state="untimed"} 1.0' in worker.metrics.page().decode()
        assert worker.worst == 1

    def test_ends_no_page(self, desk: Desk) -> None:
        worker = desk.worker()
        desk.api.add_run(1)
        desk.later(worker)
        for run_id in range(2, PAGE + 2):
            desk.api.add_run(run_id)
            desk.api.runs[run_id]["finished_at"] = None
        desk.api.add_run(99, ran(99))
        desk.later(worker)
        assert state(worker, 99) == "done"


@pytest.mark.parametrize(("minutes", "level"), [(1, ["warn"]), (100, [])])
def test_a_list_of_runs_that_is_cut_off_is_said_and_one_that_ends_in_settled_runs_is_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, minutes: int, level: list[str]
) -> None:
    monkeypatch.setattr(cloud, "MOST_PAGES", 1)
    monkeypatch.setattr(looks, "MOST_PAGES", 1)
    worker = desk.worker()
    for run_id in range(1, PAGE + 1):
        desk.api.add_run(run_id, minute=run_id * minutes)
        if run_id in (1, PAGE - 1):
            worker.turn()
            desk.now += 400
    desk.later(worker)
    assert desk.said("only the newest 50 of its finished runs are looked at") == level


class TestAJobThatDbtCloudDoesNotKnow:
    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("status", [403, 404])
    def test_is_said_and_shown_although_the_list_of_its_runs_is_only_empty(self, desk: Desk, status: int) -> None:
        answer = desk.api.server.default
        assert callable(answer)
        desk.api.server.default = lambda request: Reply(status) if "/jobs/345/" in request.path else answer(request)
        worker = desk.worker()
        worker.turn()
        assert worker.looks.trouble == {JOB: "dbt Cloud does not know it, or the token may not read it"}
        assert desk.said("job 345: dbt Cloud does not know it, or the token may not read it") == ["warn"]
        assert worker.worst == 1
        assert looked(worker) == 0
        desk.api.add_run(1)
        desk.later(worker)
        assert state(worker, 1) == "done", "runs of a job that was deleted are listed"
        desk.api.server.default = answer
        desk.later(worker)
        assert worker.looks.trouble == {}
        assert looked(worker) > 0

    def test_is_first_looked_at_when_the_token_may_read_it(self, desk: Desk) -> None:
        desk.api.unknown_jobs = {JOB}
        worker = desk.worker()
        desk.later(worker)
        desk.api.unknown_jobs = set()
        for run_id in (1, 2):
            desk.api.add_run(run_id, ran(run_id))
        desk.later(worker)
        assert worker.position.value.runs.keys() == {2}, "the newest alone"

    def test_is_asked_for_at_the_start_and_whenever_the_list_is_empty(self, desk: Desk) -> None:
        worker = desk.worker()
        desk.api.add_run(1)
        desk.later(worker)
        desk.later(worker)
        assert len(desk.api.asked("/jobs/345/")) == 1
        desk.api.runs.clear()
        desk.api.unknown_jobs = {JOB}
        desk.later(worker)
        assert worker.looks.trouble.keys() == {JOB}, "the token has lost its rights"


def looked(worker: Worker) -> float:
    return float(sample(worker, 'last_look_timestamp_seconds{job_id="345"}'))


@pytest.mark.guarantee("dbt Cloud")
def test_the_time_of_the_last_push_is_shown_for_each_listed_job_and_for_no_other(desk: Desk) -> None:
    desk.api.add_run(1)
    desk.later(desk.worker())
    page = desk.worker(JOB + 1, JOB + 2).metrics.page().decode().splitlines()
    shown = [line for line in page if line.startswith("dbt_reverse_etl_last_done_timestamp_seconds{")]
    assert shown == [f'dbt_reverse_etl_last_done_timestamp_seconds{{job_id="{job}"}} 0.0' for job in (JOB + 1, JOB + 2)]


def test_webhooks_that_are_ignored_are_logged_once_for_each_reason(desk: Desk) -> None:
    worker = desk.worker()
    app = Receiver(desk.settings(JOB), worker, lambda: True, desk.around()).app()
    for body in (event(1, jobId="9"), event(2, jobId="9"), event(3, runStatusCode=20)):
        assert asyncio.run(posted(app, body)) == 200
    assert [line for line, _ in desk.log] == [
        "webhook ignored: a job that is not listed (run 1 of job 9 in account 12); the next ones like it are not logged",
        "webhook ignored: a run without success (run 3 of job 345 in account 12); the next ones like it are not logged",
    ]


async def posted(app: Starlette, body: bytes) -> int:
    """The status of the answer to a webhook."""
    headers = [(b"authorization", signature(body).encode())]
    scope = {"type": "http", "method": "POST", "path": "/webhook", "query_string": b"", "headers": headers}
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])
