"""`dbt-reverse-etl serve` as a real process, before a server that speaks dbt Cloud's documented API, which is not dbt Cloud itself."""

from __future__ import annotations

import itertools
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import event, fetch, post, results, signature
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
    assert post(url, event(run_id)) == (200, {"result": "accepted"})
    assert time.monotonic() - began < 1
    world.wait(run_id)
    looks = len(world.api.asked("order_by"))
    for again in (event(run_id), event(run_id, eventId="wev_of_a_second_webhook")):
        assert post(url, again) == (200, {"result": "accepted"})
    wait_for(lambda: len(world.api.asked("order_by")) > looks, "it never looked")
    assert world.pushed(run_id) == ["begun", "pushed"]


def test_the_api_of_the_tests_is_asked_as_the_documentation_says(world: World) -> None:
    with world.serving() as url:
        world.api.add_run(1)
        post(url, event(1))
        world.wait(1)
    paths = [request.path.removeprefix("/api/v2/accounts/12/") for request in world.api.server.received]
    assert paths == [
        "runs/?job_definition_id=345&status=10&order_by=-finished_at&limit=1&offset=0",
        "jobs/345/",
        "runs/?job_definition_id=345&status=10&order_by=-finished_at&limit=50&offset=0",
        "runs/1/?include_related=%5B%22run_steps%22%2C%22trigger%22%5D",
        "runs/1/artifacts/run_results.json?step=2",
        "runs/1/artifacts/manifest.json?step=2",
    ]


@pytest.mark.guarantee("dbt Cloud")
def test_a_webhook_is_answered_within_a_second_while_a_push_and_the_api_are_slow(serving: Serving, run_id: int) -> None:
    world, url = serving

    def answers(number: int) -> None:
        world.api.add_run(number)
        began = time.monotonic()
        assert post(url, event(number)) == (200, {"result": "accepted"})
        assert time.monotonic() - began < 1

    held = world.hold(run_id)
    answers(run_id)
    world.wait_for_push(run_id)
    answers(run_id + 1)
    received = len(world.api.server.received)
    world.api.server.script(Reply(503, b"", delay=2))
    held.unlink()
    wait_for(lambda: len(world.api.server.received) > received, "it never asked")
    answers(run_id + 2)
    world.wait(run_id + 2)


