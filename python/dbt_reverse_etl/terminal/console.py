"""What a user reads: lines like dbt's, for people; `as_json`, for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dbt_reverse_etl.app.check import UNTRIED, CheckedDestination, CheckedSync
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push_report import OVERTAKEN, Report
from dbt_reverse_etl.app.reconcile import Reconciled
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.health import explained, next_attempt, reached_its_end
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import Overview

_WIDTH = 80
_PLANNED = "planned"


def line(number: int, total: int, report: Report) -> str:
    """`1 of 1 SYNC crm_contacts -> crm.contacts ...... [+2 ~1 -1 in 0.4s]`."""
    return _dotted(number, total, "PLAN" if report.is_plan else "SYNC", report, _outcome(report))


def reconciled_line(number: int, total: int, report: Reconciled) -> str:
    """`1 of 1 RECONCILE crm_contacts -> crm.contacts ...... [998 rows: 2 missing, 1 different in 0.4s]`."""
    found = report.differences
    if found is None:
        outcome = "not compared"
    else:
        kinds = [f"{count} {kind}" for kind, count in found.counts.items() if count]
        outcome = f"{number_of(found.rows, 'row')}: {', '.join(kinds) or 'as delivered'}"
    return _dotted(number, total, "RECONCILE", report, outcome)


def reconciled_level(report: Reconciled) -> str:
    """dbt's level for the line of a report: a difference is a result, no error of the command."""
    if report.differences is None and report.exit_code is not ExitCode.OK:
        return "error"
    return "warn" if report.message or report.exit_code is not ExitCode.OK else "info"


def _dotted(number: int, total: int, word: str, report: Report | Reconciled, outcome: str) -> str:
    head = f"{number} of {total} {word} {report.sync} -> {report.destination} "
    return f"{head}{'.' * max(3, _WIDTH - len(head))} [{outcome} in {report.seconds:.2f}s]"


def level(report: Report) -> str:
    """dbt's level for the line of a report."""
    if report.exit_code is not ExitCode.OK:
        return "error"
    return "warn" if report.standing.undelivered or report.message else "info"


def summary(reports: Sequence[Report]) -> str:
    """The last line of a push, or of a command that only planned."""
    overtaken = sum(report.status == OVERTAKEN for report in reports)
    pushed = [report for report in reports if not report.is_plan and report.status != OVERTAKEN]
    planned = len(reports) - len(pushed) - overtaken
    plans = number_of(planned, "sync")
    failed = sum(report.exit_code not in (ExitCode.OK, ExitCode.OVERTAKEN) for report in reports)
    if not pushed and not overtaken:
        return f"Planned {plans}{f', {failed} failed' if failed else ''}: nothing was sent"
    sent = sum((report.counts.delivered for report in pushed), PerOperation())
    left = sum(report.standing.undelivered for report in pushed)
    parts = [f"{changes(sent)} delivered", f"{failed} failed"]
    parts += [f"{number_of(left, 'row')} undelivered"] if left else []
    parts += [f"{plans} only planned"] if planned else []
    parts += [f"{overtaken} left to a later run"] if overtaken else []
    return f"Pushed {number_of(len(pushed), 'sync')}: {', '.join(parts)}"


