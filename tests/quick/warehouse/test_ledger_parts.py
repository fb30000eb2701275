"""A record of the ledger that is larger than a task of a cluster may be: it goes in parts, and comes back whole."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.warehouse import ledger

ROWS = st.lists(st.fixed_dictionaries({"sync_id": st.just("a1"), "body": st.text(max_size=12)}), max_size=4)


@pytest.mark.guarantee("Crashes and claims")
@given(ROWS, st.integers(1, 5))
def test_the_parts_of_a_record_in_their_order_are_the_record_and_none_is_larger_than_asked(
    rows: list[dict[str, Any]], size: int
) -> None:
    whole: dict[int, dict[str, Any]] = defaultdict(lambda: {"body": ""})
    for part in sorted(ledger.parts_of(rows, size), key=lambda one: (one["_row"], one["_part"])):
        assert len(part["body"]) <= size
        before = whole[part["_row"]]["body"]
        whole[part["_row"]] = {"sync_id": part["sync_id"], "body": before + part["body"]}
    assert [*whole.values()] == rows
