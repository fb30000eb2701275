"""One wave through the engine: retries, Retry-After, bisection, the breaker, the rate budget, the lease."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.engine import Engine, LeaseLost, StopKind, WaveResult
from dbt_reverse_etl.delivery.gate import Permits, never
from dbt_reverse_etl.delivery.policy import Policy, Rejections, Retries
from dbt_reverse_etl.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Batch, Limits, Mode, Settings, Sink, SinkTask
from tests.unit.delivery_world import FakeClock

SCHEMA = pa.schema([("id", pa.int64())])
TASK = SinkTask("s", "sync", 1, "object", Mode.MIRROR, ("id",), SCHEMA)
Answer = Callable[[list[int], int], Delivery]  # ids of the batch, number of the request from 0


class ScriptedSink(Sink):
    """Answers by a function, and remembers every request."""

    type = "scripted"
    modes = frozenset(Mode)
    promise = "none"

    def __init__(self, answer: Answer, limits: Limits, clock: FakeClock) -> None:
        self._answer, self._limits, self._clock = answer, limits, clock
        self._lock = threading.Lock()
        self.batches: list[Batch] = []
        self.times: list[float] = []

    @classmethod
    def of(cls, settings: Settings) -> Sink:
        raise NotImplementedError

    @property
    def identity(self) -> str:
        return "scripted"

    @property
    def requests(self) -> list[list[int]]:
        return [batch.rows.column("id").to_pylist() for batch in self.batches]

    def limits(self, task: SinkTask) -> Limits:
        return self._limits

    def check(self) -> None: ...
    def open(self, task: SinkTask) -> None: ...
    def close(self) -> None: ...

    def deliver(self, batch: Batch) -> Delivery:
        with self._lock:
            number = len(self.batches)
            self.batches.append(batch)
            self.times.append(self._clock.monotonic())
            return self._answer(batch.rows.column("id").to_pylist(), number)


class OrderedSink(ScriptedSink):
    transactional = True


class Bench:
    """An engine on a fake clock."""

    def __init__(
        self,
        answer: Answer,
        limits: Limits | None = None,
        policy: Policy | None = None,
        lease_held: Callable[[], bool] = lambda: True,
        kind: type[ScriptedSink] = ScriptedSink,
    ) -> None:
        self.clock = FakeClock()
        self.sink = kind(answer, limits or Limits(rows=10), self.clock)
        self.interrupted: Callable[[], bool] = never
        self.engine = Engine(
            self.sink,
            TASK,
            policy or Policy(),
            self.clock,
            lease_held,
            random=lambda: 1.0,
            interrupted=self._is_interrupted,
        )

    def _is_interrupted(self) -> bool:
        return self.interrupted()

    def wave(self, rows: int, left_out: int = 0) -> WaveResult:
        table = pa.table(
            {
                "_key": [str(i) for i in range(rows)],
                "_operation": [("insert", "update", "delete")[i % 3] for i in range(rows)],
                "_event_id": [f"e{i}" for i in range(rows)],
                "_before_hash": pa.nulls(rows, pa.int64()),
                "id": pa.array(range(rows), pa.int64()),
            },
        )
        return self.engine.deliver_wave("claim", table, left_out)


def delivered(ids: list[int], number: int) -> Delivery:
    return Delivery()


def some(ids: Sequence[int], wanted: Callable[[int], bool], outcome: Outcome, **more: float) -> Delivery:
    return Delivery(tuple(RowResult(i, outcome, "why") for i, id_ in enumerate(ids) if wanted(id_)), **more)


def refusing(bad: set[int]) -> Answer:
    """Refuses a batch as one if any of these rows is in it."""

    def answer(ids: list[int], number: int) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.REJECTED, "refused") if bad & set(ids) else Delivery()

    return answer


def outcomes(result: WaveResult) -> dict[int, Outcome]:
    return {row: failure.outcome for row, failure in result.failures.items()}


# --- what is sent


def test_a_batch_holds_the_operation_the_event_id_and_the_fields_and_nothing_of_the_position() -> None:
    bench = Bench(delivered)
    result = bench.wave(3)
    assert bench.sink.batches[0].rows.column_names == ["_operation", "_event_id", "id"]
    assert (result.failures, result.stop, result.requests) == ({}, None, 1)
    assert result.counts.delivered == result.counts.planned == PerOperation(1, 1, 1)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4))
def test_every_row_is_sent_exactly_once_where_nothing_fails(rows: int, size: int, workers: int) -> None:
    bench = Bench(delivered, Limits(rows=size, concurrency=workers))
    result = bench.wave(rows)
    assert sorted(row for request in bench.sink.requests for row in request) == list(range(rows))
    assert result.counts.delivered.total == rows


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


# --- retries


def test_a_retryable_row_is_sent_again_alone_and_with_its_event_id() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: i == 1 and n == 0, Outcome.RETRYABLE))
    assert not bench.wave(3).failures
    assert bench.sink.requests == [[0, 1, 2], [1]]
    assert bench.sink.batches[1].rows.column("_event_id").to_pylist() == ["e1"]


def test_the_wait_between_attempts_doubles_up_to_its_cap() -> None:
    policy = Policy(retries=Retries(first=1, cap=5, seconds=1000))
    bench = Bench(lambda ids, n: some(ids, lambda i: n < 5, Outcome.RETRYABLE), policy=policy)
    bench.wave(1)
    assert [b - a for a, b in zip(bench.sink.times, bench.sink.times[1:], strict=False)] == [1, 2, 4, 5, 5]


def test_the_wait_is_a_random_part_of_it() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n < 1, Outcome.RETRYABLE), policy=Policy(retries=Retries(first=8)))
    bench.engine._gate._random = lambda: 0.25
    bench.wave(1)
    assert bench.sink.times == [0, 2]


def test_a_destination_that_is_down_stops_the_sync_in_time_and_rejects_nothing() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.RETRYABLE))
    result = bench.wave(100)
    assert result.stop is not None
    assert result.stop.kind is StopKind.UNAVAILABLE
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE}
    assert bench.clock.monotonic() <= Retries().seconds
    assert result.nothing_applied
    assert result.counts.failed.total + result.counts.skipped.total == 100


@pytest.mark.parametrize("workers", [1, 4])
def test_an_outage_shorter_than_the_budget_costs_no_row(workers: int) -> None:
    clock_of: list[FakeClock] = []

    def answer(ids: list[int], number: int) -> Delivery:
        return some(ids, lambda i: 20 < clock_of[0].monotonic() < 250, Outcome.RETRYABLE)

    bench = Bench(answer, Limits(rows=1, concurrency=workers, requests_per_second=1))
    clock_of.append(bench.clock)
    result = bench.wave(60)
    assert not result.failures
    assert bench.clock.monotonic() > 250


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 8), st.integers(1, 4))
def test_repeated_requests_are_bounded_by_their_budget(requests: int, workers: int) -> None:
    retries = Retries(requests=requests, share=0.1, seconds=1e9)
    limits = Limits(rows=1, concurrency=workers)
    bench = Bench(lambda ids, n: some(ids, lambda i: i % 2 == 0, Outcome.RETRYABLE), limits, Policy(retries=retries))
    bench.wave(100)
    first = len({tuple(request) for request in bench.sink.requests})
    assert len(bench.sink.requests) - first <= requests + 0.1 * len(bench.sink.requests)


@pytest.mark.parametrize("outcome", [Outcome.RETRYABLE, Outcome.UNKNOWN])
def test_a_row_that_always_fails_does_not_hold_up_the_others(outcome: Outcome) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: i == 3, outcome), Limits(rows=2))
    result = bench.wave(40)
    assert outcomes(result) == {3: outcome}
    assert result.stop is None


def test_rows_that_were_set_aside_get_another_turn_when_the_others_are_done() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: i == 0 and n < 7, Outcome.RETRYABLE), Limits(rows=1))
    assert not bench.wave(3).failures
    assert bench.sink.requests == [[0]] * 5 + [[1], [2]] + [[0]]


def test_unknown_is_sent_again_and_only_delivered_takes_it_away() -> None:
    first_unknown = {0: Outcome.UNKNOWN, 1: Outcome.REJECTED}
    bench = Bench(lambda ids, n: some(ids, lambda i: n in first_unknown, first_unknown.get(n, Outcome.FATAL)))
    assert outcomes(bench.wave(1)) == {0: Outcome.UNKNOWN}
    assert bench.sink.requests == [[0], [0]]
    bench = Bench(lambda ids, n: some(ids, lambda i: n == 0, Outcome.UNKNOWN))
    assert bench.wave(1).failures == {}


# --- Retry-After


def test_retry_after_pauses_every_worker_at_least_that_long() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return some(ids, lambda i: number == 0, Outcome.RETRYABLE, **({"retry_after": 60.0} if number == 0 else {}))

    bench = Bench(answer, Limits(rows=1, concurrency=1))
    assert not bench.wave(5).failures
    assert bench.sink.times[0] == 0
    assert min(bench.sink.times[1:]) >= 60


def test_workers_that_wait_for_their_slot_are_paused_too() -> None:
    gate_open = threading.Event()

    def answer(ids: list[int], number: int) -> Delivery:
        if number == 0:
            gate_open.set()
            return some(ids, lambda i: True, Outcome.RETRYABLE, retry_after=100.0)
        return Delivery()

    bench = Bench(answer, Limits(rows=1, concurrency=4, requests_per_second=0.1))
    assert not bench.wave(12).failures
    assert gate_open.is_set()
    assert min(bench.sink.times[1:]) >= bench.sink.times[0] + 100


@pytest.mark.parametrize("seconds", [1e9, math.inf, 301.0])
def test_a_pause_beyond_the_budget_leaves_the_rest_as_retryable(seconds: float) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.RETRYABLE, retry_after=seconds))
    result = bench.wave(30)
    assert len(bench.sink.requests) == 1
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE}
    assert result.stop is not None
    assert result.stop.kind is StopKind.UNAVAILABLE
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [0.0, -5.0, math.nan])
def test_a_retry_after_that_says_nothing_still_ends(seconds: float) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n < 3, Outcome.RETRYABLE, retry_after=seconds))
    assert not bench.wave(2).failures
    assert len(bench.sink.requests) == 4


# --- a batch refused as one


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 130).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=4))))
def test_bisection_finds_exactly_the_guilty_rows_within_its_bound(case: tuple[int, set[int]]) -> None:
    rows, bad = case
    bench = Bench(refusing(bad), Limits(rows=rows))
    result = bench.wave(rows)
    assert outcomes(result) == dict.fromkeys(sorted(bad), Outcome.REJECTED)
    assert len(bench.sink.requests) - 1 <= len(bad) * (2 * math.log2(rows) + 1)


@pytest.mark.parametrize("rows", range(1, 131))
def test_one_bad_row_costs_at_most_twice_the_logarithm_wherever_it_is(rows: int) -> None:
    worst = max(Bench(refusing({bad}), Limits(rows=rows)).wave(rows).requests for bad in {0, rows // 2, rows - 1})
    assert worst - 1 <= 2 * math.log2(rows) + 1


def test_a_batch_that_is_only_too_large_is_delivered_in_halves() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.REJECTED, "too large") if len(ids) > 3 else Delivery()

    assert not Bench(answer, Limits(rows=16)).wave(16).failures


def test_a_refusal_as_one_without_a_word_about_rows_is_a_refusal() -> None:
    bench = Bench(lambda ids, n: Delivery(refused_whole=True))
    assert outcomes(bench.wave(2)) == {0: Outcome.REJECTED, 1: Outcome.REJECTED}


# --- what stops the sync


def test_fatal_stops_the_sync_and_everything_not_sent_is_left_out() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n == 1, Outcome.FATAL))
    result = bench.wave(40)
    assert len(bench.sink.requests) == 2
    assert result.stop is not None
    assert result.stop.kind is StopKind.FATAL
    assert [failure.attempts for failure in result.failures.values()] == [1] * 10 + [0] * 20
    assert (result.counts.delivered.total, result.counts.failed.total, result.counts.skipped.total) == (10, 10, 20)
    assert not result.nothing_applied


@pytest.mark.parametrize("indexes", [(0, 0), (10,), (-1,)], ids=["twice", "beyond the batch", "negative"])
def test_an_answer_for_a_row_that_was_not_sent_stops_the_sync_and_is_not_believed(indexes: tuple[int, ...]) -> None:
    results = tuple(RowResult(index, Outcome.REJECTED, "why") for index in indexes)
    result = Bench(lambda ids, n: Delivery(results)).wave(20)
    assert result.stop is not None
    assert result.stop.kind is StopKind.FATAL
    assert "not sent" in result.stop.reason
    assert [outcomes(result)[row] for row in (0, 9, 10)] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.RETRYABLE]


def test_a_sink_that_raises_leaves_its_rows_unknown_and_its_words_unsaid() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        raise ValueError("alice@example.com")

    result = Bench(answer).wave(20)
    assert outcomes(result)[0] is Outcome.UNKNOWN
    assert "ValueError" in result.failures[0].reason
    assert "alice" not in repr(result)
    assert result.stop is not None
    assert result.requests == 1


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
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE if trips else Outcome.REJECTED}
    assert (result.counts.failed if trips else result.counts.rejected).total == bad


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


def test_no_request_is_made_once_the_lease_is_lost() -> None:
    looks = iter([True, True, False])
    bench = Bench(delivered, Limits(rows=1), lease_held=lambda: next(looks))
    with pytest.raises(LeaseLost):
        bench.wave(5)
    assert len(bench.sink.requests) == 2


def test_a_lease_lost_by_one_worker_stops_all_of_them() -> None:
    held = threading.Semaphore(3)
    bench = Bench(delivered, Limits(rows=1, concurrency=4), lease_held=lambda: held.acquire(blocking=False))
    with pytest.raises(LeaseLost):
        bench.wave(50)
    assert len(bench.sink.requests) <= 3


@settings(deadline=None, max_examples=20)
@given(st.floats(0.5, 50), st.integers(1, 30), st.integers(1, 4))
def test_the_rate_budget_is_kept_by_all_workers_together(rate: float, rows: int, workers: int) -> None:
    bench = Bench(delivered, Limits(rows=1, concurrency=workers, requests_per_second=rate))
    assert not bench.wave(rows).failures
    times = sorted(bench.sink.times)
    for i, start in enumerate(times):
        for j in range(i, len(times)):
            assert j - i <= (times[j] - start) * rate + 1e-6


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


@settings(deadline=None)
@given(st.integers(2, 20), st.integers(0, 19))
def test_a_claim_is_never_closed_with_nothing_left_out_if_a_row_was_refused(rows: int, bad: int) -> None:
    bench = Bench(refusing({bad % rows}), Limits(rows=rows), kind=OrderedSink)
    bench.wave(rows)
    closing = [batch for batch in bench.sink.batches if batch.last and bad % rows not in batch.rows["id"].to_pylist()]
    assert all(batch.left_out for batch in closing)


# --- how many requests at once


def test_the_number_of_requests_under_way_settles_where_the_destination_takes_them() -> None:
    under_way, refused, lock = 0, 0, threading.Lock()

    def answer(ids: list[int], number: int) -> Delivery:
        nonlocal under_way, refused
        with lock:
            under_way += 1
            too_many = under_way > 3
            refused += too_many
        time.sleep(0.002)
        with lock:
            under_way -= 1
        return Delivery.of_all(len(ids), Outcome.RETRYABLE, "busy", retry_after=0.0) if too_many else Delivery()

    bench = Bench(answer, Limits(rows=1, concurrency=16))
    assert not bench.wave(400).failures
    assert refused < 120, "with sixteen at once most requests would be refused"


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 20))
def test_permits_stay_between_one_and_the_limit_of_the_sink(troubles: list[bool], most: int) -> None:
    permits, held = Permits(most), 0
    for trouble in troubles:
        while permits.take(lambda: True):
            held += 1
        assert 1 <= held <= most
        permits.give_back(trouble=trouble)
        held -= 1
