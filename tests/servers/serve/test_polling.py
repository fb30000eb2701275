"""`dbt-reverse-etl poll`: no inbound port, the same position and the same worker."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta, timezone

import orjson
import pytest

from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import JOB, event, post, results
from tests.support.servers.http import Reply


def once(world: World) -> int:
    return world.start("poll", "--once").wait(20)


@pytest.mark.guarantee("dbt Cloud")
def test_each_run_that_ended_with_success_is_pushed_once_and_the_first_time_only_the_newest(world: World) -> None:
    world.api.add_run(1)
    world.api.add_run(2)
    assert once(world) == 0
    assert set(world.runs()) == {2}
    assert once(world) == 0
    world.api.add_run(3)
    world.api.add_run(4, status=20)
    world.api.add_run(5, job=999)
    assert once(world) == 0
    assert set(world.runs()) == {2, 3}, "neither a failed run nor one of another job"
    assert world.pushed(2) == world.pushed(3) == ["begun", "pushed"]


@pytest.mark.guarantee("dbt Cloud")
def test_runs_of_a_long_absence_are_found_over_several_pages(world: World) -> None:
    world.api.add_run(1)
    assert once(world) == 0
    for run_id in range(2, 122):
        world.api.add_run(run_id)
    assert once(world) == 0
    assert [run_id for run_id in range(2, 122) if not world.api.asked(f"runs/{run_id}/?")] == [], "each was looked at"
    assert world.pushed(121) == ["begun", "pushed"]
    assert all(world.pushed(run_id) == [] for run_id in range(2, 121)), "one push stands for them"


@pytest.mark.guarantee("dbt Cloud")
def test_a_run_that_ends_late_is_found_although_a_newer_one_is_known(world: World) -> None:
    for run_id in (5, 7, 6):
        world.api.add_run(run_id)
        assert once(world) == 0
    assert set(world.runs()) == {5, 6, 7}


@pytest.mark.guarantee("dbt Cloud")
def test_a_run_that_still_ran_when_a_later_one_was_pushed_is_pushed_once_it_has_ended(world: World) -> None:
    for run_id, minute in ((1, 1), (3, 3), (2, 500)):
        world.api.add_run(run_id, {f"dbt run --select {run_id}": results(f"inv-{run_id}")}, minute=minute)
        assert once(world) == 0
    assert [note.split()[1] for note in world.notes() if note.startswith("pushed")] == ["inv-1", "inv-3", "inv-2"]


@pytest.mark.guarantee("dbt Cloud")
def test_the_clocks_of_dbt_cloud_and_of_this_machine_need_not_agree(world: World) -> None:
    """Its runs finished in another year, the position follows them alone."""
    for run_id, minute in ((1, -(10**6)), (2, -(10**6) + 90), (3, 10**6)):
        world.api.add_run(run_id, minute=minute)
        assert once(world) == 0
        assert world.pushed(run_id) == ["begun", "pushed"]


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("name", ["run_results.json", "manifest.json"])
def test_a_run_whose_artifacts_come_later_or_broken_is_fetched_again_and_pushed_once(world: World, name: str) -> None:
    world.api.add_run(1)
    whole = world.api.files[1, 2, name]
    for broken in (None, whole[:-1]):
        world.api.files.pop((1, 2, name))
        if broken:
            world.api.files[1, 2, name] = broken
        assert once(world) == 1
        assert world.pushed(1) == []
        world.api.files[1, 2, name] = whole
    assert once(world) == 0
    assert world.pushed(1) == ["begun", "pushed"]


@pytest.mark.guarantee("dbt Cloud")
def test_an_outage_of_the_api_is_survived_and_what_stays_wrong_is_given_up_without_holding_up_another(
    world: World,
) -> None:
    world.api.add_run(1)
    world.api.server.script(*[Reply(503)] * 5)
    served = world.start("poll")
    world.wait(1)
    world.api.add_run(2)
    del world.api.files[2, 2, "manifest.json"]
    world.api.add_run(3, {"dbt run --select b": results("inv-3")})
    assert served.stop() == 0
    served = world.start("poll")
    assert "HTTP 404, there is no such file or run" in world.wait(2, "failed").reason
    world.wait(3)
    assert served.stop() == 0


class TestTheExitCodeOfOnce:
    def test_is_that_of_the_push(self, world: World) -> None:
        world.api.add_run(1)
        world.codes(1, "3")
        assert once(world) == 3
        assert once(world) == 0

    @pytest.mark.guarantee("dbt Cloud")
    def test_tells_of_an_api_that_does_not_answer(self, world: World) -> None:
        world.api.server.script(Reply(500))
        assert once(world) == 1
        world.api.server.script(Reply(reset="after"))
        assert once(world) == 1

    def test_is_that_of_an_interrupt_and_the_next_call_goes_on(self, world: World) -> None:
        world.api.add_run(1)
        held = world.hold(1)
        polling = world.start("poll", "--once")
        wait_for(lambda: world.pushed(1), "never pushed")
        assert polling.stop(signal.SIGTERM) == 130
        held.unlink()
        assert once(world) == 0
        assert world.pushed(1) == ["begun", "begun", "pushed"]

    def test_tells_of_a_run_that_is_to_be_tried_again(self, world: World) -> None:
        world.api.add_run(1)
        world.codes(1, "1")
        assert once(world) == 1
        assert world.state(1) == "waiting"
        wait_for(lambda: once(world) == 0 and world.state(1) == "done", "never pushed")


def test_it_asks_again_and_again_and_ends_at_sigterm(world: World) -> None:
    world.configure(poll_interval=1)
    del world.settings["webhook_secret"]
    world.configure()
    polling = world.start("poll")
    wait_for(lambda: world.api.asked(f"job_definition_id={JOB}"), "it never asked")
    world.api.add_run(1)
    world.wait(1)
    assert polling.stop(signal.SIGTERM) == 0


def test_each_line_of_the_log_has_a_time_and_a_level_or_is_one_json_object(world: World) -> None:
    world.codes(1, "1")
    world.api.add_run(1)
    timed = world.start("poll", "--once")
    assert timed.wait(20) == 1
    as_json = world.start("poll", "--once", "--log-format", "json")
    assert as_json.wait(20) == 0
    lines = timed.log.read_text().splitlines()
    assert {line.split()[1] for line in lines} == {"info", "warn"}
    levels = [(orjson.loads(line)["at"], orjson.loads(line)["level"]) for line in as_json.log.read_text().splitlines()]
    assert len(levels) >= 2
    for at in (*(line.split()[0] for line in lines), *(at for at, _ in levels)):
        assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(at)) < timedelta(minutes=1)


@pytest.mark.guarantee("dbt Cloud")
def test_serve_finds_by_itself_the_run_whose_webhook_was_lost(world: World) -> None:
    world.configure(poll_interval=1)
    with world.serving() as url:
        world.api.add_run(1)
        world.wait(1)
        assert post(url, event(1))[1] == {"result": "accepted"}
    assert world.pushed(1) == ["begun", "pushed"]
