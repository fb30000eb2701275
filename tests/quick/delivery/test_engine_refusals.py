"""A batch that is refused as one: bisection finds the rows at fault."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.sinks.base import Limits, Mode
from tests.support.delivery.engine_bench import Bench, outcomes, refusing
from tests.support.effort import scaled


def doubtful(ids: list[int]) -> tuple[int, ...]:
    """Of a batch with several rows each may be applied."""
    return tuple(range(len(ids))) if len(ids) > 1 else ()


FEW = Retries(requests=0, share=0.0, attempts=1)


@pytest.mark.guarantee("Refusals and outages")
@settings(deadline=None, max_examples=scaled(60))
@given(st.integers(1, 130).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=4))))
def test_bisection_finds_exactly_the_guilty_rows_within_its_bound(case: tuple[int, set[int]]) -> None:
    rows, bad = case
    bench = Bench(refusing(bad), Limits(rows=rows))
    result = bench.wave(rows)
    assert outcomes(result) == dict.fromkeys(sorted(bad), Outcome.REJECTED)
    assert len(bench.sink.requests) - 1 <= len(bad) * (2 * math.log2(rows) + 1)


@pytest.mark.guarantee("Refusals and outages")
def test_one_bad_row_costs_at_most_twice_the_logarithm_wherever_it_is() -> None:
    for rows, where in product(range(1, 131), (0, 0.5, 1)):
        bench = Bench(refusing({int(where * (rows - 1))}), Limits(rows=rows))
        bench.wave(rows)
        assert len(bench.sink.requests) - 1 <= 2 * math.log2(rows) + 1, f"{rows} rows"


@pytest.mark.guarantee("Refusals and outages")
def test_a_batch_that_is_only_too_large_is_delivered_in_halves() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.REJECTED, "too large") if len(ids) > 3 else Delivery()

    assert not Bench(answer, Limits(rows=16)).wave(16).failures


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("then", ["retryable", "fatal", "interrupted"])
def test_rows_of_a_batch_that_was_applied_in_part_are_unknown_until_each_has_its_own_answer(then: str) -> None:
    """Braze, HubSpot and Iterable take the good rows of a batch and need not say which they refused."""
    bench = Bench(lambda ids, n: partly(ids) if n < 1 else stopping(ids), Limits(rows=4), Policy(retries=FEW))

    def partly(ids: list[int]) -> Delivery:
        if 0 not in ids:
            return Delivery()
        return replace(Delivery.of_all(len(ids), Outcome.REJECTED, "one of them"), maybe_applied=doubtful(ids))

    def stopping(ids: list[int]) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.FATAL if then == "fatal" else Outcome.RETRYABLE, "HTTP")

    bench.interrupted = lambda: then == "interrupted" and len(bench.sink.batches) == 2
    result = bench.wave(4)
    assert outcomes(result) == dict.fromkeys(range(4), Outcome.UNKNOWN)
    assert (result.nothing_applied, result.any_unknown) == (False, True)
    assert result.counts.failed.total == 4


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("parks", [False, True])
def test_where_some_rows_of_a_batch_were_applied_the_refused_one_is_found_unless_doubt_is_parked(parks: bool) -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        refused = Delivery.of_all(len(ids), Outcome.REJECTED, "one of them")
        return replace(refused, maybe_applied=doubtful(ids)) if 5 in ids else Delivery()

    policy = Policy().parking_doubt() if parks else Policy()
    result = Bench(answer, Limits(rows=100), policy).wave(300)
    parked = dict.fromkeys(range(100), Outcome.UNKNOWN)
    assert (outcomes(result), result.stop) == (parked if parks else {5: Outcome.REJECTED}, None)
    assert result.counts.delivered.total == (200 if parks else 299)
    retried = Bench(answer, Limits(rows=100), replace(policy, retry_now=True)).wave(300)
    assert outcomes(retried) == {5: Outcome.REJECTED}, "retry sends what is parked"


@pytest.mark.guarantee("Refusals and outages")
def test_a_row_without_a_match_is_found_in_a_batch_that_was_applied_in_part() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        if ids == [2]:
            return Delivery.of_all(1, Outcome.NO_MATCH, "HTTP 404: no match")
        refused = Delivery.of_all(len(ids), Outcome.REJECTED, "one of them")
        return replace(refused, maybe_applied=doubtful(ids)) if 2 in ids else Delivery()

    result = Bench(answer, Limits(rows=4), mode=Mode.UPDATE_ONLY).wave(4)
    assert (outcomes(result), result.any_unknown) == ({2: Outcome.NO_MATCH}, False)


@pytest.mark.guarantee("Refusals and outages")
def test_a_row_of_a_second_request_that_was_applied_in_part_is_rejected_once_it_is_refused_alone() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        if 2 not in ids:
            return Delivery()
        if len(ids) == 1:
            return Delivery.of_all(1, Outcome.REJECTED, "refused")
        if ids == [2, 3]:  # now in the first request of a batch
            return replace(Delivery.of_all(2, Outcome.REJECTED, "one of them"), maybe_applied=(0, 1))
        apart = [RowResult(index, Outcome.RETRYABLE, "apart") for index, one in enumerate(ids) if one >= 2]
        return Delivery((*apart,), maybe_applied=tuple(one.index for one in apart))

    result = Bench(answer, Limits(rows=4)).wave(4)
    assert outcomes(result) == {2: Outcome.REJECTED}
    stopped = Bench(answer, Limits(rows=4), Policy(retries=FEW)).wave(4)
    assert outcomes(stopped) == {2: Outcome.UNKNOWN, 3: Outcome.UNKNOWN}


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("whole", [False, True], ids=["others delivered", "refused as one"])
@pytest.mark.parametrize("found", ["in_part", "maybe_applied"])
def test_a_row_that_arrived_in_part_stays_in_doubt_if_its_next_attempt_is_refused(found: str, *, whole: bool) -> None:
    """A topic keeps the event whose tombstone it refused; an API that takes a row as one applied all of it or nothing."""

    def answer(ids: list[int], number: int) -> Delivery:
        if number or 1 not in ids:
            return Delivery.of_all(len(ids), Outcome.REJECTED, "refused") if 1 in ids else Delivery()
        rows = range(len(ids)) if whole else [1]
        outcome = Outcome.REJECTED if whole else Outcome.RETRYABLE
        results = tuple(RowResult(index, outcome, "together") for index in rows)
        return replace(Delivery(results, refused_whole=whole), **{found: (1,)})

    result = Bench(answer, Limits(rows=4)).wave(4)
    assert outcomes(result) == {1: Outcome.REJECTED}
    assert result.failures[1].in_part is (found == "in_part")
    assert result.failures[1].reason == "refused"


@pytest.mark.guarantee("Refusals and outages")
def test_a_row_that_is_refused_by_itself_is_not_unknown_where_doubt_is_parked() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        others = [] if len(ids) == 1 else [RowResult(2, Outcome.RETRYABLE, "together")]
        return Delivery((RowResult(0, Outcome.REJECTED, "half of it"), *others), in_part=(0, 2) if others else (0,))

    for rows in (1, 4):
        result = Bench(answer, Limits(rows=4), Policy().parking_doubt()).wave(rows)
        assert outcomes(result) == {0: Outcome.REJECTED} | ({2: Outcome.UNKNOWN} if rows > 1 else {})
        assert (result.failures[0].in_part, result.failures[0].reason) == (True, "half of it")


def test_a_refusal_as_one_without_a_word_about_rows_is_a_refusal() -> None:
    bench = Bench(lambda ids, n: Delivery(refused_whole=True))
    assert outcomes(bench.wave(2)) == {0: Outcome.REJECTED, 1: Outcome.REJECTED}
