"""What a push takes for due, without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.invocation import pushed_by
from dbt_reverse_etl.app.project import Ask
from dbt_reverse_etl.app.repeats import behind, left_behind, refuse_older, still_due
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.config.artifacts import Invocation
from dbt_reverse_etl.delivery.facts import Claim, RunStarted, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.ledger import Heard, Overview, Refusal
from tests.support.delivery.pushers import at, pusher, sync

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUN = Invocation("inv-1", "run", False, False, {}, {})


A, B, C = sync("a", "orders"), sync("b", "orders"), sync("c", "customers")
DUE = [A, B, C]


def overview(invocation: str, status: str, *left: Undelivered, claims: tuple[Claim, ...] = ()) -> Overview:
    """Sync `a` was last pushed by this invocation, and ended so."""
    started = RunStarted(id_of(A), 1, "r", NOW, 5, "", {}, (), (), (), NOW, "me", invocation_id=invocation)
    state = State(fence=1, status=status, undelivered={row.key: row for row in left}, claims=claims)
    return Overview({id_of(A): state}, {id_of(A): "a"}, {}, {id_of(A): started})


def row(outcome: str) -> Undelivered:
    return Undelivered("k", 1, None, 1, False, False, 1, "update", outcome, "r", 1, NOW, None)


DOUBT = (
    Claim("doubt", 0, 9, 5, "s", everything=True),
)  # of a resync that was not pushed, or of a run that woke up late


def in_doubt(told: Overview) -> Overview:
    """The same with rows in doubt: a resync was not pushed, or a run woke up late."""
    states = {
        name: replace(state, claims=(replace(DOUBT[0], spec=state.positions[0].spec),))
        for name, state in told.states.items()
    }
    return replace(told, states=states)


REJECTED, UNMATCHED = row("rejected"), row("no_match")


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(
    ("told", "heads", "left"),
    [
        (Overview(), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-1", "succeeded"), {"orders": 5, "customers": 5}, ["b", "c"]),
        (overview("inv-1", "failed"), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-1", "partial", REJECTED), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-1", "succeeded", UNMATCHED), {"orders": 5, "customers": 5}, ["b", "c"]),
        (overview("inv-1", "succeeded", claims=DOUBT), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-1", "forget"), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (overview("inv-0", "succeeded"), {"orders": 5, "customers": 5}, ["a", "b", "c"]),
        (
            replace(overview("inv-1", "succeeded"), heard={"a": Heard("failing")}),
            {"orders": 5, "customers": 5},
            ["a", "b", "c"],
        ),
        (Overview(), {"orders": 6, "customers": 5}, ["c"]),
        (overview("inv-1", "succeeded"), {"orders": 6, "customers": 6}, []),
    ],
)
def test_what_was_pushed_well_or_is_overtaken_is_left_out_and_nothing_else(
    told: Overview, heads: dict[str, int], left: list[str]
) -> None:
    said: list[str] = []
    due = still_due(RUN, DUE, told, pusher(**heads), lambda text, _: said.append(text))
    assert [one.sync.name for one in due] == left
    assert len(said) == 3 - len(left)


def test_without_it_results_that_a_later_run_has_overtaken_are_an_error() -> None:
    with pytest.raises(ReverseEtlError, match="snapshot 5 of orders; its changelog is at 6"):
        refuse_older(DUE, pusher(orders=6, customers=5))


@pytest.mark.parametrize(
    ("told", "names"),
    [
        (Overview(), set()),
        (overview("inv-1", "succeeded"), set()),
        (overview("inv-1", "reconcile"), set()),
        (overview("inv-1", "succeeded", claims=DOUBT), {"a"}),
        (overview("inv-1", "failed"), {"a"}),
        (overview("inv-1", "interrupted"), {"a"}),
        (overview("inv-1", "partial", REJECTED), {"a"}),
        (overview("inv-1", "succeeded", UNMATCHED), {"a"}),
        (Overview(refusals={"b": Refusal("blocked", "", NOW, id_of(B))}), {"b"}),
        (replace(overview("inv-1", "succeeded"), heard={"a": Heard("failing")}), {"a"}),
        (replace(overview("inv-1", "succeeded"), heard={"a": Heard("recovered", is_sure=False)}), {"a"}),
        (replace(overview("inv-1", "succeeded"), heard={"a": Heard("recovered")}), set()),
    ],
)
def test_a_retry_pushes_what_did_not_end_well_or_left_a_row_and_that_of_whose_recovery_nobody_may_have_heard(
    told: Overview, names: set[str]
) -> None:
    assert left_behind(DUE, told) == names


@pytest.mark.parametrize(
    ("told", "heads", "is_behind"),
    [
        (Overview(), {}, False),
        (Overview(), {"orders": 5}, True),
        (at(A, 5), {"orders": 5}, False),
        (at(A, 4), {"orders": 5}, True),
        (at(A, 6), {"orders": 5}, True),
        (at(A, 5), {}, True),
        (at(A, 5, changelog="another"), {"orders": 5}, True),
        (at(A, 5, where="id > 3"), {"orders": 5}, True),
        (at(A, 5, status="failed"), {"orders": 5}, True),
        (at(A, 5, status="partial", undelivered={"k": REJECTED}), {"orders": 5}, True),
        (at(A, 5, finished=False), {"orders": 5}, True),
        (in_doubt(at(A, 5)), {"orders": 5}, True),
        (replace(at(A, 5), refusals={"a": Refusal("blocked", "", NOW, id_of(A), 1)}), {"orders": 5}, True),
    ],
)
def test_a_push_concerns_each_sync_whose_destination_may_not_hold_the_head_as_it_is_defined_now(
    told: Overview, heads: dict[str, int], is_behind: bool
) -> None:
    warehouse = pusher(**heads)
    warehouse._heads.setdefault(("orders", None), None)
    assert behind([A], told, warehouse) == ({"a"} if is_behind else set())


def test_a_retry_leaves_what_the_retried_command_only_captures_to_one_that_pushes_it() -> None:
    always, tested = sync("always", "orders"), sync("tested", "orders", push_on=["build"])
    for command, pushed in (("run", [always]), ("build", [always, tested]), ("compile", []), ("", [])):
        retried = replace(RUN, command=command)
        assert pushed_by(Ask.DBT_RETRY, retried, [always, tested]) == pushed, command
        assert pushed_by(Ask.PUSH, retried, [always, tested]) == [always, tested]


def test_a_retry_leaves_what_the_retried_command_excludes_although_an_earlier_push_left_rows_behind() -> None:
    excluding = replace(RUN, excluded=(A.sync,))
    assert pushed_by(Ask.DBT_RETRY, excluding, DUE) == [B, C]
    for ask in (Ask.PUSH, Ask.RETRY):
        assert pushed_by(ask, excluding, DUE) == DUE
