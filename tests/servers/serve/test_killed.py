"""`serve` and `poll` killed, or told to end, between any two steps: the next start goes on, and the run is pushed once."""

from __future__ import annotations

import re
import urllib.error
from http.client import HTTPException

import pytest

from tests.support.serve.world import ROOT, World, wait_for
from tests.support.servers.cloud_api import event, post, results

OF_THE_WEBHOOK = ["received"]
OF_THE_WORKER = ["looked", "taken", "asked", "written", "fetched", "pushing", "pushed", "ended"]
KILLED = -9


@pytest.mark.guarantee("dbt Cloud")
def test_every_step_of_the_code_is_one_at_which_it_is_killed() -> None:
    package = ROOT / "python/dbt_reverse_etl/serve"
    steps = {name for file in package.glob("*.py") for name in re.findall(r'step\("(\w+)"\)', file.read_text())}
    assert steps == {*OF_THE_WEBHOOK, *OF_THE_WORKER}


@pytest.mark.guarantee("dbt Cloud")
def test_a_webhook_that_a_kill_left_without_an_answer_need_not_be_sent_again(world: World) -> None:
    served = world.start(kill_at="received")
    url = served.url
    wait_for(lambda: world.api.asked("order_by"), "it never asked")
    world.api.add_run(1)
    with pytest.raises((OSError, HTTPException, urllib.error.URLError)):
        post(url, event(1))
    assert served.wait(10) == KILLED
    with world.serving():
        world.wait(1)
    assert world.pushed(1) == ["begun", "pushed"]


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("step", OF_THE_WORKER)
def test_a_run_that_was_in_hand_when_the_process_was_killed_is_pushed_once_by_the_next(world: World, step: str) -> None:
    world.api.add_run(1)
    killed = world.start("poll", "--once", kill_at=step)
    assert killed.wait(20) == KILLED
    assert world.state(1) == ("done" if step == "ended" else "waiting")
    next_one = world.start("poll", "--once")
    assert next_one.wait(20) == 0, next_one.log.read_text()
    assert world.state(1) == "done"
    assert world.pushed(1).count("pushed") == 1
    assert world.pushed(1).count("begun") == 1
    assert list((world.kept / "runs").iterdir()) == [], "nobody needs them"


@pytest.mark.full
@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("step", OF_THE_WORKER)
def test_a_run_that_was_in_hand_when_the_process_was_told_to_end_is_pushed_once_by_the_next(
    world: World, step: str
) -> None:
    world.api.add_run(1)
    told = world.start("poll", end_at=step)
    assert told.wait(10) == 0, told.log.read_text()
    assert world.state(1) == ("done" if step in ("pushed", "ended") else "waiting")
    if world.state(1) == "waiting":
        assert world.runs()[1].tries == 0, "it is as if it had not been begun"
    next_one = world.start("poll", "--once")
    assert next_one.wait(20) == 0, next_one.log.read_text()
    assert world.state(1) == "done"
    assert world.pushed(1) == ["begun", "pushed"]


@pytest.mark.guarantee("dbt Cloud")
def test_a_push_that_outlives_its_killed_server_is_waited_for_and_not_pushed_beside(world: World) -> None:
    held = world.hold(1)
    served = world.start()
    url = served.url
    world.api.add_run(1)
    post(url, event(1))
    world.wait_for_push(1)
    served.process.kill()
    assert served.wait(10) == KILLED
    with world.serving() as url:
        wait_for(lambda: world.runs()[1].tries == 2, "never taken up")
        assert post(url, event(2))[0] == 200, "webhooks are taken meanwhile"
        assert world.pushed(1) == ["begun"], "no second push beside the first"
        held.unlink()
        world.wait(1)
    assert world.pushed(1) == ["begun", "pushed", "again"]


@pytest.mark.guarantee("dbt Cloud")
def test_a_run_that_kills_the_process_with_each_push_is_given_up_and_others_go_on(world: World) -> None:
    world.api.add_run(1)
    assert world.start("poll", "--once", kill_at="written").wait(20) == KILLED
    world.api.add_run(2, {"dbt run --select b": results("inv-2")})
    for _ in range(3):
        assert world.start("poll", "--once", kill_at="pushing").wait(20) == KILLED
    assert world.start("poll", "--once").wait(20) == 1
    assert world.runs()[1].reason == "not tried again: each try ended with our own process"
    assert world.state(2) == "done"
