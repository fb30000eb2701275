"""Says once that a sync begins to fail, and once that it has recovered. What it was before stands in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbt_reverse_etl.alerts.channels import Channel
from dbt_reverse_etl.app.push import Say
from dbt_reverse_etl.app.sync import Report
from dbt_reverse_etl.base.errors import OtherChangelog, OtherLedger, RestoredChangelog, ReverseEtlError, unexpected
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.health import Health, explained
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.warehouse.ledger import Overview, Refusal

_LONGEST = 500  # characters of a reason
_SILENT = frozenset({"planned", "busy", Status.INTERRUPTED, Status.SUPERSEDED})
_LOST = frozenset(lost.status for lost in (OtherChangelog, OtherLedger, RestoredChangelog))
_REFUSED = _LOST | {"blocked", "renamed", Status.FAILED}


@dataclass(frozen=True)
class Change:
    """A sync that failed or recovered with this push."""

    report: Report
    recovered: bool

    @property
    def word(self) -> str:
        return "recovered" if self.recovered else "failing"


def changed(reports: Iterable[Report]) -> list[Change]:
    """The syncs that stand otherwise than before the push."""
    told = [(one, one.before, one.standing.health) for one in reports if one.status not in _SILENT]
    return [Change(one, now.is_well) for one, was, now in told if was is not now and not (was.is_well and now.is_well)]


def refusals(reports: Iterable[Report], overview: Overview) -> dict[str, Refusal]:
    """What the ledger has to hear because no run tells it: a push that ended before a run began, the end of that, and a limit that moved."""
    found = {}
    for report in reports:
        refused, now = overview.refused(report.sync), report.standing.health
        if report.status in _REFUSED and not refused:
            found[report.sync] = Refusal(report.status, redact(report.message))
        elif report.status == Status.IDLE and (refused or report.before.is_well != now.is_well):
            found[report.sync] = Refusal(str(Health.OK if now.is_well else Health.FAILING))
    return found


def subject(changes: Sequence[Change], target: str) -> str:
    """`dbt-reverse-etl prod: 1 sync failing, 2 recovered`."""
    failing = sum(not change.recovered for change in changes)
    recovered = len(changes) - failing
    parts = [f"{count} {word}" for count, word in ((failing, "failing"), (recovered, "recovered")) if count]
    return f"dbt-reverse-etl {target}: {', '.join(parts)}"


def text(changes: Iterable[Change]) -> str:
    """A line for each sync with its counts, and why; never a row value, for no report has one."""
    return "\n".join(_line(change) for change in changes)


def data(changes: Sequence[Change], target: str, invocation_id: str) -> dict[str, Any]:
    """The same for machines."""
    syncs = [
        {
            "sync": change.report.sync,
            "destination": change.report.destination,
            "state": change.word,
            "status": change.report.status,
            "counts": _counts(change.report),
            "message": _reason(change.report),
        }
        for change in changes
    ]
    return {"event": "sync_state_changed", "target": target, "invocation_id": invocation_id, "syncs": syncs}


def send(channels: Iterable[Channel], changes: Sequence[Change], target: str, invocation_id: str, say: Say) -> None:
    """To every channel. A channel that fails is said on the console and changes nothing else."""
    if not changes:
        return
    message = subject(changes, target), text(changes), data(changes, target, invocation_id)
    for number, channel in enumerate(channels):
        try:
            channel.send(*message)
        except Exception as error:
            say(f"alert {number} ({channel.type}) was not sent: {_why(error)}", "error")


def _why(error: Exception) -> str:
    """The words of a foreign exception may quote the address, which is a secret."""
    if isinstance(error, ReverseEtlError):
        return redact(str(error))
    if isinstance(error, ImportError):
        return f"found no {error.name}; expected it for alerts. Next: pip install 'dbt-reverse-etl[alerts]'"
    if isinstance(error, OSError) or type(error).__module__.startswith("smtplib"):
        return f"found {type(error).__name__}; expected an answer. Next: check its settings in profiles.yml"
    return str(unexpected(error, "alert"))


def _line(change: Change) -> str:
    report, counts = change.report, _counts(change.report)
    delivered = f"+{counts['inserts']} ~{counts['updates']} -{counts['deletes']} delivered"
    rest = [f"{number} {name.replace('_', ' ')}" for name, number in list(counts.items())[3:] if number]
    head = f"{change.word}: {report.sync} -> {report.destination}: {report.status}, {', '.join([delivered, *rest])}"
    return f"{head}\n  {reason}" if (reason := _reason(report)) else head


def _reason(report: Report) -> str:
    return redact("; ".join(filter(None, (report.message, *explained(report.standing)))))[:_LONGEST]


def _counts(report: Report) -> Mapping[str, int]:
    delivered = report.counts.delivered
    return {
        "inserts": delivered.insert,
        "updates": delivered.update,
        "deletes": delivered.delete,
        "rejected": report.counts.rejected.total,
        "failed": report.counts.failed.total,
        "waiting": report.counts.skipped.total,
        "no_match": report.counts.no_match.total,
        "undelivered": report.standing.undelivered,
    }
