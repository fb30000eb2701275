"""Which planned rows wait, and what the ledger keeps of a row that was not delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.facts import BUCKETS, PARKED, Claim, Undelivered
from dbt_reverse_etl.delivery.policy import Policy, Rejections
from dbt_reverse_etl.delivery.wave import RowFailure
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.ranges import Ranges, union

KEY, BUCKET = "_key", "_bucket"
BEFORE, AFTER, MAYBE, DOUBT, CHANGED = "_before_hash", "_after_hash", "_maybe", "_doubt", "_changed"
ASKED_BY, IN_FLIGHT = "_asked_by", "_in_flight"
_POSITION = [KEY, BUCKET, "_operation", BEFORE, AFTER, MAYBE, DOUBT, CHANGED, ASKED_BY]


@dataclass(frozen=True)
class InDoubt:
    """Bucket ranges that decide what becomes of rows in doubt.

    Attributes:
        in_flight: of the claims of earlier runs: a request with such a row may have arrived.
        sent: such a row is sent even so.
    """

    in_flight: Ranges = ()
    sent: Ranges = ((0, BUCKETS),)

    @staticmethod
    def of(claims: Sequence[Claim], policy: Policy) -> InDoubt:
        """As open claims leave it."""
        in_flight = union((claim.lo, claim.hi) for claim in claims if not claim.ordered)
        if not policy.park_doubt or policy.retry_now:
            return InDoubt(in_flight)
        return InDoubt(in_flight, union((claim.lo, claim.hi) for claim in claims if claim.ordered))


@dataclass(frozen=True)
class Order:
    """What to send, and what is known of it.

    Attributes:
        claim: covers every row that is sent.
        known: undelivered rows of the claim by key.
        now: of what is recorded.
        retry_now: nobody waits.
        only: key of the one row to send; the others are held back.
        waits_at: decides who waits, the same for all waves: the guards have counted no row that comes due while the run sends. None: `now`.
    """

    claim: Claim
    known: Mapping[str, Undelivered]
    now: datetime
    rejections: Rejections
    retry_now: bool
    in_doubt: InDoubt = field(default_factory=InDoubt)
    only: str | None = None
    waits_at: datetime | None = None


def split(
    table: pa.Table, known: Mapping[str, Undelivered], now: datetime, in_doubt: InDoubt
) -> tuple[pa.Table, pa.Table]:
    """The rows of a wave to send now, and those that wait or are parked.

    A row whose value changed since it was rejected does not wait. One that may have arrived does, unless it is sent all the same.
    """
    held = pc.and_(_may_have_arrived(table, known, in_doubt), pc.invert(_within(table, in_doubt.sent)))
    return _divided(table, pc.or_(_unchanged(table, known, lambda row: row.waits(now)), held))


def alone(table: pa.Table, key: str) -> tuple[pa.Table, pa.Table]:
    """The row with this key, and all others."""
    return _divided(table, pc.not_equal(table.column(KEY), key))


def refused_before(table: pa.Table, known: Mapping[str, Undelivered]) -> tuple[pa.Table, pa.Table]:
    """The rows of which the destination has refused no attempt with this value, and those of which it has."""
    return _divided(table, _unchanged(table, known, was_refused))


def was_refused(row: Undelivered) -> bool:
    """Whether the destination has refused an attempt with this value."""
    return row.attempts > 0 and row.outcome != Outcome.UNKNOWN


def _divided(table: pa.Table, chosen: pa.Array) -> tuple[pa.Table, pa.Table]:
    """The other rows, and the chosen ones."""
    if not pc.any(chosen).as_py():
        return table, table.slice(0, 0)
    return table.filter(pc.invert(chosen)), table.filter(chosen)


def _unchanged(table: pa.Table, known: Mapping[str, Undelivered], chosen: Callable[[Undelivered], bool]) -> pa.Array:
    """Which rows are listed so, with the value that they have."""
    keys = [key for key, row in known.items() if chosen(row)]
    if not keys or not table.num_rows:  # of a column without chunks Arrow before 26 dies in indices_nonzero
        return pa.repeat(False, table.num_rows)
    candidates = pc.indices_nonzero(pc.is_in(table.column(KEY), pa.array(keys, table.schema.field(KEY).type)))
    found = table.select([KEY, AFTER]).take(candidates).to_pylist()
    same = [i for i, row in zip(candidates.to_pylist(), found, strict=True) if known[row[KEY]].after_hash == row[AFTER]]
    return pc.is_in(pa.array(range(table.num_rows), pa.int64()), pa.array(same, pa.int64()))


def _may_have_arrived(table: pa.Table, known: Mapping[str, Undelivered], in_doubt: InDoubt) -> pa.ChunkedArray:
    listed = pa.array([key for key, row in known.items() if row.may_have_arrived], table.schema.field(KEY).type)
    in_flight = pc.or_(pc.is_in(table.column(KEY), listed), _within(table, in_doubt.in_flight))
    return pc.and_(table.column(DOUBT), in_flight)


def _within(table: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    bucket = table.column(BUCKET)
    inside = pc.less(bucket, 0)
    for lo, hi in ranges:
        inside = pc.or_(inside, pc.and_(pc.greater_equal(bucket, lo), pc.less(bucket, hi)))
    return inside


def still_waiting(table: pa.Table, order: Order, reason: str) -> list[Undelivered]:
    """Rows that were not attempted stay as they were; what a crashed run left in doubt about them is added.

    Args:
        reason: of a row that the ledger does not list with this value.
    """
    listed = [(row, _unchanged_entry(row, order)) for row in _placed_rows(table, order).to_pylist()]
    return [replace(entry, **_place(row)) if entry else _not_attempted(row, order.now, reason) for row, entry in listed]


def not_delivered(table: pa.Table, failures: Mapping[int, RowFailure], order: Order) -> list[Undelivered]:
    """One entry for each failure; `failures` by row number of `table`."""
    rows = _placed_rows(table, order).take(pa.array([*failures], pa.int64())).to_pylist()
    return [_failed(row, failure, order) for row, failure in zip(rows, failures.values(), strict=True)]


def _placed_rows(table: pa.Table, order: Order) -> pa.Table:
    """The columns that `_place` reads."""
    return table.select(_POSITION).append_column(IN_FLIGHT, _may_have_arrived(table, order.known, order.in_doubt))


def _unchanged_entry(row: Mapping[str, Any], order: Order) -> Undelivered | None:
    """What the ledger lists of a row, if it has the same value now."""
    entry = order.known.get(row[KEY])
    return entry if entry is not None and entry.after_hash == row[AFTER] else None


def in_mode(mode: Mode, entry: Undelivered) -> Undelivered:
    """The entry as a run with this mode takes it: only `update_only` cannot make a row that the destination lacks."""
    if mode is Mode.UPDATE_ONLY or entry.outcome != Outcome.NO_MATCH:
        return entry
    return replace(entry, outcome=Outcome.RETRYABLE.value, attempts=0, next_attempt_at=None)


def _not_attempted(row: Mapping[str, Any], now: datetime, reason: str) -> Undelivered:
    outcome = Outcome.UNKNOWN if row[IN_FLIGHT] else Outcome.RETRYABLE
    return _entry(row, outcome=outcome.value, reason=reason, attempts=0, first_failed_at=now, next_attempt_at=None)


def _failed(row: Mapping[str, Any], failure: RowFailure, order: Order) -> Undelivered:
    same, now, policy = _unchanged_entry(row, order), order.now, order.rejections
    was_unknown = same is not None and same.outcome == Outcome.UNKNOWN
    if same is not None and same.attempts and not was_unknown and not failure.attempts:
        return replace(same, **_place(row))
    unknown = failure.outcome is Outcome.UNKNOWN
    in_doubt = unknown or failure.in_part
    first = same.first_failed_at if same else now
    # Each kind is counted in a row: what nobody knows parks no row, and makes none wait.
    attempts = same.attempts if same and was_unknown == unknown else 0
    outcome, next_attempt = failure.outcome.value, None
    if failure.outcome in (Outcome.REJECTED, Outcome.NO_MATCH):
        attempts += 1
        next_attempt = now + _backoff(attempts, policy)
    elif unknown:
        attempts += 1
    # A row that the destination does not have is never parked: somebody may make it there at any time.
    if failure.outcome is Outcome.REJECTED and attempts >= policy.attempts and now - first >= policy.age:
        outcome, next_attempt = PARKED, None
    return _entry(
        row,
        maybe=row[MAYBE] or (in_doubt and row[AFTER] is not None),
        doubt=row[DOUBT] or in_doubt,
        in_flight=row[IN_FLIGHT] or in_doubt,
        outcome=outcome,
        reason=failure.reason,
        attempts=attempts,
        first_failed_at=first,
        next_attempt_at=next_attempt,
    )


def _entry(row: Mapping[str, Any], **changes: Any) -> Undelivered:
    return Undelivered(**{**_place(row), **changes})


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry says of where its row is."""
    return {name.removeprefix("_"): row[name] for name in (*_POSITION, IN_FLIGHT)}


def _backoff(attempts: int, policy: Rejections) -> timedelta:
    # The exponent is bounded: a timedelta overflows.
    doubled: int = 2 ** min(attempts - 1, 20)
    return min(policy.cap, policy.first * doubled)
