"""`dbt-reverse-etl serve` as a real process, before a server that speaks dbt Cloud's documented API, which is not dbt Cloud itself."""

from __future__ import annotations

import itertools
import signal
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import SECRET, TOKEN, event, fetch, post, results, signature
from tests.support.servers.http import Reply

Serving = tuple[World, str]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server for all tests that need none of their own."""
    world = World(tmp_path_factory.mktemp("one") / "shop")
    with world.serving() as url:
        yield world, url
    world.close()


@pytest.fixture
def run_id() -> int:
    """A run that no other test has; the ten after it are free, too."""
    return next(_numbers) * 100


@pytest.mark.guarantee("dbt Cloud")
def test_a_webhook_of_the_documented_api_is_answered_within_a_second_and_its_run_is_pushed_once(
    serving: Serving, run_id: int
) -> None:
    world, url = serving
    world.api.add_run(run_id)
    began = time.monotonic()
    assert post(url, event(run_id)) == (200, {"result": "queued"})
    assert time.monotonic() - began < 1
    world.wait(run_id)
    assert post(url, event(run_id)) == (200, {"result": "known"})
    assert post(url, event(run_id, eventId="wev_of_a_second_webhook")) == (200, {"result": "known"})
    assert world.pushed(run_id) == ["begun", "pushed"]


def test_the_api_of_the_tests_is_asked_as_the_documentation_says(world: World) -> None:
    with world.serving() as url:
        world.api.add_run(1)
        post(url, event(1))
        world.wait(1)
    paths = [request.path.removeprefix("/api/v2/accounts/12/") for request in world.api.server.received]
    assert paths == [
        "runs/?job_definition_id=345&status=10&order_by=-finished_at&limit=50&offset=0",
        "runs/1/?include_related=%5B%22run_steps%22%5D",
        "runs/1/artifacts/run_results.json?step=2",
        "runs/1/artifacts/manifest.json?step=2",
    ]


@pytest.mark.guarantee("dbt Cloud")
def test_a_webhook_is_answered_within_a_second_while_a_push_and_the_api_are_slow(serving: Serving, run_id: int) -> None:
    world, url = serving
    held = world.hold(run_id)
    for number in range(3):
        world.api.add_run(run_id + number)
    post(url, event(run_id))
    wait_for(lambda: world.state(run_id) == "pushing", "never pushed")
    for number, state in ((1, "pushing"), (2, "fetching")):
        began = time.monotonic()
        assert post(url, event(run_id + number)) == (200, {"result": "queued"})
        assert time.monotonic() - began < 1
        if state == "pushing":
            world.api.server.script(Reply(503, b"", delay=2))
            held.unlink()
            wait_for(lambda: world.state(run_id + 1) == "fetching", "never fetched")
    world.wait(run_id + 2)


class TestWhatIsRefused:
    @pytest.mark.guarantee("dbt Cloud")
    def test_a_wrong_signature(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        body = event(run_id)
        for header in ("", "0" * 64, signature(body)[:-1], signature(body, "another secret of mine"), "\xe9" * 64):
            assert post(url, body, header) == (401, {"error": "the signature is wrong"})
        altered = body.replace(f'"runId": "{run_id}"'.encode(), f'"runId": "{run_id + 1}"'.encode())
        assert altered != body
        assert post(url, altered, signature(body))[0] == 401
        assert {run_id, run_id + 1}.isdisjoint(world.runs())

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_signed_body_that_is_no_event(self, serving: Serving, run_id: int) -> None:
        _, url = serving
        bodies = [
            b"",
            b"{",
            b"[]",
            b'{"eventId": 1}',
            b"\xff" * 9,
            event(run_id, runId="one"),
            event(run_id, runId="-1"),
        ]
        bodies += [event(run_id, timestamp="yesterday"), event(run_id, runId="9" * 30), event(run_id, eventId="")]
        for body in bodies:
            assert post(url, body) == (400, {"error": "the body is no event of dbt Cloud"}), body

    @pytest.mark.guarantee("dbt Cloud")
    def test_an_event_that_is_old_or_of_the_future(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        now = datetime.now(timezone.utc)
        for at in (now - timedelta(hours=2), now + timedelta(hours=1)):
            assert post(url, event(run_id, timestamp=at.isoformat()))[0] == 400
        assert run_id not in world.runs()
        assert post(url, event(run_id, timestamp=(now - timedelta(minutes=50)).isoformat()))[0] == 200

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_body_over_the_cap_with_or_without_a_length(self, serving: Serving) -> None:
        _, url = serving
        assert post(url, b"x" * (64 * 1024 + 1))[0] == 413
        with connected(url) as endless:
            endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(5):
                endless.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            assert b" 413 " in endless.recv(4096)

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_body_that_does_not_end_in_time(self, serving: Serving) -> None:
        with connected(serving[1]) as silent:
            silent.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            assert b" 408 " in silent.recv(4096)

    def test_another_method_or_path(self, serving: Serving) -> None:
        _, url = serving
        for method, path, status in (("GET", "webhook", 405), ("POST", "metrics", 405), ("GET", "", 404)):
            request = urllib.request.Request(f"{url}/{path}", method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == status

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(
        "changes",
        [
            {"accountId": 13},
            {"eventType": "job.run.started"},
            {"eventType": "job.run.errored"},
            {"jobId": "999"},
            {"runStatusCode": 20},
        ],
        ids="-".join,
    )
    def test_what_does_not_concern_us_is_taken_without_a_row_so_that_dbt_cloud_goes_on_sending(
        self, serving: Serving, run_id: int, changes: dict[str, object]
    ) -> None:
        world, url = serving
        status, answer = post(url, event(run_id, **changes))
        assert status == 200
        assert answer["result"].startswith("ignored: ")
        assert run_id not in world.runs()


HEAD = b"POST /webhook HTTP/1.1\r\nHost: x\r\nAuthorization: " + b"0" * 64 + b"\r\n"


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=15)


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
    assert any(file.name.startswith("queue.db") for file in written)
    assert "the token is not accepted" in world.logs()
    for text in [metrics, *(file.read_bytes().decode("latin-1") for file in written)]:
        for secret in (TOKEN, SECRET):
            assert secret not in text


def test_metrics_are_what_prometheus_reads_and_count_what_happened(world: World) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    world.codes(1, "2")
    with world.serving() as url:
        for run_id, state in ((1, "failed"), (2, "done")):
            world.api.add_run(run_id)
            post(url, event(run_id))
            world.wait(run_id, state)
        post(url, event(2), "wrong")
        page = urllib.request.urlopen(f"{url}/metrics").read().decode()
        states = {"queued": 0, "fetching": 0, "pushing": 0, "done": 1, "failed": 1}
        assert fetch(f"{url}/healthz") == (200, {"status": "ok", "runs": states})
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["dbt_reverse_etl_webhooks_total", "queued"] == 2
    assert samples["dbt_reverse_etl_webhooks_total", "refused"] == 1
    assert samples["dbt_reverse_etl_runs", "failed"] == 1
    assert samples["dbt_reverse_etl_pushes_total", "2"] == 1
    assert samples["dbt_reverse_etl_pushes_total", "0"] == 1
    assert samples[("dbt_reverse_etl_push_seconds_count",)] == 2
    assert samples["dbt_reverse_etl_api_answers_total", "200"] == 7
    assert samples["dbt_reverse_etl_last_done_timestamp_seconds", "345"] == pytest.approx(time.time(), abs=60)


@pytest.mark.guarantee("dbt Cloud")
def test_what_the_queue_cannot_keep_is_not_acknowledged(serving: Serving, run_id: int) -> None:
    world, url = serving
    world.api.add_run(run_id)
    blocker = sqlite3.connect(world.folder / ".reverse-etl-queue/queue.db", isolation_level=None)
    blocker.execute("begin exclusive")
    assert post(url, event(run_id))[0] == 503
    blocker.execute("rollback")
    blocker.close()
    assert post(url, event(run_id)) == (200, {"result": "queued"})
    world.wait(run_id)


class TestHowItEnds:
    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_push_that_runs_is_told_to_end_and_the_next_start_goes_on(
        self, world: World, number: signal.Signals
    ) -> None:
        held = world.hold(1)
        served = world.start()
        world.api.add_run(1)
        post(served.url, event(1))
        wait_for(lambda: world.pushed(1), "never pushed")
        began = time.monotonic()
        assert served.stop(number) == 0
        assert time.monotonic() - began < 8
        run = world.runs()[1]
        assert (run.state.value, run.pushes) == ("queued", 0)
        held.unlink()
        with world.serving():
            world.wait(1)
        assert world.pushed(1) == ["begun", "begun", "pushed"]

    def test_a_second_process_on_one_queue_leaves_with_the_code_for_busy(self, serving: Serving) -> None:
        second = serving[0].start("poll")
        assert second.wait(20) == 4
        assert "another `serve` or `poll`" in second.log.read_text()

    def test_an_address_that_is_taken_is_an_error_with_a_next_step(self, world: World) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            world.configure(listen=f"127.0.0.1:{taken.getsockname()[1]}")
            served = world.start()
            assert served.wait(20) == 1
        assert "change `listen`" in served.log.read_text()


class TestThePush:
    @pytest.mark.guarantee("dbt Cloud")
    def test_the_real_push_is_run_and_its_exit_code_for_a_wrong_configuration_is_recorded(self, world: World) -> None:
        """Its profile is no Spark session, so it ends before any Spark."""
        (world.folder / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: shop\n")
        del world.settings["push_command"]
        world.configure()
        with (world.folder / "profiles.yml").open("a") as file:
            file.write("shop: {target: prod, outputs: {prod: {type: duckdb, schema: shop}}}\n")
        with world.serving() as url:
            world.api.add_run(1)
            post(url, event(1))
            run = world.wait(1, "failed")
        assert (run.exit_code, run.reason) == (2, "exit code 2: the configuration is wrong")
        assert "type: spark with method: session" in world.logs()

    @pytest.mark.guarantee("dbt Cloud")
    def test_one_that_crashes_leaves_the_server_up_and_is_tried_again(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        world.codes(run_id, "-9 1 0")
        world.api.add_run(run_id)
        post(url, event(run_id))
        run = world.wait(run_id)
        assert fetch(f"{url}/healthz")[0] == 200
        assert (run.exit_code, run.pushes) == (0, 3)

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(("code", "pushes"), [(1, 3), (4, 3), (3, 1), (5, 1)])
    def test_what_may_pass_is_tried_again_to_a_limit_and_what_needs_a_person_is_not(
        self, serving: Serving, run_id: int, code: int, pushes: int
    ) -> None:
        world, url = serving
        world.codes(run_id, f"{code} " * 9)
        world.api.add_run(run_id)
        post(url, event(run_id))
        run = world.wait(run_id, "failed")
        assert (run.exit_code, run.pushes) == (code, pushes)

    def test_one_that_cannot_be_started_fails_the_run_and_not_the_server(self, world: World) -> None:
        world.configure(push_command=["/nowhere/dbt-reverse-etl"])
        with world.serving() as url:
            world.api.add_run(1)
            post(url, event(1))
            assert "cannot be started" in world.wait(1, "failed").reason
            assert fetch(f"{url}/healthz")[0] == 200


class TestArtifactsOfARun:
    def test_stay_when_its_push_failed_until_a_newer_run_of_the_job_has_ended(self, world: World) -> None:
        world.codes(1, "3")
        folder = world.folder / ".reverse-etl-queue/runs"
        with world.serving() as url:
            for run_id, state in ((1, "failed"), (2, "done")):
                world.api.add_run(run_id)
                post(url, event(run_id))
                world.wait(run_id, state)
                left = {"failed": ["1"], "done": []}[state]
                wait_for(lambda left=left: [file.name for file in folder.iterdir()] == left, "not as it should be")


class TestSeveralRuns:
    @pytest.mark.guarantee("dbt Cloud")
    def test_a_newer_run_that_did_the_same_supersedes_one_that_waits(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        held = world.hold(run_id)
        for number in range(3):
            world.api.add_run(run_id + number)
        post(url, event(run_id))
        wait_for(lambda: world.state(run_id) == "pushing", "never pushed")
        post(url, event(run_id + 1))
        post(url, event(run_id + 2))
        held.unlink()
        world.wait(run_id + 2)
        assert world.wait(run_id + 1).reason == f"superseded by run {run_id + 2}, which did the same"
        assert world.pushed(run_id + 1) == []

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_newer_run_with_other_steps_supersedes_none(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        held = world.hold(run_id)
        world.api.add_run(run_id)
        world.api.add_run(run_id + 1)
        world.api.add_run(run_id + 2, {"dbt run --select b": results(f"inv-{run_id + 2}")})
        post(url, event(run_id))
        wait_for(lambda: world.state(run_id) == "pushing", "never pushed")
        post(url, event(run_id + 1))
        post(url, event(run_id + 2))
        held.unlink()
        for number in range(3):
            world.wait(run_id + number)
            assert world.pushed(run_id + number) == ["begun", "pushed"]

    def test_many_webhooks_at_once_are_each_kept_once(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        ids = [run_id + number for number in range(20)]
        with ThreadPoolExecutor(8) as many:
            answers = list(many.map(lambda one: post(url, event(one))[1]["result"], ids * 3))
        assert answers.count("queued") == 20
        assert answers.count("known") == 40
        assert set(ids) <= set(world.runs())
