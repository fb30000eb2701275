"""Two runners of one sync: one wins, and one that slept cannot undo what came after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess

import pytest

from dbt_reverse_etl.base import owner
from tests.support.delivery.scene import SECOND, Place, Scene, state_of, wait_for
from tests.support.delivery.victim import KEYS

THIRD = {key: n + 20 for n, key in enumerate(KEYS)}
STOPPED = ("batch.before", 1)


def wait_until_stopped(process: ForkServerProcess) -> int:
    pid = process.pid
    assert pid is not None
    wait_for(lambda: state_of(pid) == "T")
    return pid


@pytest.mark.guarantee("Leases and rivals")
def test_of_two_runners_one_wins_and_the_other_leaves_having_sent_nothing(scene: Scene, place: Place) -> None:
    first = scene.start(kill=STOPPED, signal=signal.SIGSTOP)
    pid = wait_until_stopped(first)
    before, began = place.rows(), time.monotonic()
    assert scene.push() == 0
    assert scene.status == "busy"
    assert time.monotonic() - began < 5
    assert place.rows() == before
    os.kill(pid, signal.SIGCONT)
    first.join(60)
    assert first.exitcode == 0
    assert place.rows() == SECOND


@pytest.mark.guarantee("Leases and rivals")
def test_a_run_that_slept_through_its_lease_does_not_undo_newer_values(scene: Scene, place: Place) -> None:
    zombie = scene.start(kill=STOPPED, signal=signal.SIGSTOP, late=STOPPED)
    pid = wait_until_stopped(zombie)
    scene.capture(THIRD)
    assert scene.push(ahead=1) == 0
    assert place.rows() == THIRD
    os.kill(pid, signal.SIGCONT)
    zombie.join(60)
    assert zombie.exitcode == 0
    if place.transactional:
        assert place.rows() == THIRD, "its fence is too old"
    assert scene.push() == 0
    assert place.rows() == THIRD, "what it may have written late was in doubt, and is sent again"
    assert scene.unbalanced() == []


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("place", ["sqlite", "postgres", "mysql"], indirect=True)
def test_a_worker_that_outlives_its_killed_run_does_not_undo_newer_values(scene: Scene, place: Place) -> None:
    """Spark's Python workers are processes of their own; one of them may still have a request to make."""
    run = scene.start(worker=True)
    worker = scene.worker()
    os.kill(run.pid or 0, signal.SIGKILL)
    run.join(60)
    scene.capture(THIRD)
    assert scene.push() == 0
    assert place.rows() == THIRD
    os.kill(worker, signal.SIGCONT)
    wait_for(lambda: state_of(worker) in "ZX")
    assert place.rows() == THIRD, "the fence of its run is too old"
    assert scene.push() == 0
    assert scene.unbalanced() == []


SAY = "from dbt_reverse_etl.base import owner; print(owner.this_process(), flush=True); input()"


def test_a_killed_process_that_nobody_waited_for_does_not_hold_its_sync() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert owner.is_alive(name)
        host, number, place, start = name.split(":")
        assert not owner.is_alive(f"{host}:{number}:{place}:{int(start) - 1}"), "another process has its number now"
        with pytest.MonkeyPatch.context() as hidden:
            hidden.setattr(owner, "_stat", lambda process: ("", ""))
            assert owner.is_alive(name), "where /proc hides processes of others, it lives"
        process.kill()
        wait_for(lambda: state_of(process.pid) == "Z")
        assert not owner.is_alive(name)
    for elsewhere in (f"elsewhere:{number}:{place}:{start}", f"{host}:{number}:another:{start}", f"{host}:{number}"):
        assert owner.is_alive(elsewhere), "on another machine or in another container only the lease tells"
