"""Ranges of buckets, against sets of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.delivery.facts import BUCKETS
from dbt_reverse_etl.sinks.ranges import Ranges, coarse, common, minus, singles, union

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)
Given = list[tuple[int, int]]


def buckets_of(ranges: Given | Ranges) -> set[int]:
    return {bucket for lo, hi in ranges for bucket in range(lo, hi)}


@given(RANGES, RANGES)
def test_what_is_in_some_in_both_and_in_one_alone_is_that_of_sets(ranges: Given, others: Given) -> None:
    assert buckets_of(union([*ranges, *others])) == buckets_of(ranges) | buckets_of(others)
    assert buckets_of(common(ranges, others)) == buckets_of(ranges) & buckets_of(others)
    assert buckets_of(minus(ranges, others)) == buckets_of(ranges) - buckets_of(others)
    for found in (union(ranges), common(ranges, others), minus(ranges, others)):
        assert all(lo < hi for lo, hi in found)
        assert all(left[1] < right[0] for left, right in pairwise(found)), "sorted and apart"


@given(st.sets(st.integers(0, BUCKETS - 1), max_size=40), st.integers(1, 20))
def test_ranges_hold_their_buckets_and_no_others_if_they_may_be_many_enough(buckets: set[int], most: int) -> None:
    ranges = coarse(singles(buckets), most)
    assert len(ranges) <= most
    held = buckets_of(ranges)
    assert buckets <= held
    gaps = sorted((right - left - 1 for left, right in pairwise(sorted(buckets))), reverse=True)
    assert len(held) == len(buckets) + sum(gaps[most - 1 :])
