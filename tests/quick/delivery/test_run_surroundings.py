"""A run whose clock jumps, whose ledger refuses, or whose ledger holds what cannot be read."""

from __future__ import annotations

import errno
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError, Problem, ReverseEtlError, SyncBusy
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.delivery.facts import Fact, RunFinished, RunStarted
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch, SinkTask
from dbt_reverse_etl.warehouse.ledger import decode, encode
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.world import MemoryLedger
from tests.support.effort import scaled

KEYS = [f"k{number}" for number in range(6)]
SINKS = [PlainSink, TransactionalSink]
SMALL_WAVES = replace(POLICY, waves=WaveSize(2, grow_below=-1))


def image(value: int) -> dict[str, int]:
    return dict.fromkeys(KEYS, value)


class JumpingClock(FakeClock):
    """A clock that somebody sets."""

    off = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.off


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize("kind", SINKS)
@settings(deadline=None, max_examples=scaled(60))
@given(
    jumps=st.lists(
        st.tuples(st.integers(-7200, 7200), st.integers(0, 8), st.integers(-7200, 7200)), min_size=1, max_size=5
    )
)
def test_a_clock_that_jumps_between_or_during_runs_never_brings_an_older_value_back(
    kind: type[PlainSink], jumps: list[tuple[int, int, int]]
) -> None:
    clock, applied = JumpingClock(), list[int]()

    class Watched(kind):  # type: ignore[misc, valid-type]
        requests, jumps_at, by = 0, -1, 0

        def deliver(self, batch: Batch) -> Delivery:
            if self.requests == self.jumps_at:
                clock.off += timedelta(seconds=self.by)
            Watched.requests += 1
            applied.extend(batch.rows.column("value").to_pylist())
            delivery: Delivery = super().deliver(batch)
            return delivery

    desk = Desk(Watched)
    desk.clock, desk.policy = clock, SMALL_WAVES
    for value, (between, at, during) in enumerate(jumps):
        clock.off += timedelta(seconds=between)
        Watched.requests, Watched.jumps_at, Watched.by = 0, at, during
        try:
            result = desk.push(image(value))
        except SyncBusy:
            continue
        assert result.status in (Status.SUCCEEDED, Status.SUPERSEDED)
        if result.status == Status.SUCCEEDED:
            assert desk.sink.destination.rows == image(value)
    clock.sleep(10 * 7200)  # until no lease of the former times holds
    Watched.jumps_at = -1
    assert desk.push().status in (Status.SUCCEEDED, Status.IDLE)
    assert desk.sink.destination.rows == image(len(jumps) - 1)
    assert applied == sorted(applied)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("kind", SINKS)
def test_an_error_of_close_neither_fails_a_run_that_went_well_nor_hides_why_another_did_not(
    kind: type[PlainSink],
) -> None:
    class Dead(kind):  # type: ignore[misc, valid-type]
        password = "right"

        def open(self, task: SinkTask) -> None:
            super().open(task)
            if self.password == "wrong":
                raise DestinationError(Problem("destination crm", "a wrong password", "another one", "correct it"))

        def close(self) -> None:
            super().close()
            raise OSError("the connection is dead")

    desk = Desk(Dead)
    assert desk.push(image(1)).status == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(1)
    desk.sink.password = "wrong"
    with pytest.raises(DestinationError, match="a wrong password"):
        desk.push(image(2))


class RefusingLedger(MemoryLedger):
    """Its disk is full from some write on."""

    writes, room = 0, 10**6

    def append(self, *facts: Fact) -> None:
        self.writes += 1
        if self.writes > self.room:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().append(*facts)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("room", range(4))
def test_a_ledger_that_takes_no_more_facts_fails_the_run_and_costs_no_row(room: int, kind: type[PlainSink]) -> None:
    desk, ledger = Desk(kind), RefusingLedger()
    desk.ledger, desk.policy = ledger, SMALL_WAVES
    desk.push(image(1))
    ledger.room = ledger.writes + room
    with pytest.raises(OSError, match="no space"):
        desk.push(image(2))
    before = len(ledger.facts)
    desk.clock.sleep(POLICY.lease.total_seconds() + 1)
    with pytest.raises(OSError, match="no space"):
        desk.push(image(3))
    assert len(ledger.facts) == before, "what it holds is still what it was told"
    ledger.room = 10**6
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(3)
    ends = [fact for fact in ledger.facts if isinstance(fact, RunFinished)]
    assert all(end.counts.balanced for end in ends)


@pytest.mark.guarantee("Crashes and claims")
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_fact_that_is_damaged_or_of_an_unknown_kind_is_an_error_and_never_skipped(cut: float) -> None:
    desk = Desk()
    desk.push(image(1))
    for fact in desk.ledger.facts:
        word, body = encode(fact)
        assert decode(word, body) == fact
        with pytest.raises(ValidationError):
            decode(word, body[: int(cut * len(body))])
        with pytest.raises(ReverseEtlError, match=r"found a fact .*_of_a_later_version; .*Next: upgrade"):
            decode(f"{word}_of_a_later_version", body)
        with pytest.raises(ReverseEtlError, match=r"found a fact \w+ with added_later; expected .*Next: upgrade"):
            decode(word, body[:-1] + ',"added_later":1}')
    started = next(fact for fact in desk.ledger.facts if isinstance(fact, RunStarted))
    word, body = encode(started)
    with pytest.raises(ReverseEtlError, match="with added_later"):
        decode(word, body.replace('{"lo":', '{"added_later":1,"lo":', 1))
