"""What a plan says of a push that its guards or failed tests would block."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from dbt_reverse_etl import cli
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import Claim
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.terminal.screen import Screen
from tests.support.delivery.pushers import at, pusher, sync, without_spark
from tests.support.delivery.world import MemoryLedger

A = sync("a", "orders")._replace(guards=Guards.model_validate({"max_deletes": 1}))
PENDING = PerOperation(update=1, delete=2)
SPEC = next(iter(at(A, 4).states.values())).positions[0].spec
OVERRIDE = "a@5:+0~1-2"
DELETES = "2 deletes, of 3 rows (max_deletes: 1)"
FAILED = "tests not passed of orders: unique_id"
NEXT = f". Next: mend the model, or let this one pass: dbt-reverse-etl push --select a --override '{OVERRIDE}'"


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(SyncPush, "_remote", None)


def planned(
    monkeypatch: pytest.MonkeyPatch,
    *overrides: str,
    tests: tuple[str, ...] = (),
    pending: PerOperation = PENDING,
    claims: tuple[Claim, ...] = (),
) -> Report:
    """A plan of a sync that is a snapshot behind."""
    source = SimpleNamespace(planned=lambda: Histogram((pending,)), close=lambda: None)
    monkeypatch.setattr(SyncPush, "_source", lambda *_: source)
    memory: dict[str, Any] = {"ledger": MemoryLedger()}
    warehouse = replace(pusher(orders=5), overrides=overrides, **memory)
    return warehouse.plan(A, replace(at(A, 4, claims=claims), failing={"orders": tests} if tests else {}), 0)


@pytest.mark.guarantee("Guards")
@pytest.mark.parametrize(
    ("tests", "found"),
    [((), DELETES), (("test.shop.unique_id.0123456789",), f"{DELETES}; {FAILED}")],
    ids=["a guard", "a failed test, too"],
)
def test_a_plan_says_why_a_push_would_be_blocked_and_with_which_override_it_passes(
    tests: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = planned(monkeypatch, tests=tests)
    assert report.status == "planned", report.message
    assert (report.status, report.exit_code, report.planned) == ("planned", ExitCode.OK, PENDING)
    assert report.message == f"a push would be blocked: {found}{NEXT}"
    assert planned(monkeypatch, OVERRIDE, tests=tests).message == ""
    assert planned(monkeypatch, tests=tests, pending=PerOperation()).message == "", "a push would send nothing"


@pytest.mark.parametrize(
    ("mode", "transactional", "claimed", "everything", "promises"),
    [
        ("mirror", True, 5, False, False),
        ("mirror", True, 5, True, True),
        ("mirror", False, 4, False, True),
        ("changelog", False, 4, False, False),
        ("changelog", False, 4, True, False),
        ("changelog", False, 5, False, True),
    ],
)
def test_after_a_crash_a_plan_promises_no_override_where_a_push_settles_that_run_before_it_counts(  # noqa: PLR0917  (each is a case)
    mode: str, transactional: bool, claimed: int, everything: bool, promises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteSink, "transactional", transactional)
    monkeypatch.setattr(SqliteSink, "modes", frozenset(Mode))
    monkeypatch.setattr(SyncPush, "_spec", lambda one, *_, **__: replace(one._earlier[0], mode=Mode(mode)))
    claims = (Claim("c", 0, 9, claimed, SPEC, everything),)
    said = planned(monkeypatch, claims=claims).message
    assert DELETES in said
    assert (OVERRIDE in said, "may be blocked" in said) == (promises, not promises)
    assert ("the override may not hold" in planned(monkeypatch, OVERRIDE, claims=claims).message) is not promises


@pytest.mark.parametrize(
    ("position", "claims", "said"),
    [
        (6, (), "a later run has delivered more"),
        (
            4,
            (Claim("c", 0, 9, 6, SPEC),),
            "a later run has delivered a part of a newer snapshot: the next push sends the rest",
        ),
    ],
)
def test_a_plan_of_an_older_snapshot_than_a_later_run_has_delivered_promises_no_row(
    position: int, claims: tuple[Claim, ...], said: str
) -> None:
    warehouse = pusher(orders=7)
    warehouse._heads["orders", 5] = warehouse._heads["orders", None]
    report = warehouse.plan(A, at(A, position, claims=claims), 0)
    assert (report.status, report.exit_code, report.planned.total, report.message) == ("planned", ExitCode.OK, 0, said)


@pytest.mark.guarantee("Guards")
def test_the_command_the_comment_of_a_review_and_a_run_that_only_plans_show_it_after_the_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, said = planned(monkeypatch), f"a push would be blocked: {DELETES}{NEXT}"
    opened: Any = SimpleNamespace(pusher=SimpleNamespace(plan=lambda *_: report), overview=None, chosen=[A])
    monkeypatch.setattr(looking, "Opened", lambda *_, **__: nullcontext(opened))
    table, comment = (
        CliRunner().invoke(cli.cli, ["plan", *more], standalone_mode=False) for more in ((), ("--markdown",))
    )
    assert (table.return_value, table.stdout.splitlines()[-1]) == (ExitCode.OK, f"a: {said}")
    assert comment.stdout.splitlines()[-1] == f"| a | crm.a | 0 | 1 | 2 | a push would be blocked: {DELETES} |", (
        "nobody pushes a branch before its merge"
    )
    lines: list[tuple[str, str]] = []
    Screen(lambda text, level, _: lines.append((text, level))).tell(report, 1, 1)
    (counts, _), *below = lines
    assert "[+0 ~1 -2 in" in counts
    assert (f"  {said}", "warn") in below
