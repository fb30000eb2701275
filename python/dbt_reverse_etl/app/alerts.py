"""Says once that a sync begins to fail, and once that it has recovered. The ledger keeps what the channels have heard.

A push that is killed tells nothing; the next one compares how each of its syncs stands with what was heard. The ledger hears before a message and
after it: of a push that was killed between the two nobody knows whether it was heard, so the next one says how the sync stands in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dbt_reverse_etl.alerts.channels import TIMEOUT, Channel
from dbt_reverse_etl.app.push import Pusher, Say
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import OtherChangelog, OtherLedger, RestoredChangelog, ReverseEtlError, unexpected
from dbt_reverse_etl.base.interrupts import within
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.warehouse.overview import ALERT, FAILING, OVER, RECOVERED, REFUSED, Heard, Overview, Refusal

_SILENT = frozenset({"planned", "busy", Status.INTERRUPTED, Status.SUPERSEDED})
_LOST = frozenset(lost.push_status for lost in (OtherChangelog, OtherLedger, RestoredChangelog))
_REFUSED = _LOST | {"blocked", "renamed", Status.FAILED}


@dataclass(frozen=True)
class Change:
    """A sync that fails or has recovered, before anybody hears it. `word`: FAILING or RECOVERED; `before`: what was heard."""

    report: Report
    word: str
    before: Heard


def tell(  # noqa: PLR0913, PLR0917  (each is a fact of the push)
    reports: Sequence[Report],
    overview: Overview,
    pusher: Pusher,
    channels: Mapping[int, Channel],
    target: str,
    say: Say,
) -> None:
    """Record what no run tells, and say what has changed."""
    by, now, ledger = pusher.invocation_id, pusher.clock.now, pusher.ledger
    refused, changes = refusals(reports, overview), changed(reports, overview.heard)
    if refused:
        with _said_if_not("refused pushes", say):
            ledger.record(REFUSED, refused, by, now())
    if changes:
        changes = _still(changes, pusher, say)
    if not changes:
        return
    heard = {one.report.sync: Heard(one.word, relation=one.report.relation) for one in changes}
    if channels:
        with _said_if_not("alerts", say):
            ledger.record(ALERT, {sync: replace(one, is_sure=False) for sync, one in heard.items()}, by, now())
        if not send(channels, changes, target, by, say):
            heard = {change.report.sync: replace(change.before, relation=change.report.relation) for change in changes}
    else:  # nobody is left to hear of a recovery; of a failure hears whoever is added
        heard = {sync: one for sync, one in heard.items() if one.word == RECOVERED}
    formers = {one.before.former: heard[one.report.sync] for one in changes if one.report.sync in heard}
    heard |= {former: one for former, one in formers.items() if former}
    if heard:
        with _said_if_not("alerts", say):
            ledger.record(ALERT, heard, by, now())


@contextmanager
def _said_if_not(what: str, say: Say) -> Iterator[None]:
    """The pushes are over: what they did is told whether the ledger takes this or not."""
    try:
        yield
    except Exception as error:
        say(str(unexpected(error, f"ledger, {what}")), "error")


def changed(reports: Iterable[Report], heard: Mapping[str, Heard]) -> list[Change]:
    """The syncs that stand otherwise than the channels have heard for sure. `heard`: see `Overview`."""
    found = ((one, _word(one.standing.health)) for one in reports if one.status not in _SILENT)
    changes = [Change(one, word, heard.get(one.sync, Heard())) for one, word in found if word]
    return [one for one in changes if one.before != Heard(one.word)]


def _still(changes: list[Change], pusher: Pusher, say: Say) -> list[Change]:
    """Without what other pushes have said since this one read the ledger, and the syncs that they have pushed."""
    relations = {one.report.sync: one.report.relation for one in changes}
    with _said_if_not("alerts", say):
        now = pusher.ledger.overview(relations, (), relations)
        started = {one.report.sync: now.started.get(one.report.sync_id) for one in changes}
        reports = [
            one.report for one in changes if _is_newest(one.report, started[one.report.sync], pusher.invocation_id)
        ]
        before = {one.report.sync: one.before for one in changes}  # maybe under a former name
        return changed(reports, {**before, **now.heard})
    return changes


def _is_newest(report: Report, started: RunStarted | None, invocation_id: str) -> bool:
    return started is None or started.fence == report.fence or started.invocation_id == invocation_id


def _word(now: Health) -> str:
    """A sync that was never pushed neither fails nor has recovered."""
    return FAILING if now is Health.FAILING else RECOVERED if now.is_well else ""


def refusals(reports: Iterable[Report], overview: Overview) -> dict[str, Refusal]:
    """What the ledger has to hear because no run tells it: a push that ended before a run began, and the end of that."""
    found = {}
    for report in reports:
        known = overview.refused(report.sync, report.sync_id)
        if report.status in _REFUSED:
            refusal = _refusal(report, report.status, redact(report.message))
            if known is None or replace(known, at=None) != refusal:
                found[report.sync] = refusal
        elif report.status not in _SILENT and (
            _of_another(report, overview) or (report.status == Status.IDLE and known)
        ):
            found[report.sync] = _refusal(report, OVER)
    return found


def _refusal(report: Report, status: str, message: str = "") -> Refusal:
    return Refusal(status, message, sync_id=report.sync_id, fence=report.fence, relation=report.relation)


def _of_another(report: Report, overview: Overview) -> bool:
    """Whether a refusal is known of the sync as it was before: to another destination or object."""
    found = overview.refusals.get(report.sync)
    return found is not None and found.status != OVER and found.sync_id != report.sync_id


def subject(changes: Sequence[Change], target: str) -> str:
    """`dbt-reverse-etl prod: 1 sync failing, 2 recovered`."""
    counts = Counter(change.word for change in changes)
    return f"dbt-reverse-etl {target}: {', '.join(f'{counts[word]} {word}' for word in (FAILING, RECOVERED) if counts[word])}"


def data(changes: Sequence[Change], target: str, invocation_id: str) -> dict[str, Any]:
    """The same for machines."""
    syncs = [
        {
            "sync": change.report.sync,
            "destination": change.report.destination,
            "state": change.word,
            "status": change.report.status,
            "counts": _counts(change.report),
            "message": change.report.why,
            **({"renamed_from": change.before.former} if change.before.former else {}),
        }
        for change in changes
    ]
    return {"event": "sync_state_changed", "target": target, "invocation_id": invocation_id, "syncs": syncs}


def send(channels: Mapping[int, Channel], changes: Sequence[Change], target: str, invocation_id: str, say: Say) -> bool:
    """Tell every channel; whether one of them took it. One that fails is said on the console and changes nothing else."""
    message = subject(changes, target), list(map(_text, changes)), data(changes, target, invocation_id)
    taken = [_is_taken(number, channel, message, say) for number, channel in channels.items()]
    return any(taken)


def _is_taken(number: int, channel: Channel, message: tuple[str, list[str], dict[str, Any]], say: Say) -> bool:
    try:
        note = within(partial(channel.send, *message), TIMEOUT)
    except Exception as error:
        say(f"alert {number} ({channel.type}) was not sent: {_why(error)}", "error")
        return False
    if note:
        say(f"alert {number} ({channel.type}): {note}", "warn")
    return True


def _why(error: Exception) -> str:
    """The words of a foreign exception may quote the address, which is a secret."""
    if isinstance(error, ReverseEtlError):
        return redact(str(error))
    if isinstance(error, ImportError):
        return f"found no {error.name}; expected it for alerts. Next: pip install 'dbt-reverse-etl[alerts]'"
    if isinstance(error, OSError) or type(error).__module__.startswith("smtplib"):
        return f"found {type(error).__name__}; expected an answer. Next: check its settings in profiles.yml"
    return str(unexpected(error, "alert"))


def _text(change: Change) -> str:
    """A sync with its counts, and why; never a row value, for no report has one."""
    report, counts = change.report, _counts(change.report)
    delivered = f"+{counts['inserts']} ~{counts['updates']} -{counts['deletes']} delivered"
    rest = [f"{number} {name.replace('_', ' ')}" for name, number in list(counts.items())[3:] if number]
    name = f"{report.sync} (formerly {change.before.former})" if change.before.former else report.sync
    head = f"{change.word}: {name} -> {report.destination}: {report.status}, {', '.join([delivered, *rest])}"
    return f"{head}\n  {report.why}" if report.why else head


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