class TestWhatIsRefused:
    @pytest.mark.guarantee("dbt Cloud")
    def test_a_wrong_signature(self, world: World) -> None:
        with world.serving() as url, nobody_woken(world, url):
            body = event(1)
            for header in ("", "0" * 64, signature(body)[:-1], signature(body, "another secret of mine"), "\xe9" * 64):
                assert post(url, body, header) == (401, {"error": "the signature is wrong"})
            altered = body.replace(b'"runId": "1"', b'"runId": "2"')
            assert altered != body
            assert post(url, altered, signature(body))[0] == 401

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
        bodies += [event(run_id, timestamp="yesterday"), event(run_id, runId="9" * 30), event(run_id, accountId=0)]
        for body in bodies:
            assert post(url, body) == (400, {"error": "the body is no event of dbt Cloud"}), body

    @pytest.mark.guarantee("dbt Cloud")
    def test_an_event_that_is_old_or_of_the_future(self, serving: Serving, run_id: int) -> None:
        _, url = serving
        now = datetime.now(timezone.utc)
        for at in (now - timedelta(hours=2), now + timedelta(hours=1)):
            assert post(url, event(run_id, timestamp=at.isoformat()))[0] == 400
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

    def test_another_method_or_path(self, serving: Serving) -> None:
        _, url = serving
        for method, path, status in (("GET", "webhook", 405), ("POST", "metrics", 405), ("GET", "", 404)):
            request = urllib.request.Request(f"{url}/{path}", method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == status

    @pytest.mark.guarantee("dbt Cloud")
    def test_what_does_not_concern_us_is_taken_without_a_look_so_that_dbt_cloud_goes_on_sending(
        self, world: World
    ) -> None:
        elsewhere: list[dict[str, object]] = [
            {"accountId": 13},
            {"eventType": "job.run.started"},
            {"eventType": "job.run.errored"},
            {"jobId": "999"},
            {"runStatusCode": 20},
        ]
        with world.serving() as url, nobody_woken(world, url):
            for changes in elsewhere:
                status, answer = post(url, event(1, **changes))
                assert status == 200, changes
                assert answer["result"].startswith("ignored: "), changes


@contextmanager
def nobody_woken(world: World, url: str) -> Iterator[None]:
    """Afterwards a run that does concern us makes one look, and there was no other."""
    looks = len(world.api.asked("order_by"))
    yield
    world.api.add_run(9)
    post(url, event(9))
    world.wait(9)
    assert len(world.api.asked("order_by")) == looks + 1


HEAD = b"POST /webhook HTTP/1.1\r\nHost: x\r\nAuthorization: " + b"0" * 64 + b"\r\n"


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=15)


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
        world.wait_for_push(1)
        began = time.monotonic()
        assert served.stop(number) == 0
        assert time.monotonic() - began < 8
        run = world.runs()[1]
        assert (run.state.value, run.tries) == ("waiting", 0)
        held.unlink()
        with world.serving():
            world.wait(1)
        assert world.pushed(1) == ["begun", "begun", "pushed"]

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("command", ["serve", "poll"])
    def test_a_second_process_in_one_folder_leaves_with_the_code_for_busy(self, serving: Serving, command: str) -> None:
        world, url = serving
        listen = ("--listen", url.removeprefix("http://")) if command == "serve" else ()
        second = world.start(command, *listen)
        assert second.wait(20) == 4
        assert "another `serve` or `poll`" in second.log.read_text()

    def test_a_folder_that_cannot_be_written_is_an_error_with_a_next_step(self, world: World) -> None:
        world.configure(folder="/proc/nowhere")
        served = world.start("poll", "--once")
        assert served.wait(20) == 1
        assert "a folder that cannot be written" in served.log.read_text()

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
        assert run.reason == "not tried again: exit code 2, the configuration is wrong"
        assert "type: spark with method: session" in world.logs()

    @pytest.mark.guarantee("dbt Cloud")
    def test_one_that_crashes_leaves_the_server_up_and_is_tried_again(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        world.codes(run_id, "-9 1 0")
        world.api.add_run(run_id)
        post(url, event(run_id))
        world.wait(run_id)
        assert fetch(f"{url}/healthz")[0] == 200
        assert world.pushed(run_id) == ["begun", "begun", "begun", "pushed"]

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize(("code", "pushes"), [(1, 3), (4, 5), (3, 3), (5, 3), (2, 3)])
    def test_whatever_the_code_it_is_tried_again_to_a_limit(
        self, serving: Serving, run_id: int, code: int, pushes: int
    ) -> None:
        world, url = serving
        world.codes(run_id, f"{code} " * 9)
        world.api.add_run(run_id)
        post(url, event(run_id))
        run = world.wait(run_id, "failed")
        assert f"exit code {code}" in run.reason
        assert world.pushed(run_id) == ["begun"] * pushes

    def test_one_that_cannot_be_started_fails_the_run_and_not_the_server(self, world: World) -> None:
        world.configure(push_command=["/nowhere/dbt-reverse-etl"])
        with world.serving() as url:
            world.api.add_run(1)
            post(url, event(1))
            assert "cannot be started" in world.wait(1, "failed").reason
            assert fetch(f"{url}/healthz")[0] == 200


class TestArtifactsOfARun:
    def test_stay_when_its_push_failed_until_a_newer_run_of_the_job_was_pushed(self, world: World) -> None:
        world.codes(1, "2 2 2")
        folder = world.kept / "runs"
        with world.serving() as url:
            for run_id, state in ((1, "failed"), (2, "done")):
                world.api.add_run(run_id)
                post(url, event(run_id))
                world.wait(run_id, state)
                left = {"failed": ["1"], "done": []}[state]
                wait_for(lambda left=left: [file.name for file in folder.iterdir()] == left, "not as it should be")


class TestSeveralRuns:
    def each_is_pushed(self, serving: Serving, first: int, held: Path) -> None:
        """Three runs, of which two wait while the push of the first one is held."""
        world, url = serving
        for number in range(3):
            post(url, event(first + number))
            if number == 0:
                world.wait_for_push(first)
        held.unlink()
        for number in range(3):
            world.wait(first + number)
            assert world.pushed(first + number) == ["begun", "pushed"]

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_newer_run_that_did_the_same_supersedes_one_that_waits(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        held = world.hold(run_id)
        world.api.add_run(run_id)
        post(url, event(run_id))
        world.wait_for_push(run_id)
        for number in (run_id + 1, run_id + 2):
            world.api.add_run(number)
            post(url, event(number))
        held.unlink()
        world.wait(run_id + 2)
        assert world.wait(run_id + 1).reason == f"superseded by run {run_id + 2}, which did the same"
        assert world.pushed(run_id + 1) == []

    @pytest.mark.guarantee("dbt Cloud")
    @pytest.mark.parametrize("later", [{"model.b": "success"}, {"model.a": "error", "model.b": "success"}])
    def test_a_newer_run_whose_same_command_brought_other_models_supersedes_none(
        self, serving: Serving, run_id: int, later: dict[str, str]
    ) -> None:
        world, _ = serving
        held, command = world.hold(run_id), "dbt build --select source_status:fresher+"
        world.api.add_run(run_id)
        for number, rows in ((run_id + 1, {"model.a": "success"}), (run_id + 2, later)):
            world.api.add_run(number, {command: results(f"inv-{number}", "build", rows)})
        self.each_is_pushed(serving, run_id, held)

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_newer_run_with_other_steps_supersedes_none(self, serving: Serving, run_id: int) -> None:
        world, _ = serving
        held = world.hold(run_id)
        world.api.add_run(run_id)
        world.api.add_run(run_id + 1)
        world.api.add_run(run_id + 2, {"dbt run --select b": results(f"inv-{run_id + 2}")})
        self.each_is_pushed(serving, run_id, held)

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_run_whose_push_fails_again_and_again_does_not_hold_up_another(
        self, serving: Serving, run_id: int
    ) -> None:
        world, url = serving
        world.codes(run_id, "1 " * 9)
        world.api.add_run(run_id)
        world.api.add_run(run_id + 1, {"dbt run --select b": results(f"inv-{run_id + 1}")})
        held = world.hold(run_id + 1)
        post(url, event(run_id))
        world.wait_for_push(run_id + 1)
        assert world.state(run_id) == "waiting"
        held.unlink()
        world.wait(run_id + 1)
        world.wait(run_id, "failed")

    @pytest.mark.guarantee("dbt Cloud")
    def test_a_run_is_not_left_to_an_older_one_that_waits(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        world.codes(run_id, "1 " * 9)
        held = world.hold(run_id)
        world.api.add_run(run_id)
        post(url, event(run_id))
        world.wait_for_push(run_id)
        world.api.add_run(run_id + 1)
        post(url, event(run_id + 1))
        held.unlink()
        world.wait(run_id + 1)
        assert world.pushed(run_id + 1) == ["begun", "pushed"]

    def test_many_webhooks_at_once_push_each_run_at_most_once(self, serving: Serving, run_id: int) -> None:
        world, url = serving
        ids = [run_id + number for number in range(20)]
        for one in ids:
            world.api.add_run(one)
        with ThreadPoolExecutor(8) as many:
            answers = list(many.map(lambda one: post(url, event(one))[1]["result"], ids * 3))
        assert answers == ["accepted"] * 60
        for one in ids:
            world.wait(one)
            assert world.pushed(one) in ([], ["begun", "pushed"]), "each is pushed once, or left to a later one"
        assert world.pushed(ids[-1]) == ["begun", "pushed"]