def number_of(count: int, name: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def details(report: Report) -> list[str]:
    """What went wrong, and which rows are undelivered: the lines below that of a report."""
    return [*([report.message] if report.message else []), *map(redact, explained(report.standing))]


def changes(rows: PerOperation) -> str:
    """`+2 ~1 -1`: inserts, updates, deletes."""
    return f"+{rows.insert} ~{rows.update} -{rows.delete}"


def about(report: Report) -> dict[str, Any]:
    """What the line of a report is about, for a machine."""
    return {key: value for key, value in as_json(report).items() if key not in ("sample", "message", "left")}


def as_json(report: Report) -> dict[str, Any]:
    """A report with plain values."""
    standing = report.standing
    return {
        **{key: value for key, value in asdict(report).items() if key != "standing"},
        "exit_code": int(report.exit_code),
        "sample": [list(row) for row in report.sample],
        "health": standing.health.value,
        "reason": redact(standing.reason),
        "undelivered": standing.undelivered,
        "left": [asdict(one) for one in standing.left],
    }


def reconciled_code(report: Reconciled, push: Report | None) -> ExitCode:
    """Of one sync, with the push of its repair: rows that wait are not repaired yet."""
    if push is None:
        return report.exit_code
    return max(report.exit_code, push.exit_code, ExitCode.FAILED if push.counts.skipped.total else ExitCode.OK)


def reconciled_as_json(report: Reconciled, push: Report | None, sample: int) -> dict[str, Any]:
    """A report with plain values, some of the keys that differed before the repair, and the push of it."""
    found = report.differences
    rows = {} if found is None else {"rows": found.rows, **found.counts}
    shown = [] if found is None else [[one.kind, one.key] for one in found.first[:sample]]
    return {
        "sync": report.sync,
        "destination": report.destination,
        "exit_code": int(reconciled_code(report, push)),
        **rows,
        "seconds": report.seconds,
        "message": report.message,
        "sample": shown,
        "repaired": report.repaired,
        "push": as_json(push) if push else None,
    }


def _outcome(report: Report) -> str:
    if report.status == _PLANNED:
        waiting = report.counts.skipped.total
        found = changes(report.planned) if report.planned.total else "nothing to send"
        return f"{found}, {waiting} waiting" if waiting else found
    if report.status == Status.IDLE and not report.counts.planned.total:
        left = [("undelivered", report.standing.undelivered), ("no match", report.standing.no_match)]
        return ", ".join(["nothing to send", *(f"{rows} {name}" for name, rows in left if rows)])
    if not reached_its_end(report.status):
        word = f"ERROR {report.status}"
        return f"{word}, {changes(report.counts.delivered)} delivered" if report.counts.delivered.total else word
    counts = report.counts
    named = {
        "rejected": counts.rejected,
        "failed": counts.failed,
        "waiting": counts.skipped,
        "no match": counts.no_match,
    }
    rest = [f"{rows.total} {name}" for name, rows in named.items() if rows.total]
    return ", ".join([changes(report.counts.delivered), *rest])


def status_details(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Below the table of `status`: why a sync stands as it does, and which rows are undelivered."""
    told = ((row["sync"], text) for row in rows for text in (row["reason"], *row["details"]) if text)
    return [f"{sync}: {redact(text)}" for sync, text in told]


def checked(results: Iterable[CheckedDestination], source: str) -> Iterator[tuple[str, str]]:
    """The lines of `check` with their levels. `source`: the manifest, if the project was not parsed now."""
    if source:
        older = "which may be older than the project: there is no dbt in this Python to parse it"
        yield f"{source} was checked, {older}. Run dbt parse before", "warn"
    for one in results:
        yield f"{one.destination} ({one.type}): {one.message or 'reached'}", "error" if one.message else "info"
        for sync in one.syncs:
            yield from ((f"  {sync.sync}: {text}", "error") for text in sync.missing)
            yield f"  {sync.sync} -> {sync.object}: {_checked_sync(sync)}", "info"
    for text in UNTRIED:
        yield f"not tried: {text}", "info"


def _checked_sync(sync: CheckedSync) -> str:
    found = "nothing is missing that can be asked for" if not sync.missing else f"{len(sync.missing)} missing"
    return f"{found}; not tried: {'; '.join(sync.untried)}" if sync.untried else found


def checked_as_json(results: Iterable[CheckedDestination], source: str) -> dict[str, Any]:
    """The same for machines; `manifest` is None where the project was parsed now."""
    return {"manifest": source or None, "untried": list(UNTRIED), "destinations": [asdict(one) for one in results]}


def undelivered(one: ResolvedSync, overview: Overview) -> list[dict[str, Any]]:
    """The rows of a sync that its destination does not have, as plain values, by key."""
    rows, now = overview.states.get(id_of(one), State()).undelivered, Clock().now()
    park_doubt = one.sync.settings.on_unknown == "park"
    return [
        {
            "sync": one.sync.name,
            "key": key,
            "operation": row.operation,
            "outcome": row.outcome,
            "rows": 1,
            "attempts": row.attempts,
            "next_attempt": next_attempt(row, now, park_doubt=park_doubt),
            "reason": redact(row.reason),
            "first_failed_at": row.first_failed_at.isoformat(timespec="seconds"),
        }
        for key, row in sorted(rows.items())
    ]


def not_listed(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """From a row of `status`: what no list has by key, for a list that seems complete without it."""
    unknown = dict.fromkeys(("key", "operation", "attempts", "first_failed_at"))
    known = {"sync": row["sync"], **unknown, "next_attempt": "next run"}
    left = [one for one in row["left"] if one["since"] is None]
    return [known | {name: one[name] for name in ("outcome", "rows", "reason")} for one in left]


def plan(reports: Sequence[Report]) -> str:
    """A table of what a push would send, and below it some keys of each sync. One without a plan has no row: zeros would read like one."""
    counted = [one for one in reports if one.status == _PLANNED and one.head]
    if not counted:
        return ""
    rows = [
        {
            "sync": one.sync,
            "destination": one.destination,
            **asdict(one.planned),
            "waiting": one.counts.skipped.total,
            "position": one.position,
            "head": one.head,
        }
        for one in counted
    ]
    waiting = ("waiting",) if any(row["waiting"] for row in rows) else ()
    columns = ("sync", "destination", "insert", "update", "delete", *waiting, "position", "head")
    samples = (
        "\n".join((f"\n{one.sync}, for example:", *(f"  {operation:6}  {key}" for operation, key in one.sample)))
        for one in reports
        if one.sample
    )
    return "\n".join((table(columns, rows), *samples))


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Plain columns, as wide as their longest value; numbers stand right."""
    numbers = [bool(rows) and all(isinstance(row[column], int) for row in rows) for column in columns]
    lines = [
        [column.replace("_", " ") for column in columns],
        *([str(row[column]) for column in columns] for row in rows),
    ]
    widths = [max(map(len, values)) for values in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            value.rjust(width) if number else value.ljust(width)
            for value, width, number in zip(values, widths, numbers, strict=True)
        ).rstrip()
        for values in lines
    )
