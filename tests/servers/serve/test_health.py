"""What `serve` tells and what it keeps for itself: health, metrics, secrets, files."""

from __future__ import annotations

import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import SECRET, TOKEN, event, fetch, post
from tests.support.servers.http import Reply


@pytest.mark.guarantee("dbt Cloud")
def test_no_secret_is_in_any_line_or_file_also_when_everything_fails(world: World) -> None:
    """The API refuses the token and echoes it; bodies of webhooks and of answers hold both secrets."""
    with world.serving() as url:
        world.api.add_run(1)
        world.api.server.script(Reply(401, TOKEN.encode()), Reply(500, f"{TOKEN} {SECRET}".encode()))
        post(url, event(1, webhookName=SECRET, runReason=TOKEN))
        post(url, event(1, runReason=TOKEN), "wrong")
        post(url, f"{TOKEN} {SECRET}".encode())
        world.wait(1)
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
    written = [file for file in world.folder.rglob("*") if file.is_file()]
    assert world.kept / "position.json" in written
    assert "the token is not accepted" in world.logs()
    for text in [metrics, *(file.read_bytes().decode("latin-1") for file in written)]:
        for secret in (TOKEN, SECRET):
            assert secret not in text


def metrics(url: str) -> dict[tuple[str, ...], float]:
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    families = text_string_to_metric_families(page)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_metrics_and_health_are_what_prometheus_reads_and_count_what_happened(world: World) -> None:
    world.codes(1, "2 2 2")
    with world.serving() as url:
        world.api.add_run(1)
        post(url, event(1))
        world.wait(1, "failed")
        health = {"status": "ok", "dbt_cloud": "ok", "runs": {"waiting": 0, "untimed": 0, "failed": 1, "overtaken": 0}}
        wait_for(lambda: fetch(f"{url}/healthz") == (200, health), "health says something else")
        assert metrics(url)["dbt_reverse_etl_runs", "failed"] == 1
        world.api.add_run(2)
        post(url, event(2))
        world.wait(2)
        post(url, event(2), "wrong")
        health["runs"] = {"waiting": 0, "untimed": 0, "failed": 0, "overtaken": 0}
        wait_for(lambda: fetch(f"{url}/healthz") == (200, health), "health says something else")
        samples = metrics(url)
    assert samples["dbt_reverse_etl_webhooks_total", "accepted"] == 2
    assert samples["dbt_reverse_etl_webhooks_total", "refused"] == 1
    assert samples["dbt_reverse_etl_runs", "failed"] == 0
    assert samples["dbt_reverse_etl_pushes_total", "2"] == 3
    assert samples["dbt_reverse_etl_pushes_total", "0"] == 1
    assert samples[("dbt_reverse_etl_push_seconds_count",)] == 4
    assert samples["dbt_reverse_etl_api_answers_total", "200"] == len(world.api.server.received)
    assert samples[("dbt_reverse_etl_oldest_open_run_seconds",)] == 0
    for name in ("last_done", "last_look"):
        at = samples[f"dbt_reverse_etl_{name}_timestamp_seconds", "345"]
        assert at == pytest.approx(time.time(), abs=60)


@pytest.mark.guarantee("dbt Cloud")
def test_an_api_that_does_not_answer_shows_in_health_and_metrics_until_it_does(world: World) -> None:
    with world.serving() as url:
        last_look = "dbt_reverse_etl_last_look_timestamp_seconds", "345"
        wait_for(lambda: metrics(url)[last_look], "it never looked")
        until = metrics(url)[last_look]
        answer, world.api.server.default = world.api.server.default, Reply(401)
        post(url, event(1))
        reason = "job 345: runs: HTTP 401, the token is not accepted"
        wait_for(lambda: fetch(f"{url}/healthz")[1]["dbt_cloud"] == reason, "it never showed")
        assert fetch(f"{url}/healthz")[0] == 200, "to start this process again would not mend it"
        samples = metrics(url)
        assert samples["dbt_reverse_etl_api_answers_total", "401"] >= 1
        assert samples[last_look] == until
        world.api.add_run(1)
        world.api.server.default = answer
        world.wait(1)
        wait_for(lambda: fetch(f"{url}/healthz")[1]["dbt_cloud"] == "ok", "health still tells of it")


@pytest.mark.guarantee("dbt Cloud")
def test_a_disk_on_which_nothing_can_be_noted_shows_in_health_and_the_run_is_pushed_once_it_can(world: World) -> None:
    with world.serving() as url:
        world.api.add_run(1)
        blocked = world.kept / "position.json.new"
        blocked.mkdir()
        post(url, event(1))
        wait_for(lambda: fetch(f"{url}/healthz")[0] == 503, "it never showed")
        assert world.pushed(1) == []
        blocked.rmdir()
        world.wait(1)
        wait_for(lambda: fetch(f"{url}/healthz")[0] == 200, "it stays broken")


def test_what_is_kept_is_for_nobody_else_to_read_and_a_push_keeps_the_rights_of_its_user(world: World) -> None:
    held = world.hold(1)
    (world.kept / "runs").mkdir(parents=True, mode=0o755)
    with world.serving() as url:
        world.api.add_run(1)
        post(url, event(1))
        world.wait_for_push(1)
        urllib.request.urlopen(f"{url}/report")
        held.unlink()
        wait_for((world.kept / "reports/prod/report.html").exists, "no report was made")
    everything = [world.kept, *world.kept.rglob("*")]
    assert {file.name for file in everything} >= {"position.json", "manifest.json", "report.html", "serve.lock"}
    for file in everything:
        assert file.stat().st_mode & 0o077 == 0, file
    assert (world.folder / "pushed.log").stat().st_mode & 0o044, "files of a destination are for others, too"
