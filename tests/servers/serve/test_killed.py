"""`serve` and `poll` killed between any two steps: the next start goes on, and the run is pushed once."""

from __future__ import annotations

import re
import urllib.error
from http.client import HTTPException

import pytest

from tests.support.serve.world import ROOT, World, wait_for
from tests.support.servers.cloud_api import event, post

OF_THE_WEBHOOK = ["received", "queued"]
OF_THE_WORKER = ["taken", "asked", "written", "fetched", "pushing", "pushed", "ended"]
KILLED = -9


@pytest.mark.guarantee("dbt Cloud")
def test_every_step_of_the_code_is_one_at_which_it_is_killed() -> None:
    package = ROOT / "python/dbt_reverse_etl/serve"
    steps = {name for file in package.glob("*.py") for name in re.findall(r'step\("(\w+)"\)', file.read_text())}
    assert steps == {*OF_THE_WEBHOOK, *OF_THE_WORKER}


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("step", OF_THE_WEBHOOK)
def test_a_webhook_that_a_kill_left_without_an_answer_is_sent_again_and_pushed_once(world: World, step: str) -> None:
    served = world.start(kill_at=step)
    url = served.url
    wait_for(lambda: world.api.asked("order_by"), "it never asked")
    world.api.add_run(1)
    with pytest.raises((OSError, HTTPException, urllib.error.URLError)):
        post(url, event(1))
    assert served.wait(10) == KILLED
    assert world.state(1) == ("queued" if step == "queued" else "unknown")
    del world.api.runs[1]  # so that only the webhook can tell of it
    with world.serving() as url:
        world.api.add_run(1)
        assert post(url, event(1))[1]["result"] == ("known" if step == "queued" else "queued")
        world.wait(1)
    assert world.pushed(1).count("pushed") == 1


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("step", OF_THE_WORKER)
def test_a_run_that_was_in_hand_when_the_process_was_killed_is_pushed_once_by_the_next(world: World, step: str) -> None:
    world.api.add_run(1)
    killed = world.start("poll", "--once", kill_at=step)
    assert killed.wait(20) == KILLED
    assert world.state(1) == {"ended": "done", "pushing": "pushing", "pushed": "pushing"}.get(step, "fetching")
    next_one = world.start("poll", "--once")
    assert next_one.wait(20) == 0, next_one.log.read_text()
    assert world.state(1) == "done"
    assert world.pushed(1).count("pushed") == 1
    assert world.pushed(1).count("begun") == 1
    left = [file.name for file in (world.folder / ".reverse-etl-queue/runs").iterdir()]
    assert left == (["1"] if step == "ended" else []), "nobody needs them; those of `ended` go with the row"


@pytest.mark.guarantee("dbt Cloud")
def test_a_push_that_outlives_its_killed_server_is_waited_for_and_not_pushed_beside(world: World) -> None:
    held = world.hold(1)
    served = world.start()
    url = served.url
    world.api.add_run(1)
    post(url, event(1))
    wait_for(lambda: world.pushed(1) == ["begun"], "never pushed")
    served.process.kill()
    assert served.wait(10) == KILLED
    with world.serving() as url:
        wait_for(lambda: world.state(1) == "pushing", "never taken up")
        assert post(url, event(2))[0] == 200, "webhooks are taken meanwhile"
        assert world.pushed(1) == ["begun"], "no second push beside the first"
        held.unlink()
        world.wait(1)
    assert world.pushed(1) == ["begun", "pushed", "again"]
