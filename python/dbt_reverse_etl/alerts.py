"""Says once that a sync begins to fail, and once that it has recovered. What it was before stands in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dbt_reverse_etl.alert_channels import Channel
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.errors import ExitCode, ReverseEtlError, unexpected
from dbt_reverse_etl.ledger import Overview, Refusal
from dbt_reverse_etl.one_sync import Report
from dbt_reverse_etl.push import Say
from dbt_reverse_etl.redaction import redact

_LONGEST = 500  # characters of a reason
_SILENT = frozenset({"planned", "busy", Status.INTERRUPTED, Status.SUPERSEDED})
_REFUSED = frozenset({"blocked", "other_changelog", Status.FAILED})


class Health(Enum):
    """How a sync stands. `UNSETTLED`: a run was killed or interrupted, of which nobody was told."""

    OK = "ok"
    FAILING = "failing"
    UNSETTLED = "unsettled"


@dataclass(frozen=True)
class Change:
    """A sync that failed or recovered with this push."""

    report: Report
    recovered: bool

    @property
    def word(self) -> str:
        return "recovered" if self.recovered else "failing"


def changed(reports: Iterable[Report], overview: Overview) -> list[Change]:
    """The syncs that stand otherwise than before the push; `overview` was read before it."""
    told = [report for report in reports if report.status not in _SILENT]
    moved = [(report, after(report, overview)) for report in told]
    return [Change(one, now is Health.OK) for one, now in moved if now is not before(one.sync, overview)]


def before(sync: str, overview: Overview) -> Health:
    """How a sync stood: what the newest run left, or a push that was refused after it."""
    return Health.FAILING if overview.refused(sync) else _left_by_runs(sync, overview)


def after(report: Report, overview: Overview) -> Health:
    """How this push leaves the sync; where it had nothing to do, as the newest run did."""
    if report.exit_code is not ExitCode.OK or report.status == Status.PARTIAL:
        return Health.FAILING
    return _left_by_runs(report.sync, overview) if report.status == Status.IDLE else Health.OK


def refusals(reports: Iterable[Report], overview: Overview) -> dict[str, Refusal]:
    """What the ledger has to hear because no run tells it: pushes that ended before a run began, and the end of that."""
    found = {}
    for report in reports:
        refused = overview.refused(report.sync)
        if report.status in _REFUSED and not refused:
            found[report.sync] = Refusal(report.status, redact(report.message))
        elif report.status == Status.IDLE and refused:
            found[report.sync] = Refusal()
    return found


def _left_by_runs(sync: str, overview: Overview) -> Health:
    newest = overview.newest(sync)
    if newest is None:
        return Health.OK
    state = overview.states[newest.sync_id]
    if not state.finished or state.status == Status.INTERRUPTED:
        return Health.UNSETTLED
    return Health.FAILING if state.status in (Status.FAILED, Status.PARTIAL) else Health.OK


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
    if isinstance(error, OSError) or type(error).__module__.startswith(("urllib3", "smtplib")):
        return f"found {type(error).__name__}; expected an answer. Next: check its settings in profiles.yml"
    return str(unexpected(error, "alert"))


def _line(change: Change) -> str:
    report, counts = change.report, _counts(change.report)
    delivered = f"+{counts['inserts']} ~{counts['updates']} -{counts['deletes']} delivered"
    rest = [f"{counts[name]} {name}" for name in ("rejected", "failed", "waiting") if counts[name]]
    head = f"{change.word}: {report.sync} -> {report.destination}: {report.status}, {', '.join([delivered, *rest])}"
    return f"{head}\n  {_reason(report)}" if report.message else head


def _reason(report: Report) -> str:
    return redact(report.message)[:_LONGEST]


def _counts(report: Report) -> Mapping[str, int]:
    delivered = report.counts.delivered
    return {
        "inserts": delivered.insert,
        "updates": delivered.update,
        "deletes": delivered.delete,
        "rejected": report.counts.rejected.total,
        "failed": report.counts.failed.total,
        "waiting": report.counts.skipped.total,
    }
