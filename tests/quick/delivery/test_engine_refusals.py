"""A batch that is refused as one: bisection finds the rows at fault."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Limits
from tests.support.delivery.engine_bench import Bench, outcomes, refusing
from tests.support.effort import scaled


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
    for rows in range(1, 131):
        worst = max(Bench(refusing({bad}), Limits(rows=rows)).wave(rows).requests for bad in {0, rows // 2, rows - 1})
        assert worst - 1 <= 2 * math.log2(rows) + 1, f"{rows} rows"


@pytest.mark.guarantee("Refusals and outages")
def test_a_batch_that_is_only_too_large_is_delivered_in_halves() -> None:
    def answer(ids: list[int], number: int) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.REJECTED, "too large") if len(ids) > 3 else Delivery()

    assert not Bench(answer, Limits(rows=16)).wave(16).failures


def test_a_refusal_as_one_without_a_word_about_rows_is_a_refusal() -> None:
    bench = Bench(lambda ids, n: Delivery(refused_whole=True))
    assert outcomes(bench.wave(2)) == {0: Outcome.REJECTED, 1: Outcome.REJECTED}
