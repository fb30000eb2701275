"""The worker over an API on loopback: runs without an end, lists of runs and jobs, webhooks, what is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette

from dbt_reverse_etl.serve import cloud, looks
from dbt_reverse_etl.serve.cloud import PAGE
from dbt_reverse_etl.serve.metrics import counts
from dbt_reverse_etl.serve.surroundings import Patience
from dbt_reverse_etl.serve.webhooks import Receiver
from dbt_reverse_etl.serve.worker import Worker
from tests.support.serve.desk import Desk, ran, sample, state
from tests.support.servers.cloud_api import JOB, event, signature
from tests.support.servers.http import Received, Reply


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
        self._found_long_ago(desk)
        worker = desk.worker()
        desk.api.add_run(3, minute=300)
        desk.later(worker)
        assert worker.worst == 1, "rows may be missing"
        said = "run 2 of job 345: found untimed for 1 day; expected the time of its end from dbt Cloud."
        assert desk.said(said) == ["warn"]
        assert 1 not in worker.position.value.runs, "it is no longer waited for"
        for later in (4, 5):
            desk.api.add_run(later, minute=300 * later)
            desk.later(worker)
            assert state(worker, 2) == "given up", "it is listed as ever"
        assert desk.said("run 2") == ["warn"]

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_not_given_up_before_dbt_cloud_is_asked_once_more(self, desk: Desk) -> None:
        """As by a job of cron that runs once a day."""
        desk.api.runs[2]["finished_at"] = self._found_long_ago(desk)
        worker = desk.worker()
        desk.later(worker)
        assert state(worker, 2) == "done"
        assert worker.worst == 0
        assert desk.said("found untimed") == []

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(("status", "job"), [(503, JOB), (429, JOB + 1)])
    def test_is_not_given_up_while_dbt_cloud_does_not_answer_or_may_not_be_asked(
        self, desk: Desk, status: int, job: int
    ) -> None:
        desk.api.runs[2]["finished_at"] = self._found_long_ago(desk)
        worker = desk.worker(JOB + 1, JOB)
        with desk.answering(Reply(status, headers={"Retry-After": "1800"}), f"job_definition_id={job}&"):
            for _ in range(2):
                worker.turn()
        assert counts(worker.position.value, [JOB])["untimed"] == 1
        assert desk.said("found untimed") == []
        assert worker.worst == 1
        desk.later(worker)
        assert desk.said("run 2: done") == ["info"]

    def test_is_given_up_also_where_a_look_at_all_jobs_takes_longer_than_their_interval(self, desk: Desk) -> None:
        self._found_long_ago(desk)
        answer = desk.api.server.default
        assert callable(answer)

        def slow(request: Received) -> Reply:
            desk.now += 4000
            return answer(request)

        desk.api.server.default = slow
        worker = desk.worker(JOB, JOB + 1)
        desk.api.add_run(3, minute=300)
        desk.later(worker)
        assert desk.said("run 2 of job 345: found untimed for 1 day") == ["warn"]

    @pytest.mark.guarantee("dbt Cloud")
    def test_is_pushed_if_it_gets_one_after_it_was_given_up(self, desk: Desk) -> None:
        at, worker = self._found_long_ago(desk), desk.worker()
        desk.later(worker)
        assert state(worker, 2) == "given up"
        desk.api.add_run(3, ran(3), minute=300)
        desk.later(worker)
        desk.api.runs[2]["finished_at"], desk.codes = at, [1]
        desk.api.add_run(4, ran(4), minute=600)
        desk.later(worker)
        assert [state(worker, run_id) for run_id in (2, 4)] == ["waiting", "done"], "it is tried again"
        desk.later(worker)
        assert desk.said("run 2: done") == ["info"]
        assert 2 not in worker.position.value.runs

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
    def _found_long_ago(desk: Desk) -> str:
        """Run 2, by a process that has ended; an earlier one is pushed."""
        worker = desk.worker()
        for run_id in (1, 2):
            desk.api.add_run(run_id, ran(run_id))
        at, desk.api.runs[2]["finished_at"] = desk.api.runs[2]["finished_at"], None
        desk.later(worker)
        untimed = replace(worker.position.value.runs[2], found_at=time.time() - 40 * 86400)
        worker.position.put(worker.position.value.updated(untimed))
        return str(at)

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
        worker = desk.worker()
        with desk.answering(Reply(status), "/jobs/345/"):
            worker.turn()
            assert worker.looks.trouble == {JOB: "dbt Cloud does not know it, or the token may not read it"}
            assert desk.said("job 345: dbt Cloud does not know it, or the token may not read it") == ["warn"]
            assert worker.worst == 1
            assert looked(worker) == 0
            desk.api.add_run(1)
            desk.later(worker)
            assert state(worker, 1) == "done", "runs of a job that was deleted are listed"
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


@pytest.mark.parametrize(("query", "warned"), [(b"", []), (b"step=2", ["warn"])])
def test_a_webhook_with_a_query_in_its_url_is_accepted_with_one_warning_that_all_steps_count(
    desk: Desk, query: bytes, warned: list[str]
) -> None:
    app = Receiver(desk.settings(JOB), desk.worker(), lambda: True, desk.around()).app()
    assert [asyncio.run(posted(app, event(run_id), query)) for run_id in (1, 2)] == [200, 200]
    assert desk.said("webhook accepted without what follows `?` in its URL: all steps of a run count") == warned


async def posted(app: Starlette, body: bytes, query: bytes = b"") -> int:
    """The status of the answer to a webhook."""
    headers = [(b"authorization", signature(body).encode())]
    scope = {"type": "http", "method": "POST", "path": "/webhook", "query_string": query, "headers": headers}
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])
