"""Send the rows of one claim and say what became of each; the same on the driver and in a task of an executor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.outcome import TROUBLE, Outcome
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.counts import NO_COUNTS, Counts, PerOperation
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.facts import Undelivered
from dbt_reverse_etl.delivery.gate import LeaseLost, Stop
from dbt_reverse_etl.delivery.undelivered import (
    BUCKET,
    Order,
    alone,
    not_delivered,
    refused_before,
    split,
    still_waiting,
)
from dbt_reverse_etl.delivery.wave import WavePart, count_operations
from dbt_reverse_etl.sinks.base import OPERATION, Applied
from dbt_reverse_etl.sinks.buckets import Buckets, Chunk
from dbt_reverse_etl.sinks.ranges import Ranges


@dataclass(frozen=True)
class Sent:
    """What became of the planned rows of a claim, or of a part of them.

    Attributes:
        counts: of all rows that the source gave; those that wait are skipped, or without a match as before.
        undelivered: an entry for each row that was not delivered, attempted or not.
        nothing_applied: surely no row reached the destination, and none was rejected.
        stop: why the sync must stop here, or None.
        any_unknown: the destination did not say of some rows whether it applied them.
    """

    counts: Counts = NO_COUNTS
    undelivered: tuple[Undelivered, ...] = ()
    nothing_applied: bool = True
    stop: Stop | None = None
    any_unknown: bool = False

    @property
    def trouble(self) -> str:
        """What the destination answered where it neither took nor refused a row; empty: nothing."""
        # Rows that wait come first, with the answer of an earlier run.
        return next((row.reason for row in reversed(self.undelivered) if row.outcome in TROUBLE), "")

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.counts + other.counts,
            self.undelivered + other.undelivered,
            self.nothing_applied and other.nothing_applied,
            self.stop or other.stop,
            self.any_unknown or other.any_unknown,
        )

    def redacted(self) -> Sent:
        """The same without secrets in what the ledger will keep of a row: a sink may quote one, and an executor knows none to take out."""
        known = {reason: redact(reason) for reason in {row.reason for row in self.undelivered}}
        if all(text == reason for reason, text in known.items()):
            return self
        return replace(self, undelivered=tuple(replace(row, reason=known[row.reason]) for row in self.undelivered))


NOTHING_SENT = Sent()


def send(engine: Engine, order: Order, table: pa.Table, stop: Stop | None = None, chunk: Chunk | None = None) -> Sent:
    """Send the rows of `table` that do not wait; those that were refused before come after the others, in batches of their own.

    Args:
        table: as `Source.wave` gives it.
        stop: the sync stopped before these rows: none is sent, and each is accounted for.
        chunk: what the rows are of the claim, where they come bucket by bucket.

    Raises:
        LeaseLost: after every request that was under way has ended; it names the buckets of what was sent.
    """
    waiting = {} if order.retry_now else order.known
    at = order.waits_at or order.now
    rows, wait = split(table, waiting, at, order.in_doubt) if order.only is None else alone(table, order.only)
    new, refused = refused_before(rows, order.known)
    sent = _waiting(wait, order)
    others = wait.num_rows + refused.num_rows
    held = {*_buckets(wait), *_buckets(refused)}
    sent += _sent(engine, order, new, stop, left_out=others, last=not refused.num_rows, buckets=_of(chunk, new, held))
    if not refused.num_rows:
        return sent
    left_out, stop = len(sent.undelivered), sent.stop or stop
    own = _of(replace(chunk, own=()) if chunk else None, refused, held)
    try:
        return sent + _sent(engine, order, refused, stop, left_out=left_out, known=True, buckets=own)
    except LeaseLost as lost:
        lost.buckets = [*_buckets(new), *(lost.buckets or ())]
        raise


def _waiting(wait: pa.Table, order: Order) -> Sent:
    """What is said of rows that are not sent now."""
    reason = "an earlier run may have sent it" if order.only is None else "held back while one other row was sent"
    listed = still_waiting(wait, order, reason)
    planned = count_operations(wait.column(OPERATION))
    no_match = PerOperation.of(row.operation for row in listed if row.outcome == Outcome.NO_MATCH)
    return Sent(Counts(planned=planned, skipped=planned - no_match, no_match=no_match), (*listed,))


def without_applied(table: pa.Table, before: Applied) -> tuple[pa.Table, Sent]:
    """The rows without those that an earlier attempt applied for sure, and what became of these."""
    if not before.delivered:
        return table, NOTHING_SENT
    done = pc.is_in(table.column(BUCKET), pa.array(_numbers(before.delivered), pa.int32()))
    counts = count_operations(table.filter(done).column(OPERATION))
    applied = Sent(Counts(planned=counts, delivered=counts), nothing_applied=not counts.total)
    return table.filter(pc.invert(done)), applied


def _sent(engine: Engine, order: Order, rows: pa.Table, stop: Stop | None, **part: Any) -> Sent:
    """What becomes of rows that the engine gets as one `WavePart`."""
    try:
        result = engine.deliver_wave(WavePart(order.claim.id, rows, **part), stop)
    except LeaseLost as lost:
        lost.buckets = _buckets(rows.take(pa.array(lost.rows, pa.int64())))
        raise
    failed = not_delivered(rows, result.failures, order)
    return Sent(result.counts, tuple(failed), result.nothing_applied, result.stop, result.any_unknown)


def _numbers(ranges: Ranges) -> list[int]:
    return [number for lo, hi in ranges for number in range(lo, hi)]


def _of(chunk: Chunk | None, rows: pa.Table, held: Collection[int]) -> Buckets | None:
    return Buckets(chunk, rows.column(BUCKET), held) if chunk else None


def _buckets(rows: pa.Table) -> list[int]:
    buckets: list[int] = rows.column(BUCKET).to_pylist()
    return buckets
