"""Send the rows of one claim and say what became of each; the same on the driver and in a task of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from dbt_reverse_etl.delivery.counts import NO_COUNTS, Counts, PerOperation
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.facts import Claim, Undelivered
from dbt_reverse_etl.delivery.gate import LeaseLost, Stop
from dbt_reverse_etl.delivery.policy import Rejections
from dbt_reverse_etl.delivery.undelivered import BUCKET, SentInDoubt, not_delivered, split, still_waiting
from dbt_reverse_etl.delivery.wave import count_operations
from dbt_reverse_etl.outcome import Outcome
from dbt_reverse_etl.sinks.base import OPERATION


@dataclass(frozen=True)
class Order:
    """What to send, and what is known of it.

    Attributes:
        claim: covers every row that is sent.
        known: undelivered rows of the claim by key.
        now: decides who waits.
        retry_now: nobody waits.
    """

    claim: Claim
    known: Mapping[str, Undelivered]
    now: datetime
    rejections: Rejections
    retry_now: bool
    in_doubt: SentInDoubt = field(default_factory=SentInDoubt)


@dataclass(frozen=True)
class Sent:
    """What became of the planned rows of a claim, or of a part of them.

    Attributes:
        counts: of all rows that the source gave; those that wait are skipped, or without a match as before.
        undelivered: an entry for each row that was not delivered, attempted or not.
        requests: how many `deliver` calls were made.
        nothing_applied: surely no row reached the destination, and none was rejected.
        stop: why the sync must stop here, or None.
    """

    counts: Counts = NO_COUNTS
    undelivered: tuple[Undelivered, ...] = ()
    requests: int = 0
    nothing_applied: bool = True
    stop: Stop | None = None

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.counts + other.counts,
            self.undelivered + other.undelivered,
            self.requests + other.requests,
            self.nothing_applied and other.nothing_applied,
            self.stop or other.stop,
        )


NOTHING_SENT = Sent()


def send(engine: Engine, order: Order, table: pa.Table, stop: Stop | None = None) -> Sent:
    """Send the rows of `table` that do not wait.

    Args:
        table: as `Source.wave` gives it.
        stop: the sync stopped before these rows: none is sent, and each is accounted for.

    Raises:
        LeaseLost: after every request that was under way has ended; it names the buckets of what was sent.
    """
    known = {} if order.retry_now else order.known
    rows, wait = split(table, known, order.now, order.in_doubt)
    try:
        result = engine.deliver_wave(order.claim.id, rows, wait.num_rows, stop)
    except LeaseLost as lost:
        lost.buckets = rows.column(BUCKET).take(pa.array(lost.rows, pa.int64())).to_pylist()
        raise
    waiting, planned = still_waiting(wait, order.known, order.now), count_operations(wait.column(OPERATION))
    no_match = PerOperation.of(row.operation for row in waiting if row.outcome == Outcome.NO_MATCH)
    failed = not_delivered(rows, result.failures, order.known, order.now, order.rejections)
    return Sent(
        result.counts + Counts(planned=planned, skipped=planned - no_match, no_match=no_match),
        (*waiting, *failed),
        result.requests,
        result.nothing_applied,
        result.stop,
    )
