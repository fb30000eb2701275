"""How a sync stands: the one definition behind exit codes, `status`, the report, alerts, spans and retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import groupby

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.base.times import minute
from dbt_reverse_etl.delivery.facts import NOT_WELL, PARKED, Undelivered
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.position import State

_MOST_REASONS = 5  # in words; the ledger has all
NEXT_RUN, AT_A_TIME, ON_CHANGE, ON_RETRY = "next_run", "at_a_time", "on_change", "on_retry"
_WHEN = {  # in a table and in a sentence
    NEXT_RUN: ("next run", "the next run tries again"),
    ON_CHANGE: ("on a change", "tried again when the row or the mapping changes, or by dbt-reverse-etl retry"),
    ON_RETRY: ("by retry", "tried again by dbt-reverse-etl retry alone"),
}


class Health(str, Enum):
    """One word for how a sync stands, the better first."""

    OK = "ok"
    BEHIND = "behind"  # as ok, but changes were captured since
    NEVER = "never pushed"
    UNSETTLED = "unsettled"  # the newest run has no end yet, or was interrupted: the next one settles what it sent
    FAILING = "failing"

    def __str__(self) -> str:
        return self.value

    @property
    def is_well(self) -> bool:
        return self in (Health.OK, Health.BEHIND)


@dataclass(frozen=True)
class Left:
    """Undelivered rows of one outcome and one reason that are tried again alike.

    Attributes:
        outcome: as the ledger keeps it, or `not acknowledged`: the run ended before it could list them.
        again: `next_run`, `at_a_time`, `on_change` (of the row or the mapping, or `retry`), `on_retry`.
        first, last: of `at_a_time`, when the first and the last of them are due.
        since: when the first of them failed, if the ledger lists them.
    """

    outcome: str
    reason: str
    rows: int
    again: str
    first: datetime | None = None
    last: datetime | None = None
    since: datetime | None = None


@dataclass(frozen=True)
class Standing:
    """How a sync stands, why, and what is left of it.

    Attributes:
        left: the undelivered rows by reason, the most first.
        no_match: rows that the destination does not have, which is no failure.
        reason: why it is not `ok`, beginning with a word such as `blocked` or `never ran`; a sync that is `ok` may have one, too.
    """

    health: Health
    left: tuple[Left, ...] = ()
    no_match: int = 0
    reason: str = ""

    @property
    def undelivered(self) -> int:
        return sum(one.rows for one in self.left)


NEVER_PUSHED = Standing(Health.NEVER, reason="never ran")


def reached_its_end(status: str) -> bool:
    """Of a run or a push: every planned row was delivered, or is listed in the ledger."""
    return status in (Status.SUCCEEDED, Status.PARTIAL, Status.IDLE)


def ended(state: State) -> bool:
    """The newest run came to its end: no later run has to go on with it."""
    return state.finished and state.status not in (Status.FAILED, Status.INTERRUPTED)


def is_undelivered(row: Undelivered) -> bool:
    """A row that the destination does not have is none: there is nothing to update."""
    return row.outcome != Outcome.NO_MATCH.value


def health(state: State, allowed: int | None, *, refused: bool = False, lag: int = 0) -> Health:
    """What the ledger says of a sync, in one word.

    Args:
        allowed: see `RunFinished`.
        refused: the newest push ended before a run began, or the next one will.
        lag: snapshots that were captured since its position.
    """
    if refused:
        return Health.FAILING
    if not state.fence:
        return Health.NEVER
    if not state.finished or state.status == Status.INTERRUPTED:
        return Health.UNSETTLED
    undelivered = sum(map(is_undelivered, state.undelivered.values()))
    if not ended(state) or (allowed is not None and undelivered > allowed):
        return Health.FAILING
    if state.claims:  # of a resync that nobody has pushed, or of a run that woke up late
        return Health.UNSETTLED
    return Health.BEHIND if lag else Health.OK


def standing(  # noqa: PLR0913  (each is a fact about the sync)
    state: State, allowed: int | None, now: datetime, *, refused: str = "", lag: int = 0, park_doubt: bool = False
) -> Standing:
    """How a sync stands and what is left of it, without secrets that rows of an earlier version of the ledger hold.

    Args:
        refused: why the newest push ended before a run began, or why the next one will.
        park_doubt: see `Policy`.
    """
    undelivered = [row for row in state.undelivered.values() if is_undelivered(row)]
    word = health(state, allowed, refused=bool(refused), lag=lag)
    found = (*_by_reason(undelivered, now, park_doubt=park_doubt), *_not_acknowledged(state, len(undelivered)))
    left = tuple(sorted(found, key=lambda one: -one.rows))
    reason = refused or _reason(state, word, allowed, lag, len(undelivered))
    return Standing(word, left, len(state.undelivered) - len(undelivered), redact(reason))


def reasons(state: State) -> str:
    """`2 rejected: too long; 1 parked: no such country`: why the rows that the ledger lists are undelivered."""
    rows = filter(is_undelivered, state.undelivered.values())
    counted = Counter((row.outcome, row.reason) for row in rows).most_common()
    shown = [f"{rows} {outcome}: {reason}" for (outcome, reason), rows in counted[:_MOST_REASONS]]
    rest = sum(rows for _, rows in counted[_MOST_REASONS:])
    return "; ".join([*shown, *([f"{rest} for other reasons"] if rest else [])])


def _not_acknowledged(state: State, listed: int) -> tuple[Left, ...]:
    """The rows of a run that ended early: it planned them, and neither delivered nor listed them."""
    counts = state.counts
    missing = counts.planned.total - counts.delivered.total - counts.no_match.total - listed
    if ended(state) or missing <= 0:
        return ()
    return (Left("not acknowledged", "the run ended before", missing, NEXT_RUN),)


def _reason(state: State, word: Health, allowed: int | None, lag: int, undelivered: int) -> str:
    if word is Health.FAILING:
        return _why_failing(state, allowed, undelivered)
    if word is Health.UNSETTLED:
        began = f"the run that began at {minute(state.started_at)} UTC" if state.started_at else "the newest run"
        if ended(state):
            return "in doubt: some rows may not be there, or older than they were; the next push sends them again"
        if state.finished:
            return f"interrupted: {began} did not end; the next one settles what it sent"
        return f"unfinished: {began} has not ended; if it was killed, the next one settles what it sent"
    return {
        Health.NEVER: f"never ran: {'nothing was pushed yet' if lag else 'its changelog has no snapshot yet'}",
        Health.BEHIND: f"{lag} snapshot{'s' if lag != 1 else ''} captured since",
    }.get(word, "")


def _why_failing(state: State, allowed: int | None, undelivered: int) -> str:
    if not ended(state):
        return f"failed: {state.message}"
    if allowed == NOT_WELL:
        return f"leftovers: {state.message}"
    return f"undelivered rows: {undelivered}, and max_undelivered allows {allowed}"


def explained(standing: Standing) -> list[str]:
    """A line for each reason: how many rows, why, and when they are tried again."""
    shown, others = standing.left[:_MOST_REASONS], standing.left[_MOST_REASONS:]
    lines = [f"undelivered: {one.rows} {one.outcome}: {one.reason}; {when(one)}" for one in shown]
    rest = sum(one.rows for one in others)
    more = [f"undelivered: {rest} for {len(others)} other reasons: see reverse_etl_undelivered"] if others else []
    return lines + more


def next_attempt(row: Undelivered, now: datetime, *, park_doubt: bool) -> str:
    """When a row is tried again: `next run`, a time in UTC, `on a change` of the row or the mapping, or `by retry`."""
    again = _again(row, now, park_doubt=park_doubt)
    at = row.next_attempt_at if again == AT_A_TIME else None
    return minute(at) if at else _WHEN[again][0]


def exit_code(status: str, health: Health) -> ExitCode:
    """Of a push that ended so and left its sync so."""
    if status == Status.SUPERSEDED:
        return ExitCode.BUSY
    if status == Status.INTERRUPTED:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if health.is_well else ExitCode.FAILED


def _by_reason(rows: Iterable[Undelivered], now: datetime, *, park_doubt: bool) -> tuple[Left, ...]:
    def alike(row: Undelivered) -> tuple[str, str, str]:
        return row.outcome, row.reason, _again(row, now, park_doubt=park_doubt)

    found = []
    for (outcome, reason, again), group in groupby(sorted(rows, key=alike), alike):
        same = list(group)
        times = [row.next_attempt_at for row in same if row.next_attempt_at is not None] if again == AT_A_TIME else []
        since = min(row.first_failed_at for row in same)
        first, last = min(times, default=None), max(times, default=None)
        found.append(Left(outcome, redact(reason), len(same), again, first, last, since))
    return tuple(found)


def _again(row: Undelivered, now: datetime, *, park_doubt: bool) -> str:
    if not row.waits(now, park_doubt=park_doubt):
        return NEXT_RUN
    if park_doubt and row.may_have_arrived:
        return ON_RETRY
    return ON_CHANGE if row.outcome == PARKED else AT_A_TIME


def when(left: Left) -> str:
    """When these rows are tried again."""
    if left.first is None or left.last is None:
        return _WHEN[left.again][1]
    first, last = minute(left.first), minute(left.last)
    return f"tried again after {first} UTC" if first == last else f"tried again from {first} to {last} UTC"
