"""What all syncs of one push share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dbt_reverse_etl.app import context
from dbt_reverse_etl.warehouse.head import Head


def test_what_one_sync_has_written_of_its_ledger_holds_for_each_head_that_was_read_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(_spark: Any, _relation: str, snapshot: int | None, _about: Any) -> Head:
        return Head(snapshot or 5, "c", 1, 1, ("id",), (("id", "int"),), "0", {"a": "old"})

    monkeypatch.setattr(context, "read_head", read)
    shared: Any = context.PushContext(None, None)  # type: ignore[arg-type]
    first, newest, again = (shared.head("people", snapshot) for snapshot in (5, None, 5))
    first.marks["a"] = "new"  # what `name_ledger` does after it wrote it
    assert [head.marks for head in (newest, again)] == [{"a": "new"}] * 2
    assert shared.head("orders").marks == {"a": "old"}


def test_syncs_that_are_pushed_at_once_read_one_head_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(_spark: Any, relation: str, snapshot: int | None, _about: Any) -> Head:
        reads.append(relation)
        time.sleep(0.05)
        return Head(snapshot or 5, "c", 1, 1, ("id",), (("id", "int"),), "0", {})

    monkeypatch.setattr(context, "read_head", read)
    shared: Any = context.PushContext(None, None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as pool:
        heads = list(pool.map(shared.head, ["people"] * 4))
    assert len({id(head) for head in heads}) == 1
    assert reads == ["people"]
