"""A push from the executors to a destination that takes longer than a lease: it gets on, wave by wave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import RunResult
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.sinks.base import Batch, SinkTask
from dbt_reverse_etl.warehouse.executors import _MARGIN, Work
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.desk import Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import DictSource

SLOW = Policy().lease.total_seconds() / 40  # seconds of a row: a lease is over before 40 of them are


class Nearby:
    """`delivery.ports.Remote` in this process; each row takes so many seconds, and the clock may be behind that of the driver."""

    def __init__(self, desk: Desk, source: DictSource, seconds: float, behind: timedelta = timedelta()) -> None:
        self._desk, self._source, self._seconds, self._behind = desk, source, seconds, behind
        self.late: list[timedelta] = []  # of each wave, how long after its lease the tasks ended

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        sink, clock, end = self._desk.sink, self._desk.clock, until()
        ends = end - _MARGIN
        there = Behind(clock, self._behind)
        work = Work(
            lambda: _slow(sink, clock, self._seconds), order, task, sink.limits(task), self._desk.policy, ends, there
        )
        sent = work.send(self._source.wave(order.claim.lo, order.claim.hi).to_batches())
        self.late.append(clock.now() - end)
        return sent


class Behind:
    """The clock of another machine."""

    def __init__(self, clock: FakeClock, behind: timedelta) -> None:
        self._behind, self._clock = behind, clock
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def now(self) -> datetime:
        return self._clock.now() - self._behind


def _slow(sink: PlainSink, clock: FakeClock, seconds: float) -> PlainSink:
    made = type(sink)()
    made.destination, deliver = sink.destination, made.deliver

    def slowly(batch: Batch) -> Delivery:
        clock.sleep(seconds * batch.rows.num_rows)
        return deliver(batch)

    made.deliver = slowly  # type: ignore[method-assign]
    return made


def pushed(
    desk: Desk, seconds: float, behind: timedelta = timedelta(), late: list[timedelta] | None = None
) -> RunResult:
    desk.planned = 0

    def nearby(source: DictSource) -> Nearby:
        made = Nearby(desk, source, seconds, behind)
        made.late = made.late if late is None else late
        return made

    return run(desk._job(), replace(desk._ports(), executors=nearby), desk.policy)


@pytest.mark.guarantee("What is sent", "A push from the executors gets on however slow the destination is")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_rows_that_tasks_left_near_the_end_of_the_lease_are_listed_and_the_run_goes_on(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    waves = replace(Policy().executor_waves, rows=50)
    desk.policy = replace(desk.policy, executors_from=0, executor_waves=waves, most_listed=50)
    image = {f"k{n}": n + 1 for n in range(100)}
    desk.changelog.capture(image)
    first = pushed(desk, SLOW)
    assert first.status == "partial"
    delivered = first.counts.delivered.total
    assert 0 < delivered < 100
    while (state := desk.state()).undelivered:
        assert not state.claims, "nothing is in doubt: what was left is listed"
        assert pushed(desk, SLOW).counts.delivered.total > 0, "each push gets on"
    assert desk.sink.destination.rows == {key: desk.spec.project(value) for key, value in image.items()}


def test_where_the_ledger_cannot_list_what_tasks_left_the_run_says_that_the_destination_is_slow() -> None:
    desk = Desk()
    waves = replace(Policy().executor_waves, rows=50)
    desk.policy = replace(desk.policy, executors_from=0, executor_waves=waves, most_listed=10)
    desk.changelog.capture({f"k{n}": n + 1 for n in range(100)})
    result = pushed(desk, SLOW)
    assert (result.status, "slower" in result.message) == ("failed", True)
    assert len(desk.state().claims) == 1


@pytest.mark.guarantee("Leases and rivals")
def test_tasks_whose_clock_is_behind_that_of_the_driver_stop_before_its_lease_ends() -> None:
    desk, late = Desk(), list[timedelta]()
    waves = replace(Policy().executor_waves, rows=50)
    desk.policy = replace(desk.policy, executors_from=0, executor_waves=waves, most_listed=50)
    desk.changelog.capture({f"k{n}": n + 1 for n in range(100)})
    pushed(desk, SLOW, timedelta(minutes=5), late)
    assert late
    assert max(late) <= timedelta()
