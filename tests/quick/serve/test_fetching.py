"""Artifacts from a server that speaks dbt Cloud's documented API: the right steps, and everything that may go wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from dbt_reverse_etl.serve.cloud import Cloud, CloudError
from dbt_reverse_etl.serve.fetching import Fetcher, Unfit
from dbt_reverse_etl.serve.queue import Queue, QueuedRun
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.worker import Patience
from tests.support.servers.cloud_api import ACCOUNT, JOB, SECRET, TOKEN, CloudApi, results
from tests.support.servers.http import Reply


@pytest.fixture
def api() -> Iterator[CloudApi]:
    made = CloudApi()
    yield made
    made.server.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue.db")
    yield made
    made.close()


@pytest.fixture
def cloud(api: CloudApi) -> Iterator[Cloud]:
    made = Cloud(settings(api).api(), lambda _: None)
    yield made
    made.close()


@pytest.fixture
def fetcher(cloud: Cloud, queue: Queue, tmp_path: Path) -> Fetcher:
    (tmp_path / "runs").mkdir()
    return Fetcher(cloud, queue, tmp_path / "runs")


def settings(api: CloudApi, **changes: object) -> ServeSettings:
    told = {"account_id": ACCOUNT, "url": api.server.url, "token": TOKEN, "timeout": 1, "webhook_secret": SECRET}
    return ServeSettings.model_validate({**told, "jobs": [{"job_id": JOB, "target": "prod"}], **changes})


def taken(queue: Queue, run_id: int = 1) -> QueuedRun:
    queue.add(f"wev_{run_id}", run_id, JOB, 0)
    run = queue.take(time.time())
    assert run
    return run


def read(folder: Path) -> tuple[str, dict[str, str]]:
    """The invocation whose manifest it is, and the results."""
    manifest = json.loads((folder / "manifest.json").read_bytes())["metadata"]["invocation_id"]
    ran = json.loads((folder / "run_results.json").read_bytes())
    assert ran["metadata"]["invocation_id"] == manifest
    return manifest, {result["unique_id"]: result["status"] for result in ran["results"]}


class TestTheRightStep:
    @pytest.mark.guarantee("dbt Cloud")
    def test_a_trailing_docs_or_test_step_does_not_hide_the_results_of_the_run(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue
    ) -> None:
        api.add_run(
            1,
            {
                "dbt deps": results("deps", "deps", {}),
                "dbt run": results("ran", rows={"model.a": "success"}),
                "dbt test": results("tested", "test", {"test.a": "warn"}),
                "dbt docs generate": results("docs", "docs", {"model.a": "success"}),
            },
        )
        (folder,) = fetcher.fetch(taken(queue), "prod")
        assert read(folder) == ("ran", {"model.a": "success", "test.a": "warn"})
        assert len(api.asked("manifest.json")) == 1

    def test_two_selections_are_one_push_with_the_last_result_of_each_node(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue
    ) -> None:
        api.add_run(
            1,
            {
                "dbt build -s a b": results("first", "build", {"model.a": "success", "model.b": "error"}),
                "dbt --warn-error build --select b": results("second", "build", {"model.b": "success"}),
            },
        )
        (folder,) = fetcher.fetch(taken(queue), "prod")
        assert read(folder) == ("second", {"model.a": "success", "model.b": "success"})

    def test_run_and_build_are_two_pushes_for_a_sync_may_follow_only_one_of_them(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue
    ) -> None:
        steps = {"dbt run -s a": results("ran", rows={"model.a": "success"})}
        api.add_run(1, {**steps, "dbt build -s b": results("built", "build", {"model.b": "success"})})
        folders = fetcher.fetch(taken(queue), "prod")
        assert [read(folder) for folder in folders] == [
            ("ran", {"model.a": "success"}),
            ("built", {"model.b": "success"}),
        ]

    def test_a_step_under_empty_or_sample_is_left_out(self, api: CloudApi, fetcher: Fetcher, queue: Queue) -> None:
        api.add_run(1, {"dbt run": results("ran"), "dbt run --empty": results("none", empty=True)})
        (folder,) = fetcher.fetch(taken(queue), "prod")
        assert read(folder)[0] == "ran"

    @pytest.mark.parametrize(
        "steps",
        [
            {"dbt test": results("t", "test")},
            {"dbt docs generate": results("d", "docs")},
            {"dbt run-operation prune": results("o", "run-operation")},
            {"dbt run --sample '3 days'": results("s", sample="3 days")},
            {},
        ],
        ids=lambda steps: next(iter(steps), "none"),
    )
    def test_a_run_without_models_is_done_and_no_failure(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue, steps: dict[str, dict[str, object]]
    ) -> None:
        api.add_run(1, steps)
        with pytest.raises(Unfit, match="no step ran models") as unfit:
            fetcher.fetch(taken(queue), "prod")
        assert not unfit.value.is_failure


class TestRunsThatAreNotPushed:
    @pytest.mark.guarantee("dbt Cloud")
    def test_artifacts_of_a_failed_run_are_not_even_fetched(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue
    ) -> None:
        """Its webhook was signed when it was a success, or a person made a mistake: the API is the authority."""
        api.add_run(1, status=20)
        with pytest.raises(Unfit, match="without success"):
            fetcher.fetch(taken(queue), "prod")
        assert not api.asked("artifacts")

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_run_of_another_job_or_target_is_a_failure(self, api: CloudApi, fetcher: Fetcher, queue: Queue) -> None:
        api.add_run(1, job=JOB + 1)
        api.add_run(2, {"dbt run": results("ran", target="staging")})
        for run_id, reason in ((1, "a run of job 346"), (2, "step 2 ran with target staging")):
            with pytest.raises(Unfit, match=reason) as unfit:
                fetcher.fetch(taken(queue, run_id), "prod")
            assert unfit.value.is_failure

    def test_one_that_still_runs_is_asked_for_again(self, api: CloudApi, fetcher: Fetcher, queue: Queue) -> None:
        api.add_run(1, status=3)
        with pytest.raises(CloudError, match="not ended") as early:
            fetcher.fetch(taken(queue), "prod")
        assert not early.value.final


NEXT_YEAR = datetime.now(timezone.utc) + timedelta(days=365)


class TestWhatTheApiMayDo:
    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(
        ("reply", "reason", "says"),
        [
            (Reply(401, b"secret text"), "HTTP 401, the token is not accepted", (False, None)),
            (Reply(403), "HTTP 403, the token may not read this", (False, None)),
            (Reply(404), "HTTP 404, there is no such file or run", (True, None)),
            (Reply(429, headers={"Retry-After": "17"}), "HTTP 429, too many requests", (False, 17)),
            (Reply(429, headers={"Retry-After": "soon"}), "HTTP 429, too many requests", (False, None)),
            (Reply(500), "HTTP 500", (False, None)),
            (Reply(503, headers={"Retry-After": "5"}), "HTTP 503", (False, 5)),
            (Reply(302, headers={"Location": "http://127.0.0.1:1/"}), "HTTP 302, not followed", (True, None)),
            (Reply(200, b"<html>"), "not what version 2", (True, None)),
            (Reply(200, b'{"data": {}}'), "not what version 2", (True, None)),
            (Reply(200, b"[]"), "not what version 2", (True, None)),
            (Reply(reset="after"), "the connection ended without an answer", (False, None)),
            (Reply(200, b"{}", delay=3), "no answer in time", (False, None)),
            (Reply(200, b"x" * 100, pause=0.1), "did not end in time", (False, None)),
            (Reply(200, b"{", length=50), "the connection ended before", (False, None)),
        ],
        ids=lambda value: f"{value.status}-{value.reset or ''}" if isinstance(value, Reply) else "",
    )
    def test_is_a_reason_without_its_text_and_says_whether_another_try_helps(
        self, api: CloudApi, cloud: Cloud, reply: Reply, reason: str, says: tuple[bool, float | None]
    ) -> None:
        api.add_run(1)
        api.server.script(reply)
        with pytest.raises(CloudError, match=reason) as caught:
            cloud.run(1)
        assert (caught.value.final, caught.value.retry_after) == says
        assert "secret text" not in str(caught.value)
        assert cloud.run(1).status == 10, "the next request is a new one"

    def test_a_step_whose_status_is_not_told_is_no_silent_success(self, api: CloudApi, cloud: Cloud) -> None:
        api.add_run(1)
        del api.runs[1]["run_steps"][1]["status"]
        with pytest.raises(CloudError, match="not what version 2"):
            cloud.run(1)

    def test_a_date_as_retry_after_is_understood(self, api: CloudApi, cloud: Cloud) -> None:
        api.server.script(Reply(429, headers={"Retry-After": format_datetime(NEXT_YEAR)}))
        with pytest.raises(CloudError) as caught:
            cloud.run(1)
        assert caught.value.retry_after
        assert caught.value.retry_after > 360 * 86400

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_missing_or_broken_artifact_leaves_no_folder(self, api: CloudApi, fetcher: Fetcher, queue: Queue) -> None:
        for number, broken in enumerate((None, b"{", b"[]"), 1):
            api.add_run(number)
            del api.files[number, 2, "run_results.json"]
            if broken is not None:
                api.files[number, 2, "run_results.json"] = broken
            with pytest.raises(CloudError) as caught:
                fetcher.fetch(taken(queue, number), "prod")
            assert caught.value.final
        api.add_run(9)
        del api.files[9, 2, "manifest.json"]
        run = taken(queue, 9)
        with pytest.raises(CloudError, match=r"manifest\.json of step 2: HTTP 404"):
            fetcher.fetch(run, "prod")
        api.add_run(9)
        assert len(fetcher.fetch(run, "prod")) == 1, "what was left half does not count"

    def test_a_manifest_of_many_megabytes_is_fetched_whole(self, api: CloudApi, cloud: Cloud) -> None:
        api.add_run(1)
        api.files[1, 2, "manifest.json"] = large = b'{"x": "' + b"y" * 30_000_000 + b'"}'
        assert cloud.artifact(1, "manifest.json", 2) == large

    def test_results_that_are_not_what_dbt_writes_are_a_failure(
        self, api: CloudApi, fetcher: Fetcher, queue: Queue
    ) -> None:
        api.add_run(1)
        api.files[1, 2, "run_results.json"] = b'{"metadata": {}, "results": [{}], "args": {"which": "run"}}'
        with pytest.raises(Unfit, match="not what dbt writes") as unfit:
            fetcher.fetch(taken(queue), "prod")
        assert unfit.value.is_failure


class TestHowLongItIsTried:
    @pytest.mark.guarantee("dbt Cloud")
    def test_waits_grow_to_a_limit_and_heed_what_the_api_asks_up_to_an_hour(self) -> None:
        patience = Patience(first=5, most=600)
        waits = [patience.wait(tries) for tries in range(1, 40)]
        assert all(2.5 <= wait <= 600 for wait in waits)
        assert min(waits[10:]) >= 300
        assert patience.wait(1, 120) == 120
        assert patience.wait(1, 1e15) == 3600

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_short_outage_with_many_tries_and_a_long_one_with_few_are_both_survived(self) -> None:
        patience = Patience(fetches=10, fetch_seconds=3600, final_fetches=5)

        def spent(fetches: int, age: float, final: bool = False) -> bool:
            run = QueuedRun(1, JOB, "queued", fetches, 0, 0.0, None, "")  # type: ignore[arg-type]
            return patience.is_spent(run, age, final=final)

        assert not spent(100, 3599)
        assert not spent(9, 10**6)
        assert spent(10, 3600)
        assert spent(5, 1, final=True)
        assert not spent(4, 1, final=True)
