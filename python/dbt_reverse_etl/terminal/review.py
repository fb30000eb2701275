"""A plan as Markdown, for a pull request: counts only, for a key is a row value and a comment may be public."""

from __future__ import annotations

from collections.abc import Sequence

from dbt_reverse_etl.app.preview import BLOCKED
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import NEXT, ExitCode
from dbt_reverse_etl.delivery.ports import Status

_HEADER = "| sync | destination | insert | update | delete | |\n|---|---|--:|--:|--:|---|"


def as_markdown(reports: Sequence[Report]) -> str:
    """A sentence for each destination object that would change, then a table of all syncs."""
    if not reports:
        return "No sync is configured for this target."
    sentences = [_sentence(report) for report in reports if report.planned.total]
    rows = [
        f"| {_cell(report.sync)} | {_cell(report.destination)} | {_number(report.planned.insert)} "
        f"| {_number(report.planned.update)} | {_number(report.planned.delete)} | {_note(report)} |"
        for report in reports
    ]
    if not sentences:
        failed = any(report.status == Status.FAILED for report in reports)
        sentences = ["What this would send is not known." if failed else "This would send nothing."]
    return "\n".join([*sentences, "", _HEADER, *rows])


def _sentence(report: Report) -> str:
    """`This would update 1 203 contacts in crm, delete 4.`"""
    system, _, name = report.destination.partition(".")
    rows = report.planned
    parts = [
        f"{word} {_number(count)}"
        for word, count in (("insert", rows.insert), ("update", rows.update), ("delete", rows.delete))
        if count
    ]
    parts[0] = f"{parts[0]} {_cell(name)} in {_cell(system)}"
    return f"This would {', '.join(parts)}.  "


def _note(report: Report) -> str:
    """What else there is to know; the message holds counts, never a row. An error may name a host. Nobody pushes a branch before its merge: no override."""
    if report.status == Status.FAILED:
        return f"**{report.status}**: see the log of the job"
    status = "" if report.exit_code is ExitCode.OK else f"**{report.status}**: "
    before, mark, found = report.message.rpartition(BLOCKED)
    return f"{status}{_cell(before + mark + (found.partition(NEXT)[0] if mark else found))}"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
