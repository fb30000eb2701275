"""Sending again: retries, pauses that the destination asks for, and how many requests are under way."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.delivery.gate import Permits, StopKind
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.sinks.base import Limits
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.engine_bench import Bench, outcomes, some
from tests.support.effort import scaled

# --- retries


@pytest.mark.guarantee("Refusals and outages")
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


@pytest.mark.guarantee("Refusals and outages")
def test_the_wait_is_a_random_part_of_it() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n < 1, Outcome.RETRYABLE), policy=Policy(retries=Retries(first=8)))
    bench.engine._gate.random = lambda: 0.25
    bench.wave(1)
    assert bench.sink.times == [0, 2]


@pytest.mark.guarantee("Refusals and outages")
def test_a_destination_that_is_down_stops_the_sync_in_time_and_rejects_nothing() -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.RETRYABLE))
    result = bench.wave(100)
    assert result.stop is not None
    assert result.stop.kind is StopKind.UNAVAILABLE
    assert result.stop.reason.startswith("why; "), "the cause comes first"
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE}
    assert bench.clock.monotonic() <= Retries().seconds
    assert result.nothing_applied
    assert result.counts.failed.total + result.counts.skipped.total == 100


@pytest.mark.guarantee("Refusals and outages")
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


@pytest.mark.guarantee("Refusals and outages")
@settings(deadline=None, max_examples=scaled(30))
@given(st.integers(0, 8), st.integers(1, 4))
def test_repeated_requests_are_bounded_by_their_budget(requests: int, workers: int) -> None:
    retries = Retries(requests=requests, share=0.1, seconds=1e9)
    limits = Limits(rows=1, concurrency=workers)
    bench = Bench(lambda ids, n: some(ids, lambda i: i % 2 == 0, Outcome.RETRYABLE), limits, Policy(retries=retries))
    bench.wave(100)
    first = len({tuple(request) for request in bench.sink.requests})
    assert len(bench.sink.requests) - first <= requests + 0.1 * len(bench.sink.requests)


@pytest.mark.guarantee("Refusals and outages")
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


@pytest.mark.guarantee("Refusals and outages")
def test_unknown_is_sent_again_and_only_delivered_takes_it_away() -> None:
    first_unknown = {0: Outcome.UNKNOWN, 1: Outcome.REJECTED}
    bench = Bench(lambda ids, n: some(ids, lambda i: n in first_unknown, first_unknown.get(n, Outcome.FATAL)))
    assert outcomes(bench.wave(1)) == {0: Outcome.UNKNOWN}
    assert bench.sink.requests == [[0], [0]]
    bench = Bench(lambda ids, n: some(ids, lambda i: n == 0, Outcome.UNKNOWN))
    assert bench.wave(1).failures == {}


# --- Retry-After


@pytest.mark.guarantee("Refusals and outages")
def test_retry_after_pauses_every_worker_at_least_that_long() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return some(ids, lambda i: number == 0, Outcome.RETRYABLE, **({"retry_after": 60.0} if number == 0 else {}))

    bench = Bench(answer, Limits(rows=1, concurrency=1))
    assert not bench.wave(5).failures
    assert bench.sink.times[0] == 0
    assert min(bench.sink.times[1:]) >= 60


@pytest.mark.guarantee("Refusals and outages")
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


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("seconds", [1e9, math.inf, 301.0])
def test_a_pause_beyond_the_budget_leaves_the_rest_as_retryable(seconds: float) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.RETRYABLE, retry_after=seconds))
    result = bench.wave(30)
    assert len(bench.sink.requests) == 1
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE}
    assert result.stop is not None
    assert (result.stop.kind, result.stop.reason) == (
        StopKind.UNAVAILABLE,
        "why; the destination asks for a longer pause than a run may wait",
    )
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [0.0, -5.0, math.nan])
def test_a_retry_after_that_says_nothing_still_ends(seconds: float) -> None:
    bench = Bench(lambda ids, n: some(ids, lambda i: n < 3, Outcome.RETRYABLE, retry_after=seconds))
    assert not bench.wave(2).failures
    assert len(bench.sink.requests) == 4


@pytest.mark.guarantee(
    "Refusals and outages", "A pause below a second removes neither the back-off nor the budget of repeats"
)
@pytest.mark.parametrize("seconds", [0.0, 0.9])
def test_a_pause_below_a_second_keeps_the_back_off_and_the_budget(seconds: float) -> None:
    answer = lambda ids, n: some(ids, lambda i: n < 5, Outcome.RETRYABLE, retry_after=seconds)  # noqa: E731
    bench = Bench(answer, policy=Policy(retries=Retries(first=1, cap=5, seconds=1000)))
    bench.wave(1)
    assert [b - a for a, b in zip(bench.sink.times, bench.sink.times[1:], strict=False)] == [1, 2, 4, 5, 5]
    few = Policy(retries=Retries(requests=3, share=0.0, seconds=1e9))
    bench = Bench(lambda ids, n: some(ids, lambda i: True, Outcome.RETRYABLE, retry_after=seconds), policy=few)
    result = bench.wave(1)
    assert len(bench.sink.requests) <= 1 + 3
    assert set(outcomes(result).values()) == {Outcome.RETRYABLE}


# --- how many requests at once


@pytest.mark.guarantee("Refusals and outages")
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
