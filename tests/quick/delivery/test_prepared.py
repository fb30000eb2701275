"""What a sink prepares for many rows at once: each batch gets its part of it, and none of it is kept for long."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.delivery.gate import StopKind
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.prepared import ROWS_AT_ONCE, Prepared
from dbt_reverse_etl.sinks.base import Batch, Limits
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.engine_bench import Answer, Bench, ScriptedSink, delivered, outcomes, refusing, some
from tests.support.effort import scaled

WORKERS = 3


class Entries(list[str]):
    """A list that can be watched."""


class PreparingSink(ScriptedSink):
    """Prepares a text for each row, and delivers only what carries the texts of its rows."""

    def __init__(self, answer: Answer, limits: Limits, clock: FakeClock) -> None:
        super().__init__(answer, limits, clock)
        self.prepared: list[list[int]] = []
        self.kept: list[weakref.ref[Entries]] = []
        self.most_kept = 0

    def prepare(self, rows: pa.Table) -> Sequence[str]:
        ids: list[int] = rows.column("id").to_pylist()
        entries = Entries(map(str, ids))
        with self._lock:
            self.prepared.append(ids)
            self.kept.append(weakref.ref(entries))
            self.most_kept = max(self.most_kept, sum(one() is not None for one in self.kept))
        return entries

    def deliver(self, batch: Batch) -> Delivery:
        assert batch.prepared == [str(id_) for id_ in batch.rows.column("id").to_pylist()]
        return super().deliver(batch)


def bench_of(answer: Answer, limits: Limits, policy: Policy | None = None) -> tuple[Bench, PreparingSink]:
    bench = Bench(answer, limits, policy, kind=PreparingSink)
    assert isinstance(bench.sink, PreparingSink)
    return bench, bench.sink


@pytest.mark.guarantee("Every destination")
@settings(deadline=None, max_examples=scaled(60))
@given(
    st.integers(0, 3 * ROWS_AT_ONCE),
    st.sampled_from([7, 100, 999, ROWS_AT_ONCE, 2500]),
    st.integers(1, WORKERS),
    st.sets(st.integers(0, 3 * ROWS_AT_ONCE), max_size=3),
)
def test_each_batch_has_the_entries_of_its_rows_and_each_row_is_prepared_once(
    rows: int, size: int, workers: int, bad: set[int]
) -> None:
    bench, sink = bench_of(refusing(bad), Limits(rows=size, concurrency=workers))
    result = bench.wave(rows)
    assert {*outcomes(result)} == {id_ for id_ in bad if id_ < rows}
    assert sorted(id_ for ids in sink.prepared for id_ in ids) == list(range(rows))
    assert all(len(ids) <= max(ROWS_AT_ONCE, size) for ids in sink.prepared)


def test_rows_that_are_set_aside_are_prepared_alone_when_they_come_again() -> None:
    bench, sink = bench_of(
        lambda ids, n: some(ids, lambda id_: id_ == 3 and n < 5, Outcome.RETRYABLE),
        Limits(rows=10),
        Policy(retries=Retries(attempts=2, first=0.0)),
    )
    result = bench.wave(40)
    assert result.failures == {}
    assert sink.requests[-1] == [3]
    assert [len(ids) for ids in sink.prepared] == [40, 1]


@pytest.mark.guarantee("Every destination")
@pytest.mark.parametrize("workers", [1, WORKERS])
def test_nothing_is_kept_after_its_batches_and_no_more_at_once_than_is_under_way(workers: int) -> None:
    bench, sink = bench_of(delivered, Limits(rows=100, concurrency=workers))
    bench.wave(10 * ROWS_AT_ONCE)
    assert [len(ids) for ids in sink.prepared] == [ROWS_AT_ONCE] * 10
    assert sink.most_kept <= workers + 2  # a slice for each worker at most, the next one, and that which is being made
    del bench.sink.batches[:]
    assert not [one for one in sink.kept if one() is not None]


def test_a_sync_that_stops_has_prepared_no_more_than_the_next_rows() -> None:
    bench, sink = bench_of(lambda ids, n: some(ids, lambda _: True, Outcome.FATAL), Limits(rows=100))
    result = bench.wave(10 * ROWS_AT_ONCE)
    assert result.stop is not None
    assert len(sink.requests) == 1
    assert sum(map(len, sink.prepared)) in (ROWS_AT_ONCE, 2 * ROWS_AT_ONCE)


def test_a_slice_is_bounded_by_bytes_as_a_batch_is() -> None:
    table = pa.table({"text": pa.array(["x" * 2**20] * 64)})
    sizes: list[int] = []

    def prepare(rows: pa.Table) -> None:
        sizes.append(rows.nbytes)

    rows = Prepared(table, Limits(rows=1, bytes=2**21), prepare)
    for part in rows.parts:
        rows.take(part)
        rows.end(part)
    assert max(sizes) <= 16 * 2**20
    assert sum(sizes) >= 64 * 2**20


def _raises(rows: pa.Table) -> Sequence[str]:
    raise RuntimeError("a row value")


@pytest.mark.parametrize("prepare", [_raises, lambda rows: ["one entry"]], ids=["it raises", "an entry too few"])
@pytest.mark.parametrize("workers", [1, WORKERS])
def test_a_sink_that_cannot_prepare_stops_the_sync_and_nothing_is_sent(
    prepare: Callable[[pa.Table], Sequence[str]], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, sink = bench_of(delivered, Limits(rows=10, concurrency=workers))
    monkeypatch.setattr(sink, "prepare", prepare)
    result = bench.wave(40)
    assert sink.requests == []
    assert result.stop is not None
    assert result.stop.kind is StopKind.FATAL
    assert "a row value" not in result.stop.reason
    assert {*outcomes(result).values()} <= {Outcome.FATAL, Outcome.RETRYABLE}
    assert len(result.failures) == 40
    assert result.nothing_applied


def test_only_one_worker_prepares_the_same_rows_and_the_others_send_meanwhile() -> None:
    """While one prepares the second slice, the others send the first one."""
    sent_meanwhile, second = threading.Event(), threading.Event()

    def answer(ids: list[int], number: int) -> Delivery:
        if second.is_set():
            sent_meanwhile.set()
        return Delivery()

    bench, sink = bench_of(answer, Limits(rows=10, concurrency=WORKERS))
    real = sink.prepare

    def prepare(rows: pa.Table) -> Sequence[str]:
        if rows.column("id")[0].as_py() == ROWS_AT_ONCE:
            second.set()
            assert sent_meanwhile.wait(30)
        return real(rows)

    sink.prepare = prepare  # type: ignore[method-assign]
    bench.wave(2 * ROWS_AT_ONCE)
    assert [len(ids) for ids in sink.prepared] == [ROWS_AT_ONCE] * 2
