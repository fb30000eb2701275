"""The lease of a run whose steps take longer than it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from dbt_reverse_etl.delivery import lease
from dbt_reverse_etl.delivery.facts import Heartbeat, RunStarted
from dbt_reverse_etl.delivery.lease import Lease
from dbt_reverse_etl.delivery.ports import RunResult, Status
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.warehouse.executors import Work
from dbt_reverse_etl.warehouse.whole_push import one_wave
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.desk import Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import DictSource
from tests.support.delivery.scene import wait_for
from tests.support.delivery.world import Killed


class AwakeClock(FakeClock):
    """Threads that wait wake up when its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: set[threading.Event] = set()

    @property
    def is_waited_for(self) -> bool:
        return any(not over.is_set() for over in self._waiting.copy())

    def wait(self, over: threading.Event, seconds: float) -> bool:
        until = self.monotonic() + seconds
        self._waiting.add(over)
        while not over.wait(0.001):
            if self.monotonic() >= until:
                self._waiting.discard(over)
                return False
        return True


class SlowDesk(Desk):
    """One of its steps takes longer than the lease: where the ledger hears nothing of it, another run would take over."""

    def __init__(self, sink: type[PlainSink]) -> None:
        super().__init__(sink)
        self.clock: AwakeClock = AwakeClock()
        self.slow = ""
        desk = self

        class SlowSource(DictSource):
            def planned(self) -> Histogram:
                desk.reach("planned")
                return super().planned()

            def wave(self, lo: int, hi: int) -> pa.Table:
                desk.reach("wave")
                return super().wave(lo, hi)

        self.source = SlowSource
        for name in ("open", "finish", "swap"):
            setattr(self.sink, name, self._slowly(name, getattr(self.sink, name)))

    def _slowly(self, name: str, called: Callable[..., object]) -> Callable[..., object]:
        def slowly(*args: SinkTask | str, **more: bool) -> object:
            self.reach(name)
            return called(*args, **more)

        return slowly

    def reach(self, name: str) -> None:
        if name == self.slow:
            self.slow = ""
            for _ in range(4):
                self.one_beat()

    def one_beat(self) -> None:
        """Let more than half of the lease pass, until somebody renews it."""
        wait_for(lambda: self.clock.is_waited_for, seconds=5)
        before = self.beats()
        self.clock.sleep(self.policy.lease.total_seconds() * 0.6)
        wait_for(lambda: self.beats() > before, seconds=5)

    def beats(self) -> int:
        return sum(isinstance(fact, Heartbeat) for fact in self.ledger.facts)


def crash(desk: Desk) -> None:
    """Leave an open claim."""

    def step(name: str) -> None:
        if name == "wave.delivered":
            raise Killed

    desk.step = step
    with pytest.raises(Killed):
        desk.push({"k0": 1, "k1": 2})
    desk.step = lambda name: None
    desk.clock.sleep(desk.policy.lease.total_seconds())


def finished(desk: SlowDesk, result: RunResult) -> None:
    assert not desk.slow, "it was never reached"
    assert result.status == Status.SUCCEEDED


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize("step", ["open", "planned", "wave", "finish"])
def test_a_step_that_takes_longer_than_the_lease_costs_no_run(step: str) -> None:
    desk = SlowDesk(TransactionalSink)
    crash(desk)
    desk.slow = step
    finished(desk, desk.push({"k0": 5, "k2": 3}))
    assert desk.sink.destination.rows == {"k0": 5, "k2": 3}


def test_a_swap_that_takes_longer_than_the_lease_costs_no_run() -> None:
    desk = SlowDesk(PlainSink)
    desk.full_loads, desk.slow = True, "swap"
    finished(desk, desk.push({"k0": 5, "k2": 3}))
    assert desk.sink.destination.rows == {"k0": 5, "k2": 3}


class Whole:
    """`delivery.ports.Remote` that takes longer than the lease, and then finds a refused row, batch by batch."""

    def __init__(self, desk: SlowDesk, source: DictSource) -> None:
        self._desk, self._source = desk, source

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        desk, sink = self._desk, self._desk.sink
        desk.reach("merge")
        work = Work(lambda: sink, order, task, sink.limits(task), desk.policy, until(), desk.clock)
        return work.send(self._source.wave(order.claim.lo, order.claim.hi).to_batches())


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_one_statement_for_all_rows_that_takes_longer_than_the_lease_costs_no_run(sink: type[PlainSink]) -> None:
    desk = SlowDesk(sink)
    desk.changelog.capture({"k0": 5, "k2": 3})
    desk.slow = "merge"
    ports = replace(desk._ports(), executors=lambda source: Whole(desk, source))
    finished(desk, run(desk._job(), ports, one_wave(desk.policy)))
    assert desk.sink.destination.rows == {"k0": 5, "k2": 3}


def test_a_run_that_lost_its_lease_to_another_one_keeps_it_no_longer() -> None:
    desk = SlowDesk(PlainSink)
    before = desk.sink.open

    def rival(task: SinkTask) -> None:
        began = next(fact for fact in reversed(desk.ledger.facts) if isinstance(fact, RunStarted))
        desk.ledger.append(RunStarted(**{**vars(began), "fence": began.fence + 1, "run_id": "rival", "owner": "rival"}))
        desk.one_beat()
        before(task)

    desk.sink.open = rival  # type: ignore[method-assign]
    assert desk.push({"k0": 1}).status == Status.SUPERSEDED
    assert desk.sink.destination.rows == {}


def test_a_step_that_hangs_keeps_the_lease_for_hours_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_QUARTERS", 3)
    desk = SlowDesk(PlainSink)
    before = desk.sink.open

    def hang(task: SinkTask) -> None:
        desk.one_beat()
        desk.one_beat()
        wait_for(lambda: desk.clock.is_waited_for, seconds=5)
        desk.clock.sleep(desk.policy.lease.total_seconds() * 0.3)
        wait_for(lambda: not desk.clock.is_waited_for, seconds=5)
        desk.clock.sleep(desk.policy.lease.total_seconds() * 2)
        before(task)

    desk.sink.open = hang  # type: ignore[method-assign]
    assert desk.push({"k0": 1}).status == Status.SUPERSEDED
    assert desk.sink.destination.rows == {}


class SetBack(FakeClock):
    """Its time of day can be set back; how much time passes does not change by that."""

    back = timedelta()

    def now(self) -> datetime:
        return super().now() - self.back


@pytest.mark.guarantee("Leases and rivals", "A clock that is set back makes no lease longer")
@pytest.mark.parametrize("fenced", [False, True])
def test_a_clock_that_is_set_back_makes_no_lease_longer(*, fenced: bool) -> None:
    clock, length = SetBack(), timedelta(minutes=15)
    began, beats = clock.now(), list[datetime]()
    mine = Lease(clock, length, began + length, mine=lambda: not fenced, beat=beats.append)
    clock.back = timedelta(hours=1)
    clock.sleep(length.total_seconds() * 0.4)
    assert (mine.held(), beats) == (True, [])
    clock.sleep(length.total_seconds() * 0.2)
    assert mine.held() is not fenced
    assert beats == [began + length * 1.6], "no rival takes over before that"
    clock.sleep(length.total_seconds())
    assert not mine.held()
