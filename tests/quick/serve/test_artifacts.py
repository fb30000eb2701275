"""Artifacts from a server that speaks dbt Cloud's documented API: the right steps, and everything that may go wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from dbt_reverse_etl.serve.artifacts import Artifacts
from dbt_reverse_etl.serve.cloud import Cloud, CloudError
from dbt_reverse_etl.serve.position import Run
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.steps import Unfit
from dbt_reverse_etl.serve.surroundings import Patience
from tests.support.servers.cloud_api import ACCOUNT, JOB, TOKEN, CloudApi, results
from tests.support.servers.http import Reply


@pytest.fixture
def api() -> Iterator[CloudApi]:
    made = CloudApi()
    yield made
    made.server.close()


@pytest.fixture
def cloud(api: CloudApi) -> Cloud:
    about = {"account_id": ACCOUNT, "url": api.server.url, "token": TOKEN, "timeout": 1}
    settings = ServeSettings.model_validate({**about, "jobs": [{"job_id": JOB, "target": "prod"}]})
    return Cloud(settings.api(), lambda _: None)


@pytest.fixture
def artifacts(cloud: Cloud, tmp_path: Path) -> Artifacts:
    (tmp_path / "runs").mkdir()
    return Artifacts(cloud, tmp_path / "runs")


def fetched(artifacts: Artifacts, run_id: int = 1, newest: int | None = None) -> list[Path]:
    """The folders of a run, which the position says to be of the job."""
    run = Run(run_id, JOB, 0, 0)
    artifacts.fetch(run, "prod", Run(newest or run_id, JOB, 0, 0))
    return artifacts.of(run)


def read(folder: Path) -> tuple[str, dict[str, str]]:
    """The invocation whose manifest it is, and the results."""
    manifest = json.loads((folder / "manifest.json").read_bytes())["metadata"]["invocation_id"]
    ran = json.loads((folder / "run_results.json").read_bytes())
    assert ran["metadata"]["invocation_id"] == manifest
    return manifest, {result["unique_id"]: result["status"] for result in ran["results"]}


class TestTheRightStep:
    @pytest.mark.guarantee("dbt Cloud")
    def test_a_trailing_docs_or_test_step_does_not_hide_the_results_of_the_run(
        self, api: CloudApi, artifacts: Artifacts
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
        (folder,) = fetched(artifacts)
        assert read(folder) == ("ran", {"model.a": "success", "test.a": "warn"})
        assert len(api.asked("manifest.json")) == 1

    def test_two_selections_are_one_push_with_the_last_result_of_each_node(
        self, api: CloudApi, artifacts: Artifacts
    ) -> None:
        api.add_run(
            1,
            {
                "dbt build -s a b": results("first", "build", {"model.a": "success", "model.b": "error"}),
                "dbt --warn-error build --select b": results("second", "build", {"model.b": "success"}),
            },
        )
        (folder,) = fetched(artifacts)
        assert read(folder) == ("second", {"model.a": "success", "model.b": "success"})

    def test_run_and_build_are_two_pushes_for_a_sync_may_follow_only_one_of_them(
        self, api: CloudApi, artifacts: Artifacts
    ) -> None:
        steps = {"dbt run -s a": results("ran", rows={"model.a": "success"})}
        api.add_run(1, {**steps, "dbt build -s b": results("built", "build", {"model.b": "success"})})
        folders = fetched(artifacts)
        assert [read(folder) for folder in folders] == [
            ("ran", {"model.a": "success"}),
            ("built", {"model.b": "success"}),
        ]

    def test_a_step_under_empty_or_sample_is_left_out(self, api: CloudApi, artifacts: Artifacts) -> None:
        api.add_run(1, {"dbt run": results("ran"), "dbt run --empty": results("none", empty=True)})
        (folder,) = fetched(artifacts)
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
        self, api: CloudApi, artifacts: Artifacts, steps: dict[str, dict[str, object]]
    ) -> None:
        api.add_run(1, steps)
        with pytest.raises(Unfit, match="no step ran models") as unfit:
            fetched(artifacts)
        assert not unfit.value.is_failure

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("command", ["run", "retry"])
    def test_results_of_another_step_are_an_error_and_no_run_without_models(
        self, api: CloudApi, artifacts: Artifacts, command: str
    ) -> None:
        api.add_run(
            1, {f"dbt {command}": results("docs", "generate"), "dbt docs generate": results("docs", "generate")}
        )
        with pytest.raises(
            CloudError, match=rf"run_results\.json of step 2: results of another command than dbt {command}"
        ):
            fetched(artifacts)
        api.add_run(1, {"dbt retry": results("seeded", "seed")})
        with pytest.raises(Unfit, match="no step ran models"):
            fetched(artifacts)
        api.add_run(1, {f"dbt {command}": results("ran"), "dbt docs generate": results("docs", "generate")})
        assert [read(folder)[0] for folder in fetched(artifacts)] == ["ran"]


class TestRunsThatAreNotPushed:
    @pytest.mark.guarantee("dbt Cloud")
    def test_artifacts_of_a_failed_run_are_not_even_fetched(self, api: CloudApi, artifacts: Artifacts) -> None:
        """Its webhook was signed when it was a success, or a person made a mistake: the API is the authority."""
        api.add_run(1, status=20)
        with pytest.raises(Unfit, match="without success"):
            fetched(artifacts)
        assert not api.asked("artifacts")

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_run_of_another_job_or_target_is_a_failure(self, api: CloudApi, artifacts: Artifacts) -> None:
        api.add_run(1, job=JOB + 1)
        api.add_run(2, {"dbt run": results("ran", target="staging")})
        for run_id, reason in ((1, "a run of job 346"), (2, "step 2 ran with target staging")):
            with pytest.raises(Unfit, match=reason) as unfit:
                fetched(artifacts, run_id)
            assert unfit.value.is_failure

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(
        ("trigger", "found"),
        [
            ({"schema_override": "dbt_cloud_pr_345_12"}, "schema_override dbt_cloud_pr_345_12"),
            ({"github_pull_request_id": 12}, "github_pull_request_id 12"),
            ({"gitlab_merge_request_id": 12}, "gitlab_merge_request_id 12"),
            ({"azure_pull_request_id": 12}, "azure_pull_request_id 12"),
            ({"non_native_pull_request_id": "12"}, "non_native_pull_request_id 12"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_run_that_wrote_to_other_tables_than_its_job_is_a_failure_and_supersedes_none(
        self, api: CloudApi, artifacts: Artifacts, trigger: dict[str, object], found: str
    ) -> None:
        api.add_run(1)
        api.add_run(2, trigger=trigger)
        with pytest.raises(Unfit, match=f"found a run with {found}; expected .* Next: ") as unfit:
            fetched(artifacts, 2)
        assert unfit.value.is_failure
        assert not api.asked("artifacts")
        assert fetched(artifacts, 1, newest=2)

    def test_a_branch_alone_is_no_reason(self, api: CloudApi, artifacts: Artifacts) -> None:
        api.add_run(1, trigger={"git_branch": "hotfix", "schema_override": "", "github_pull_request_id": None})
        assert fetched(artifacts, 1)

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("trigger", [None, {"cause": "Scheduled", "schema": "dbt_cloud_pr_345_12"}, "absent"])
    def test_a_run_is_not_pushed_while_the_api_does_not_say_whether_it_wrote_elsewhere(
        self, api: CloudApi, artifacts: Artifacts, trigger: object
    ) -> None:
        api.add_run(1)
        api.runs[1]["trigger"] = trigger
        if trigger == "absent":
            del api.runs[1]["trigger"]
        with pytest.raises(CloudError, match="not what version 2 of the API answers"):
            fetched(artifacts, 1)
        assert not api.asked("artifacts")

    def test_one_that_a_later_one_repeats_is_left_to_it_and_only_then(
        self, api: CloudApi, artifacts: Artifacts
    ) -> None:
        for run_id in (1, 2):
            api.add_run(run_id)
        api.add_run(3, {"dbt run -s b": results("other")})
        api.add_run(4, status=20)
        for newer in (3, 4, 5):
            assert fetched(artifacts, 1, newer), (
                "a later run of other steps, without success or unknown changes nothing"
            )
            artifacts.keep_only(())
        with pytest.raises(Unfit, match="superseded by run 2"):
            fetched(artifacts, 1, 2)


NEXT_YEAR = datetime.now(timezone.utc) + timedelta(days=365)


class TestWhatTheApiMayDo:
    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(
        ("reply", "reason", "pause"),
        [
            (Reply(401, b"secret text"), "HTTP 401, the token is not accepted", 0),
            (Reply(403), "HTTP 403, the token may not read this", 0),
            (Reply(404), "HTTP 404, there is no such file or run", 0),
            (Reply(429, headers={"Retry-After": "17"}), "HTTP 429, too many requests", 17),
            (Reply(429, headers={"Retry-After": "soon"}), "HTTP 429, too many requests", 0),
            (Reply(500), "HTTP 500", 0),
            (Reply(503, headers={"Retry-After": "5"}), "HTTP 503", 5),
            (Reply(302, headers={"Location": "http://127.0.0.1:1/"}), "HTTP 302, not followed", 0),
            (Reply(200, b"<html>"), "not what version 2", 0),
            (Reply(200, b'{"data": {}}'), "not what version 2", 0),
            (Reply(200, b"[]"), "not what version 2", 0),
            (Reply(reset="after"), "the connection ended without an answer", 0),
            (Reply(200, b"{}", delay=3), "no answer in time", 0),
            (Reply(200, b"x" * 100, pause=0.1), "did not end in time", 0),
            (Reply(200, b"{", length=50), "the connection ended before", 0),
        ],
        ids=lambda value: f"{value.status}-{value.reset or ''}" if isinstance(value, Reply) else "",
    )
    def test_is_a_reason_without_its_text_and_no_other_request_suffers(
        self, api: CloudApi, cloud: Cloud, reply: Reply, reason: str, pause: float
    ) -> None:
        api.add_run(1)
        api.server.script(reply)
        with pytest.raises(CloudError, match=reason) as caught:
            cloud.run(1)
        assert caught.value.pause == pause
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
        assert caught.value.pause
        assert caught.value.pause > 360 * 86400

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("name", ["run_results.json", "manifest.json"])
    def test_a_missing_or_broken_artifact_leaves_no_folder_and_is_fetched_again(
        self, api: CloudApi, artifacts: Artifacts, name: str
    ) -> None:
        for broken in (None, b"", b"{", b"[]", b"<html>"):
            api.add_run(1)
            del api.files[1, 2, name]
            if broken is not None:
                api.files[1, 2, name] = broken
            with pytest.raises(CloudError, match=rf"{name} of step 2: (HTTP 404|no JSON object)"):
                fetched(artifacts)
            assert artifacts.of(Run(1, JOB, 0, 0)) == []
        api.add_run(1)
        assert len(fetched(artifacts)) == 1, "what was left half does not count"

    def test_a_manifest_of_many_megabytes_is_fetched_whole(self, api: CloudApi, cloud: Cloud) -> None:
        api.add_run(1)
        api.files[1, 2, "manifest.json"] = large = b'{"x": "' + b"y" * 30_000_000 + b'"}'
        assert cloud.artifact(1, "manifest.json", 2) == large

    def test_results_that_are_not_what_dbt_writes_are_a_failure(self, api: CloudApi, artifacts: Artifacts) -> None:
        api.add_run(1)
        api.files[1, 2, "run_results.json"] = b'{"metadata": {}, "results": [{}], "args": {"which": "run"}}'
        with pytest.raises(Unfit, match="not what dbt writes") as unfit:
            fetched(artifacts)
        assert unfit.value.is_failure


@pytest.mark.guarantee("dbt Cloud")
def test_waits_grow_to_a_limit_and_heed_what_the_api_asks_up_to_an_hour() -> None:
    patience = Patience(first=5, most=600)
    waits = [patience.wait(tries) for tries in range(1, 40)]
    assert all(2.5 <= wait <= 600 for wait in waits)
    assert min(waits[10:]) >= 300
    assert patience.wait(9, most=60) <= 60
    assert patience.wait(1, 120) == 120
    assert patience.wait(1, 1e15) == 3600
