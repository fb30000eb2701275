"""One wave through the engine: what is sent, in what order, and what stops the sync."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.gate import LeaseLost, StopKind
from dbt_reverse_etl.delivery.policy import Policy, Rejections
from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.sinks.base import Batch, Limits
from tests.support.delivery.engine_bench import Bench, OrderedSink, ScriptedSink, delivered, outcomes, refusing, some
from tests.support.effort import scaled

# --- what is sent


def test_a_batch_holds_the_operation_the_event_id_and_the_fields_and_nothing_of_the_position() -> None:
    bench = Bench(delivered)
    result = bench.wave(3)
    assert bench.sink.batches[0].rows.column_names == ["_operation", "_event_id", "id"]
    assert (result.failures, result.stop, len(bench.sink.requests)) == ({}, None, 1)
    assert result.counts.delivered == result.counts.planned == PerOperation(1, 1, 1)


@pytest.mark.guarantee("What is sent")
@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4))
def test_every_row_is_sent_exactly_once_where_nothing_fails(rows: int, size: int, workers: int) -> None:
    bench = Bench(delivered, Limits(rows=size, concurrency=workers))
    result = bench.wave(rows)
    assert sorted(row for request in bench.sink.requests for row in request) == list(range(rows))
    assert result.counts.delivered.total == rows


@pytest.mark.guarantee("Refusals and outages")
@settings(deadline=None)
@given(st.data(), st.integers(1, 4))
def test_the_result_lists_exactly_the_rows_that_the_sink_did_not_deliver(data: st.DataObject, workers: int) -> None:
    fates = data.draw(st.lists(st.sampled_from(["delivered", "rejected", "recovers"]), min_size=1, max_size=30))
    waiting = {row for row, fate in enumerate(fates) if fate == "recovers"}

    def answer(ids: list[int], number: int) -> Delivery:
        words = [
            Outcome.REJECTED if fates[row] == "rejected" else Outcome.UNKNOWN if row in waiting else None for row in ids
        ]
        waiting.difference_update(ids)
        return Delivery(tuple(RowResult(i, word, "why") for i, word in enumerate(words) if word is not None))

    result = Bench(answer, Limits(rows=4, concurrency=workers)).wave(len(fates))
    assert outcomes(result) == {row: Outcome.REJECTED for row, fate in enumerate(fates) if fate == "rejected"}
    assert result.counts.balanced
    assert result.stop is None


# --- what stops the sync


@pytest.mark.guarantee("Refusals and outages")
def test_fatal_stops_the_sync_and_everything_not_sent_is_left_out() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n == 1, Outcome.FATAL))
    result = bench.wave(40)
    assert len(bench.sink.requests) == 2
    assert result.stop is not None
    assert result.stop.kind is StopKind.FATAL
    assert [failure.attempts for failure in result.failures.values()] == [1] * 10 + [0] * 20
    assert (result.counts.delivered.total, result.counts.failed.total, result.counts.skipped.total) == (10, 10, 20)
    assert not result.nothing_applied


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("indexes", [(0, 0), (10,), (-1,)], ids=["twice", "beyond the batch", "negative"])
def test_an_answer_for_a_row_that_was_not_sent_stops_the_sync_and_is_not_believed(indexes: tuple[int, ...]) -> None:
    results = tuple(RowResult(index, Outcome.REJECTED, "why") for index in indexes)
    result = Bench(lambda ids, n: Delivery(results)).wave(20)
    assert result.stop is not None
    assert result.stop.kind is StopKind.FATAL
    assert "not sent" in result.stop.reason
    assert [outcomes(result)[row] for row in (0, 9, 10)] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.RETRYABLE]


@pytest.mark.guarantee("Secrets and row values")
def test_a_sink_that_raises_leaves_its_rows_unknown_and_its_words_unsaid() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        raise ValueError("alice@example.com")

    bench = Bench(answer)
    result = bench.wave(20)
    assert outcomes(result)[0] is Outcome.UNKNOWN
    assert "ValueError" in result.failures[0].reason
    assert "alice" not in repr(result)
    assert result.stop is not None
    assert len(bench.sink.requests) == 1


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (None, "NoneType"),
        ((), "tuple"),
        (Delivery([RowResult(0, Outcome.REJECTED, "why")]), "list"),  # type: ignore[arg-type]
        (Delivery(({"index": 0},)), "a result of dict"),  # type: ignore[arg-type]
        (Delivery((RowResult("0", Outcome.REJECTED, "why"),)), "a result of RowResult"),  # type: ignore[arg-type]
        (Delivery((RowResult(0, "rejected", "why"),)), "a result of RowResult"),  # type: ignore[arg-type]
        (Delivery((RowResult(0, Outcome.REJECTED, ValueError()),)), "a result of RowResult"),  # type: ignore[arg-type]
        (Delivery(retry_after="30"), "retry_after of str"),  # type: ignore[arg-type]
        (Delivery(stop=ValueError()), "stop of ValueError"),  # type: ignore[arg-type]
        (Delivery((), maybe_applied=("0",)), "maybe_applied or in_part that is no tuple of int"),  # type: ignore[arg-type]
        (Delivery((), in_part=3), "maybe_applied or in_part that is no tuple of int"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_without_the_form_of_one_leaves_its_rows_unknown_and_names_the_sink(answer: Any, found: str) -> None:
    result = Bench(lambda ids, n: answer).wave(20)
    assert [outcomes(result)[row] for row in (0, 9, 10)] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.RETRYABLE]
    assert result.stop is not None
    assert result.stop.reason == f"the sink answered with {found}, not a Delivery"


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize(
    ("rows", "bad", "trips"),
    [
        pytest.param(100, 50, False, id="not more than fifty"),
        pytest.param(100, 51, True, id="more than fifty and more than delivered"),
        pytest.param(200, 99, False, id="fewer than delivered"),
        pytest.param(4000, 200, False, id="not more than five percent"),
        pytest.param(40, 40, False, id="all of a small wave"),
    ],
)
def test_the_breaker_trips_on_many_rejected_rows_of_which_fewer_were_delivered(
    rows: int, bad: int, trips: bool
) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: i < bad, Outcome.REJECTED), Limits(rows=rows))
    result = bench.wave(rows)
    assert (result.stop is not None) is trips
    assert set(outcomes(result).values()) == {Outcome.REJECTED}, "an attempt counts, whatever it led to"
    assert result.counts.rejected.total == bad


@pytest.mark.guarantee("Refusals and outages")
def test_the_breaker_stops_before_the_rest_of_the_wave_is_refused() -> None:
    policy = Policy(rejections=Rejections(breaker_rows=5, breaker_share=0))
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.REJECTED), Limits(rows=3), policy)
    result = bench.wave(300)
    assert len(bench.sink.requests) == 2
    assert result.counts.skipped.total == 294


def test_an_interrupt_lets_the_request_under_way_end_and_sends_nothing_more() -> None:
    bench = Bench(delivered)
    bench.interrupted = lambda: len(bench.sink.requests) > 1
    result = bench.wave(30)
    assert result.stop is not None
    assert result.stop.kind is StopKind.INTERRUPTED
    assert [outcomes(result).get(row) for row in (9, 19, 20)] == [None, None, Outcome.RETRYABLE]


# --- lease, rate, order


@pytest.mark.guarantee("Leases and rivals")
def test_no_request_is_made_once_the_lease_is_lost() -> None:
    looks = iter([True, True, False])
    bench = Bench(delivered, Limits(rows=1), lease_held=lambda: next(looks))
    with pytest.raises(LeaseLost):
        bench.wave(5)
    assert len(bench.sink.requests) == 2


@pytest.mark.guarantee("Leases and rivals")
def test_a_lease_lost_by_one_worker_stops_all_of_them() -> None:
    held = threading.Semaphore(3)
    bench = Bench(delivered, Limits(rows=1, concurrency=4), lease_held=lambda: held.acquire(blocking=False))
    with pytest.raises(LeaseLost):
        bench.wave(50)
    assert len(bench.sink.requests) <= 3


@pytest.mark.guarantee("Refusals and outages")
@settings(deadline=None, max_examples=scaled(20))
@given(st.floats(0.5, 50), st.integers(1, 30), st.integers(1, 4))
def test_the_rate_budget_is_kept_by_all_workers_together(rate: float, rows: int, workers: int) -> None:
    bench = Bench(delivered, Limits(rows=1, concurrency=workers, requests_per_second=rate))
    assert not bench.wave(rows).failures
    times = sorted(bench.sink.times)
    for i, start in enumerate(times):
        for j in range(i, len(times)):
            # Between its turn and its time here a worker may wait for the others.
            assert j - i <= (times[j] - start) * rate + 1e-6 + workers - 1


class ManyRequests(ScriptedSink):
    """Makes a request for each row of its batch."""

    def deliver(self, batch: Batch) -> Delivery:
        made = 1
        super().deliver(batch)
        while made < batch.rows.num_rows and batch.go_on():
            made, self.times = made + 1, [*self.times, self._clock.monotonic()]
        left = range(made, batch.rows.num_rows)
        return Delivery(tuple(RowResult(row, Outcome.RETRYABLE, "not sent") for row in left))


@pytest.mark.guarantee("Refusals and outages")
def test_requests_of_one_batch_keep_the_budget_the_lease_and_an_interrupt_as_those_of_several() -> None:
    limits = Limits(rows=10, requests_per_second=2)
    bench = Bench(delivered, limits, kind=ManyRequests)
    assert not bench.wave(5).failures
    assert bench.sink.times == [0, 0.5, 1, 1.5, 2]

    looks = iter([True, True, True, False])
    bench = Bench(delivered, Limits(rows=10), lease_held=lambda: next(looks), kind=ManyRequests)
    with pytest.raises(LeaseLost) as lost:
        bench.wave(5)
    assert (lost.value.rows, len(bench.sink.times)) == ([0, 1, 2, 3, 4], 3)
    assert bench.numbers == [(Number.SENT, 5), (Number.ANSWERED, 0)], "whoever looks on knows that the request is over"

    bench = Bench(delivered, limits, kind=ManyRequests)
    bench.interrupted = lambda: bench.clock.monotonic() > 0.6
    result = bench.wave(5)
    assert result.stop is not None
    assert result.stop.kind is StopKind.INTERRUPTED
    assert outcomes(result) == dict.fromkeys([2, 3, 4], Outcome.RETRYABLE)


def test_whoever_looks_on_knows_which_rows_a_request_missed_at_the_destination() -> None:
    bench = Bench(lambda ids, _: some(ids, lambda row: row < 2, Outcome.NO_MATCH), Limits(rows=5))
    bench.wave(5)
    assert bench.numbers[:3] == [(Number.SENT, 5), (Number.NO_MATCH, 2), (Number.ANSWERED, 3)]


def test_batches_of_a_transactional_sink_come_in_order_and_only_the_final_one_is_last() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return some(ids, lambda i: number == 1, Outcome.RETRYABLE)

    bench = Bench(answer, Limits(rows=2, concurrency=8), kind=OrderedSink)
    bench.wave(6)
    assert bench.sink.requests == [[0, 1], [2, 3], [2, 3], [4, 5]]
    assert [batch.last for batch in bench.sink.batches] == [False, False, False, True]


def test_the_last_batch_says_how_many_rows_of_the_claim_were_left_out_before_it() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: i == 1, Outcome.REJECTED), Limits(rows=2), kind=OrderedSink)
    bench.wave(6, left_out=3)
    assert [batch.left_out for batch in bench.sink.batches] == [3, 4, 4]


@pytest.mark.guarantee("Crashes and claims")
@settings(deadline=None)
@given(st.integers(2, 20), st.integers(0, 19))
def test_a_claim_is_never_closed_with_nothing_left_out_if_a_row_was_refused(rows: int, bad: int) -> None:
    bench = Bench(refusing({bad % rows}), Limits(rows=rows), kind=OrderedSink)
    bench.wave(rows)
    closing = [batch for batch in bench.sink.batches if batch.last and bad % rows not in batch.rows["id"].to_pylist()]
    assert all(batch.left_out for batch in closing)
