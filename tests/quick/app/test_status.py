"""What `status` says of a sync: one word, why, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dbt_reverse_etl import cli
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.base.errors import ExitCode, Problem, ReverseEtlError
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.facts import Undelivered
from dbt_reverse_etl.warehouse.overview import Overview, Refusal
from tests.support.delivery.pushers import at, looks_at, pusher, sync

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
A = sync("a", "orders")
LEFT = {"k": Undelivered("k", 1, None, 1, False, False, 1, "update", "rejected", "too long", 1, NOW, NOW + timedelta(days=9999))}  # fmt: skip
STOPPED = Counts(PerOperation(9), PerOperation(2), failed=PerOperation(3), skipped=PerOperation(4))
BLOCKED = {"a": Refusal("blocked", "a: found 3 deletes", NOW, id_of(A), 1)}
BLOCKED_FIRST = {"a": replace(BLOCKED["a"], fence=0)}
FAILING = {"orders": ("test.shop.unique_id.0123456789",)}


def later(head: Any) -> Any:
    return replace(head, package_version="9.9.9")


def restored(head: Any) -> Any:
    return replace(head, changelog="another")


def as_it_is(head: Any) -> Any:
    return head


def row_of(told: Overview, snapshot: int = 5, change: Callable[[Any], Any] = as_it_is) -> dict[str, Any]:
    """The status of one sync whose changelog is at this snapshot; 0: it has none."""
    warehouse = pusher(orders=snapshot)
    head = change(warehouse.head("orders")) if snapshot else None
    return looks_at(warehouse, orders=head).status(A, told)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("row", "health", "reason"),
    [
        (lambda: row_of(Overview()), "never pushed", "never ran: nothing was pushed yet"),
        (lambda: row_of(Overview(), 0), "never pushed", "never ran: its changelog has no snapshot yet"),
        (lambda: row_of(at(A, 5)), "ok", ""),
        (lambda: row_of(at(A, 4)), "behind", "1 snapshot captured since"),
        (lambda: row_of(at(A, 3)), "behind", "2 snapshots captured since"),
        (lambda: row_of(replace(at(A, 4), refusals=BLOCKED)), "failing", "blocked: a: found 3 deletes"),
        (lambda: row_of(Overview(refusals=BLOCKED_FIRST)), "failing", "blocked: a: found 3 deletes"),
        (lambda: row_of(replace(at(A, 4), failing=FAILING)), "failing", "tests not passed of orders: unique_id; a push is blocked until they pass"),
        (lambda: row_of(replace(at(A, 5), failing=FAILING)), "ok", ""),
        (lambda: row_of(at(A, 5), change=later), "failing", "other_version: orders: found a snapshot of the dbt package 9.9.9"),
        (lambda: row_of(at(A, 5), change=restored), "failing", "other_changelog: a: found a position of another changelog"),
        (lambda: row_of(at(A, 7)), "failing", "restored_changelog: a: found a position at snapshot 7"),
        (lambda: row_of(at(A, 5, status="partial", undelivered=LEFT)), "failing", "undelivered rows: 1, and max_undelivered allows 0"),
        (lambda: row_of(at(A, 5, status="failed", message="no answer")), "failing", "failed: no answer"),
        (lambda: row_of(at(A, 5, status="interrupted")), "unsettled", "interrupted: "),
        (lambda: row_of(at(A, 5, finished=False, started_at=NOW)), "unsettled", "unfinished: the run that began at 2026-01-01 00:00 UTC has not ended"),
    ],
)  # fmt: skip
def test_each_health_comes_with_its_reason(row: Callable[[], dict[str, Any]], health: str, reason: str) -> None:
    found = row()
    assert (found["health"], found["reason"][: len(reason) or None]) == (health, reason)


@pytest.mark.guarantee("dbt and its commands")
def test_rows_that_a_run_planned_and_did_not_reach_count_as_undelivered_although_the_ledger_lists_none() -> None:
    found = row_of(at(A, 4, status="failed", message="no answer", counts=STOPPED, undelivered=LEFT))
    assert found["undelivered"] == 7
    assert sorted(one["rows"] for one in found["left"]) == [1, 6]
    assert "undelivered: 6 not acknowledged: the run ended before; the next run tries again" in found["details"]
    assert row_of(at(A, 5, counts=STOPPED))["undelivered"] == 0, "it came to its end"


def without_table() -> Pusher:
    """Of a changelog that was never run, or was dropped."""

    def lost(relation: str, snapshot: int | None = None) -> None:
        raise ReverseEtlError(Problem(relation, "no such table", "a changelog", "dbt run"))

    warehouse = pusher()
    warehouse.head = lost  # type: ignore[method-assign]
    return warehouse


def test_a_changelog_without_a_table_stops_no_other_status() -> None:
    warehouse = without_table()
    assert warehouse.status(A, Overview())["reason"] == "never ran: its changelog has no snapshot yet"
    found = warehouse.status(A, at(A, 5))
    assert (found["health"], found["reason"][:42]) == ("failing", "no changelog: orders: found no such table;")


def test_before_the_first_run_a_plan_says_that_there_is_no_snapshot_and_shows_no_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = commanded(monkeypatch, Overview(), "plan", warehouse=without_table())
    assert (said.return_value, said.stdout) == (
        ExitCode.OK,
        "a: the changelog has no snapshot yet; `dbt run` with this target captures one\n",
    )
    gone = commanded(monkeypatch, at(A, 5), "plan", warehouse=without_table())
    assert gone.return_value == ExitCode.FAILED, "it was pushed, so there was a table"
    assert gone.output.startswith("a: orders: found no such table;")


def test_a_share_of_undelivered_rows_is_not_counted_where_another_version_wrote_the_changelog() -> None:
    """It would be asked of a head that cannot be read."""
    limited = A._replace(guards=Guards.model_validate({"max_undelivered": "10%"}))
    warehouse = pusher(orders=5)
    looks_at(warehouse, orders=later(warehouse.head("orders")))
    found = warehouse.status(limited, at(A, 5, status="partial", undelivered=LEFT))
    assert found["reason"].startswith("other_version: ")


def commanded(
    monkeypatch: pytest.MonkeyPatch, told: Overview, *arguments: str, warehouse: Pusher | None = None
) -> Result:
    """One command over this ledger; by default the changelog is at snapshot 5."""

    class Opened:
        pusher: Pusher = warehouse or pusher(orders=5)
        chosen, overview = [A], told

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(looking, "Opened", Opened)
    return CliRunner().invoke(cli.cli, list(arguments), standalone_mode=False)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("told", "code"),
    [
        (at(A, 5), ExitCode.OK),
        (at(A, 4), ExitCode.OK),
        (Overview(), ExitCode.FAILED),
        (at(A, 5, status="failed", message="no answer"), ExitCode.FAILED),
        (at(A, 5, finished=False), ExitCode.FAILED),
    ],
)
def test_status_fails_on_demand_where_a_sync_is_neither_ok_nor_behind_and_says_why(
    told: Overview, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, wanted in (("status", "--fail"), code), (("status",), ExitCode.OK):
        said = commanded(monkeypatch, told, *arguments)
        assert said.return_value == wanted, said.exception
    [row] = json.loads(commanded(monkeypatch, told, "status", "--json").stdout)
    assert (f"a: {row['reason']}" in said.output) == bool(row["reason"])


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (at(A, 5), "Every row is delivered.\n"),
        (at(A, 4), "a: behind: 1 snapshot captured since\nNo row is listed.\n"),
        (at(A, 5, status="failed", message="no answer"), "a: failing: failed: no answer\nNo row is listed.\n"),
    ],
)
def test_an_empty_list_of_undelivered_rows_is_no_promise_where_the_sync_is_not_ok(
    told: Overview, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commanded(monkeypatch, told, "undelivered").output == said


@pytest.mark.guarantee("dbt and its commands")
def test_a_json_list_of_undelivered_rows_is_not_cut_without_a_word_and_an_empty_one_is_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = {key: replace(LEFT["k"], key=key) for key in "kl"}
    refused = at(A, 5, status="partial", undelivered=two)
    cut = commanded(monkeypatch, refused, "undelivered", "--json", "--limit", "1")
    assert [(row["key"], row["rows"]) for row in json.loads(cut.stdout)] == [("k", 1)]
    assert cut.stderr.splitlines()[0] == "a: 1 of 2 rows shown: --limit"
    many = at(A, 5, status="partial", undelivered={key: replace(LEFT["k"], key=key) for key in map(str, range(101))})
    assert len(json.loads(commanded(monkeypatch, many, "undelivered", "--json").stdout)) == 101
    shown = commanded(monkeypatch, many, "undelivered")
    assert (shown.stdout.count("too long"), "a: 100 of 101 rows shown: --limit" in shown.stdout) == (100, True)
    failed = commanded(monkeypatch, at(A, 5, status="failed", message="no answer"), "undelivered", "--json")
    assert (json.loads(failed.stdout), failed.stderr) == ([], "a: failing: failed: no answer\nNo row is listed.\n")


@pytest.mark.guarantee("dbt and its commands")
def test_a_json_list_of_undelivered_rows_counts_those_that_a_run_could_not_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = at(A, 5, status="failed", message="no answer", counts=STOPPED, undelivered=LEFT)
    listed, rest = json.loads(commanded(monkeypatch, stopped, "undelivered", "--json", "--limit", "1").stdout)
    assert (listed["key"], rest["key"], rest["operation"]) == ("k", None, None)
    assert (rest["sync"], rest["outcome"], rest["rows"]) == ("a", "not acknowledged", 6)
    assert listed.keys() == rest.keys()


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("command", ["status", "undelivered"])
def test_a_table_is_one_line_of_json_with_its_rows_and_no_error(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = at(A, 5, status="partial", undelivered=LEFT)
    document = json.loads(commanded(monkeypatch, refused, command, "--json").stdout)
    line, *rest = map(json.loads, commanded(monkeypatch, refused, command, "--log-format", "json").stdout.splitlines())
    assert (line[command], line["message"].splitlines()[0].split()[0]) == (document, "sync")
    assert all(one["level"] == "warn" for one in rest)
    assert commanded(monkeypatch, refused, command, "--quiet").output == ""


@pytest.mark.parametrize("command", ["plan", "reconcile"])
def test_a_sample_of_less_than_no_rows_is_refused_before_anything_is_read(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = commanded(monkeypatch, at(A, 5), command, "--sample", "-1").exception
    assert isinstance(refused, click.BadParameter)
    assert "-1 is not in the range" in str(refused)
