"""A run that was taken for dead while it lived: what it sends meanwhile is never forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import RunFinished, RunStarted, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.starting import run_started
from tests.support.delivery.histories import settle
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import Spec, bucket
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


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_rows_that_a_slow_run_delivered_at_the_same_snapshot_are_ours_to_delete(sink: type[PlainSink]) -> None:
    keys = ["k0", "k1", "k2", "k3"]
    world = World(sink)
    world.use(Spec(None, 1))
    world.capture(dict.fromkeys(keys, 6))
    world.push(Plan({key: ["rejected"] for key in keys}, batch_rows=1))
    assert world.destination.rows == {}
    world.push(Plan(at=("batch.before", 1), then="asleep", wave_rows=1, retry_now=True))
    world.push(Plan(at=("state.read", 1), then="asleep", wave_rows=1, dies=("run.started", 1)), lease_expires=False)
    world.wake(0)
    assert len(world.destination.rows) == len(keys)
    world.wake(0)
    world.capture(dict.fromkeys(keys))
    assert settle(world) == []
    assert world.destination.rows == {}


@pytest.mark.guarantee("What is sent")
def test_a_doubt_that_stands_beside_the_start_of_a_killed_run_is_not_lost() -> None:
    world = World(PlainSink)
    world.use(Spec(None, 1))
    world.capture({"k0": 6})
    world.push(Plan(at=("batch.before", 1), then="asleep"))
    world.capture({"k0": 7})
    world.push(Plan())
    world.capture({"k1": 1})
    world.push(Plan(at=("run.started", 1), wave_rows=1))
    world.push(Plan(at=("state.read", 1), then="asleep", wave_rows=1))
    world.wake(0)
    assert world.destination.rows["k0"] == 6, "it was asleep while a newer value came"
    world.wake(0)
    assert settle(world) == []
    assert world.destination.rows["k0"] == 7


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_reconcile_found_is_sent_although_it_is_killed_after_its_start(killed: bool) -> None:
    world = World(PlainSink)
    world.use(Spec(None, 1))
    world.capture({"k0": 6, "k1": 8})
    world.push(Plan())
    state = world.ledger.read("s")
    now = world.clock.now()
    row = Undelivered("k0", bucket("k0"), None, None, True, True, 1, "update", "unknown", "reconcile", 0, now, None)
    started = run_started(world._job("reconcile"), state, now, undelivered=(row,), found=("k0",))
    world.ledger.start(started)
    if not killed:
        end = RunFinished("s", started.fence, 1, now, "reconcile", NO_COUNTS, NO_ROWS, "")
        world.ledger.append(end)
    world.destination.rows["k0"] = 1
    world.clock.sleep(7200)
    assert settle(world) == []
    assert world.destination.rows["k0"] == 6


def test_a_start_reads_one_fence_more_however_many_runs_before_it_were_killed_at_once() -> None:
    world = World(PlainSink)
    world.use(Spec(None, 1))
    world.capture({"k0": 6})
    asked, read = list[int | None](), world.ledger.read

    def counted(sync_id: str, fence: int | None = None) -> State:
        asked.append(fence)
        return read(sync_id, fence)

    world.ledger.read = counted  # type: ignore[method-assign]
    for _ in range(8):
        asked.clear()
        world.push(Plan(at=("wave.read", 1)))
        assert len(asked) <= 3, "the newest fence, the one before, and one more"
    assert settle(world) == []


def test_a_thousand_runs_that_were_killed_at_their_start_do_not_keep_the_next_one_from_starting() -> None:
    world = World(PlainSink)
    world.use(Spec(None, 1))
    world.capture({"k0": 6})
    world.push(Plan(at=("wave.delivered", 1), then="asleep"))
    world.push(Plan(at=("run.started", 1)))
    began = world.ledger.facts[-1]
    assert isinstance(began, RunStarted)
    world.ledger.facts += [replace(began, fence=began.fence + n, run_id=f"killed{n}") for n in range(1, 1200)]
    world.clock.sleep(7200)
    world.capture({"k0": None})
    assert settle(world) == []
