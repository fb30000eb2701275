"""What a push takes for due, without Spark."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.invocation import pushed_by
from dbt_reverse_etl.app.project import Ask
from dbt_reverse_etl.app.repeats import behind, left_behind, refuse_older, still_due
from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError, worst
from dbt_reverse_etl.commands import pushing
from dbt_reverse_etl.config.artifacts import ChangelogResult, Invocation
from dbt_reverse_etl.delivery.facts import Claim, RunStarted, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.terminal import console
from dbt_reverse_etl.warehouse.overview import Heard, Overview, Refusal
from tests.support.delivery.pushers import at, pusher, sync

HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUN = Invocation("inv-1", "run", {}, {})


A, B, C = sync("a", "orders"), sync("b", "orders"), sync("c", "customers")
DUE = [A, B, C]


def overview(invocation_id: str, status: str, *left: Undelivered, claims: tuple[Claim, ...] = ()) -> Overview:
    """Sync `a` was last pushed by this invocation, and ended so."""
    started = RunStarted(id_of(A), 1, "r", NOW, 5, "", {}, (), (), (), NOW, "me", invocation_id=invocation_id)
    state = State(fence=1, status=status, undelivered={row.key: row for row in left}, claims=claims)
    return Overview({id_of(A): state}, started={id_of(A): started})


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
    ],
)
def test_what_was_pushed_well_is_left_out_and_nothing_else(
    told: Overview, heads: dict[str, int], left: list[str]
) -> None:
    said: list[str] = []
    due, overtaken_now = still_due(RUN, DUE, told, pusher(**heads), lambda text, _: said.append(text))
    assert [one.sync.name for one in due] == left
    assert not overtaken_now
    assert len(said) == 3 - len(left)


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(
    ("told", "heads", "left", "overtaken"),
    [
        (Overview(), {"orders": 6, "customers": 5}, ["c"], ["a", "b"]),
        (overview("inv-1", "succeeded"), {"orders": 6, "customers": 6}, [], ["b", "c"]),
        (at(A, 4), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
        (at(A, 5), {"orders": 6, "customers": 6}, [], ["b", "c"]),
        (at(A, 6), {"orders": 6, "customers": 6}, [], ["b", "c"]),
        (at(A, 6, changelog="another"), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
        (at(A, 6, undelivered={"k": REJECTED}), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
        (at(A, 6, status="failed"), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
        (at(A, 6, finished=False), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
        (in_doubt(at(A, 6)), {"orders": 6, "customers": 6}, [], ["a", "b", "c"]),
    ],
)
def test_results_that_a_later_run_has_overtaken_are_not_pushed_and_are_no_success_until_their_rows_have_arrived(
    told: Overview, heads: dict[str, int], left: list[str], overtaken: list[str]
) -> None:
    due, overtaken_now = still_due(RUN, DUE, told, pusher(**heads), lambda *_: None)
    assert [one.sync.name for one in due] == left
    assert [one.sync for one in overtaken_now] == overtaken
    assert worst(one.exit_code for one in overtaken_now) == ExitCode.OVERTAKEN


@pytest.mark.parametrize(
    ("told", "health", "position", "fence"),
    [
        (Overview(), "never pushed", 0, 0),
        (at(A, 4), "behind", 4, 1),
        (at(A, 5, status="partial", undelivered={"k": REJECTED}), "failing", 5, 1),
        (replace(at(A, 4), refusals={"a": Refusal("blocked", "", NOW, id_of(A), 1)}), "failing", 4, 1),
        (at(A, 4, status="interrupted"), "unsettled", 4, 1),
    ],
)
def test_a_sync_that_was_overtaken_or_that_a_signal_left_out_is_reported_as_status_shows_it(
    told: Overview, health: str, position: int, fence: int
) -> None:
    """Its changelog is at 6, and the artifacts are of snapshot 5."""
    warehouse = pusher(orders=6)
    _, [overtaken] = still_due(RUN, [A], told, warehouse, lambda *_: None)
    for report in (overtaken, warehouse.left(A, told, begun=False)):
        said = console.as_json(report)
        assert (said["health"], said["position"], said["fence"]) == (health, position, fence)
        assert (said["sync_id"], said["relation"]) == (id_of(A), "orders")
        assert said["undelivered"] == len(told.states.get(id_of(A), State()).undelivered)
        assert said["health"] == pusher(orders=6).status(A, told)["health"]
    begun = console.as_json(warehouse.left(A, told, begun=True))
    assert (begun["health"], begun["position"]) == ("unsettled", position)
    assert begun["reason"] == "interrupted: it did not end in time: the next push settles what it sent"


@pytest.mark.guarantee("dbt Cloud")
def test_a_push_that_a_later_run_has_overtaken_ends_with_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = replace(RUN, changelogs={"orders": ChangelogResult("success", 5, "uuid")}, push=(A.sync,))
    configuration = SimpleNamespace(
        syncs=[A.sync], resolved=[A], destinations={}, alerts=(), refuse_unset=lambda *_, **__: None
    )
    about = {"manifest": lambda: {}, "invocation": lambda *_: ran, "configuration": lambda _: configuration}
    project: Any = SimpleNamespace(**about, env={}, switch="on", target="prod", folder=Path())
    for name, value in {
        "open_ledger": lambda *_: None,
        "overview_of": lambda *_: Overview(),
        "_with_tests": lambda found, *_: found,
        "overrides_of": lambda *_: (),
        "Pusher": lambda *_, **__: pusher(orders=6),
        "watched": lambda *_, **__: nullcontext(),
    }.items():
        monkeypatch.setattr(invocation, name, value)
    monkeypatch.setattr("dbt_reverse_etl.app.alerts.tell", lambda *_: None)
    monkeypatch.setattr("dbt_reverse_etl.app.reach.try_early", lambda *_: None)
    monkeypatch.setattr(invocation, "push_all", lambda *_: None)
    place: Any = SimpleNamespace(session=lambda _: lambda: None)
    with click.Context(pushing.push, obj={}):
        assert pushing._pushed(project, place, as_json=False, selectors=(), ask=Ask.IF_DUE) == ExitCode.OVERTAKEN


def test_that_a_sync_was_overtaken_hides_no_failure() -> None:
    assert [worst(codes) for codes in ([], [0], [0, 6], [6, 1], [5, 6, 0])] == [0, 0, 6, 1, 5]


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
        (Overview(refusals={"b": Refusal("failed", "", NOW, "of a mistyped host")}), {"b"}),
        (
            replace(at(B, 5, started_at=NOW - HOUR), refusals={"b": Refusal("failed", "", NOW, "of a mistyped host")}),
            {"b"},
        ),
        (
            replace(at(B, 5, started_at=NOW + HOUR), refusals={"b": Refusal("failed", "", NOW, "of a former host")}),
            set(),
        ),
        (Overview(refusals={"b": Refusal("ok", "", NOW, "of a former host")}), set()),
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
    ("ask", "names"), [(Ask.RUN, ["b"]), (Ask.DBT_RETRY, ["a", "b"]), (Ask.RETRY, ["a", "b"]), (Ask.PUSH, ["a", "c"])]
)
def test_a_retry_pushes_what_the_last_run_made_due_with_what_was_left_behind_and_a_push_what_is_behind(
    ask: Ask, names: list[str]
) -> None:
    left = replace(at(A, 5, status="failed"), states=at(A, 5, status="failed").states | at(B, 5).states)
    wanted = invocation._wanted(ask, invocation.Due([B], []), DUE, left, pusher(orders=5, customers=5))
    assert [one.sync.name for one in wanted.push] == names


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
