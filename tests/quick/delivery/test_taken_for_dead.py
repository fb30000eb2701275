"""A run that was taken for dead while it lived: what it sends meanwhile is never forgotten."""

from __future__ import annotations

import pytest

from tests.support.delivery.histories import settle
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import Spec
from tests.support.delivery.world import Plan, World


@pytest.mark.guarantee("What is sent")
def test_a_run_that_settled_claims_sends_nothing_once_another_run_began() -> None:
    world = World(TransactionalSink)
    world.use(Spec(None, 1))
    world.capture({"k0": 1})
    world.push(Plan(at=("wave.delivered", 1)))  # leaves a claim to settle
    world.capture({"k1": 6})
    slow = world.push(Plan(at=("claims.settled", 1), then="asleep"))
    world.push(Plan(at=("run.started", 1), wave_rows=1), lease_expires=False)
    world.wake(0)
    assert slow.result is not None
    assert slow.result.status == "superseded"
    assert "k1" not in world.destination.rows
    world.capture({"k1": None})
    assert settle(world) == []


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
@pytest.mark.parametrize("killed", [1, 2])
@pytest.mark.parametrize("ends", [("wave.delivered", 2), ("wave.delivered", 3), ("run.finished", 1)])
def test_what_a_slow_run_recorded_before_the_next_one_began_outlives_that_one(
    sink: type[PlainSink], killed: int, ends: tuple[str, int]
) -> None:
    world = World(sink)
    world.use(Spec(None, 1))
    world.capture(dict.fromkeys(["k0", "k1", "k2", "k3"], 6))
    world.push(Plan(at=("wave.delivered", 1), then="asleep", wave_rows=1, dies=ends))
    world.push(Plan(at=("state.read", 1), then="asleep", wave_rows=1, dies=("run.started", 1)), lease_expires=False)
    world.wake(0)
    assert len(world.destination.rows) > 1
    world.wake(0)
    for _ in range(killed - 1):
        world.push(Plan(at=("run.started", 1), wave_rows=1), lease_expires=False)
    world.capture(dict.fromkeys(["k0", "k1", "k2", "k3"]))
    assert settle(world) == []
    assert world.destination.rows == {}
