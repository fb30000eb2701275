"""`dbt-reverse-etl poll`: no inbound port, the same queue and the same worker."""

from __future__ import annotations

import signal

import pytest

from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import JOB, event, post
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
    assert set(world.runs()) == set(range(1, 122))
    assert world.pushed(121) == ["begun", "pushed"]
    assert all(world.pushed(run_id) == [] for run_id in range(2, 121)), "one push stands for them"


@pytest.mark.guarantee("dbt Cloud")
def test_a_run_that_ends_late_is_found_although_a_newer_one_is_known(world: World) -> None:
    for run_id in (5, 7, 6):
        world.api.add_run(run_id)
        assert once(world) == 0
    assert set(world.runs()) == {5, 6, 7}


class TestTheExitCodeOfOnce:
    def test_is_that_of_the_push(self, world: World) -> None:
        world.api.add_run(1)
        world.codes(1, "3")
        assert once(world) == 3
        assert once(world) == 0

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
        assert world.state(1) == "queued"
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


@pytest.mark.guarantee("dbt Cloud")
def test_serve_finds_by_itself_the_run_whose_webhook_was_lost(world: World) -> None:
    world.configure(poll_interval=1)
    with world.serving() as url:
        world.api.add_run(1)
        world.wait(1)
        assert post(url, event(1))[1] == {"result": "known"}
    assert world.pushed(1) == ["begun", "pushed"]
