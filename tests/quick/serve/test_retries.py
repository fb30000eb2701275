"""How long a run is tried, when something is tried again, and what no other run waits for."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from dbt_reverse_etl.serve.position import PositionFile, Run, State, Trouble
from dbt_reverse_etl.serve.surroundings import Patience
from tests.support.serve.desk import AT_ONCE, Desk, ran, state
from tests.support.serve.world import wait_for
from tests.support.servers.cloud_api import JOB
from tests.support.servers.http import Reply


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
        worker = desk.worker()
        desk.api.add_run(1)
        worker.turn()
        for run_id in (2, 3):
            desk.api.add_run(run_id, ran(run_id))
        asked = len(desk.api.asked("run_steps"))
        with desk.answering(Reply(429), "run_steps"):
            desk.now += 400
            worker.turn()
        assert len(desk.api.asked("run_steps")) == asked + 1
        runs = worker.position.value.runs
        assert [(runs[run_id].state.value, runs[run_id].tries) for run_id in (1, 2, 3)] == [
            ("done", 2),
            ("waiting", 1),
            ("waiting", 0),
        ]
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
