"""Where the keys of candidates lie, as ranges in a statement: none lies outside, there are few of them, and no bound is a value of a row."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.sql import value_of
from tests.support.dbt.ranges import GREATEST, LEAST, ranges_of

ANYWHERE = st.integers(LEAST, GREATEST)
SOMEWHERE = ANYWHERE.flatmap(lambda at: st.integers(max(LEAST, at - 5000), min(GREATEST, at + 5000)))
KEYS = st.lists(st.one_of(ANYWHERE, SOMEWHERE, st.integers(-3, 3)), max_size=60)


@pytest.mark.guarantee("Capture")
@settings(deadline=None)  # the first example parses all macros
@given(KEYS)
def test_every_key_lies_in_a_range_and_there_are_twenty_at_most(keys: list[int]) -> None:
    bits = max(10, (max(keys) - min(keys)).bit_length() - 10) if keys else 10
    ranges = ranges_of(bits, [key >> bits for key in keys])
    assert all(any(low <= key <= high for low, high in ranges) for key in keys)
    assert len(ranges) <= 20
    assert all(low >= LEAST and high <= GREATEST for low, high in ranges)
    assert all(low % 1024 == 0 and high % 1024 == 1023 for low, high in ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


def test_keys_that_are_far_from_each_other_stay_in_ranges_of_their_own() -> None:
    assert ranges_of(10, [0, 0, 1, 2, 900, -4]) == [(-4096, -3073), (0, 3071), (921600, 922623)]


def test_without_keys_nothing_is_read() -> None:
    assert value_of("_in_cells", "id", {"bits": None, "cells": []}) == "false"


def test_ranges_go_by_the_first_whole_number_of_the_key_in_its_own_order() -> None:
    types = {"line": "smallint", "code": "string", "order_id": "bigint", "at": "date"}
    model = [{"name": name, "type": type_} for name, type_ in types.items()]
    assert value_of("_range_column", {"key": ["code", "order_id", "line"], "model": model}) == "order_id"
    assert value_of("_range_column", {"key": ["code", "at"], "model": model}) is None
