"""`push --if-due`: what of a queue's artifacts is neither pushed before nor overtaken, without Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.artifacts import Invocation
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.errors import ReverseEtlError
from dbt_reverse_etl.invocation import Due, _refuse_older, _refuse_repeat, _still_due
from dbt_reverse_etl.ledger import Overview
from dbt_reverse_etl.one_sync import Known

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUN = Invocation("inv-1", "run", False, False, "prod", {}, {})


def sync(name: str, changelog: str) -> Any:
    relation = SimpleNamespace(unique_id=changelog, relation_name=changelog, name=changelog)
    return SimpleNamespace(sync=SimpleNamespace(name=name, changelog=relation))


A, B, C = sync("a", "orders"), sync("b", "orders"), sync("c", "customers")
DUE = Due([A, B, C], [])


def pusher(**heads: int) -> Any:
    """The results know snapshot 5 of each changelog; the warehouse is at `heads`."""
    known = {name: Known(5, "uuid") for name in heads}
    return SimpleNamespace(known=known, head=lambda name: SimpleNamespace(snapshot=heads[name], changelog="uuid"))


def overview(invocation: str, status: str) -> Overview:
    """Sync `a` was last pushed by this invocation, and ended so."""
    started = RunStarted("id-a", 1, "r", NOW, 5, "", {}, (), (), (), NOW, "me", invocation_id=invocation)
    return Overview({"id-a": State(status=status)}, {"id-a": "a"}, {}, {"id-a": started})


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(
    ("told", "heads", "left"),
    [
        (Overview(), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-1", "succeeded"), {"orders": 5, "customers": 5}, ["b", "c"]),
        (overview("inv-1", "failed"), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-0", "succeeded"), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (Overview(), {"orders": 6, "customers": 5}, ["c"]),
        (overview("inv-1", "succeeded"), {"orders": 6, "customers": 6}, []),
    ],
)
def test_what_was_pushed_well_or_is_overtaken_is_left_out_and_nothing_else(
    told: Overview, heads: dict[str, int], left: list[str]
) -> None:
    said: list[str] = []
    due = _still_due(RUN, DUE, told, pusher(**heads), lambda text, _: said.append(text))
    assert [one.sync.name for one in due] == left
    assert len(said) == 3 - len(left)


def test_without_it_both_are_errors() -> None:
    with pytest.raises(ReverseEtlError, match="which were pushed before"):
        _refuse_repeat(RUN, Due([A], []), overview("inv-1", "succeeded"))
    with pytest.raises(ReverseEtlError, match="snapshot 5 of orders; its changelog is at 6"):
        _refuse_older(DUE, pusher(orders=6, customers=5))
