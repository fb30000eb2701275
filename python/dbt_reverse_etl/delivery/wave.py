"""The book of one wave while it is under way: which rows were delivered, which were not and why. Thread-safe."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.counts import NO_ROWS, Counts, PerOperation
from dbt_reverse_etl.delivery.gate import INTERRUPT, Stop, StopKind
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.sinks.base import OPERATION, Batch
from dbt_reverse_etl.sinks.buckets import BatchBuckets, Buckets

OPEN, DELIVERED, FAILED, UNDER_WAY = range(4)


@dataclass(frozen=True)
class RowFailure:
    """Why a row was not delivered.

    Attributes:
        outcome: of all attempts together.
        reason: without row values.
        attempts: requests that carried the row; 0: never sent.
        in_part: the destination has a part of the row.
    """

    outcome: Outcome
    reason: str
    attempts: int
    in_part: bool = False


@dataclass(frozen=True)
class WavePart:
    """Rows of a claim that are sent together, and what is known of them.

    Attributes:
        rows: at least the columns of `sinks.base.sent_columns`; others are not sent. Each key once.
        left_out: rows of the claim that are planned and not among these.
        last: no others follow.
        known: each was refused before, with the same value: that it is again says nothing about the destination.
        buckets: which buckets of the claim the rows complete, where they come bucket by bucket.
    """

    claim: str
    rows: pa.Table
    left_out: int = 0
    last: bool = True
    known: bool = False
    buckets: Buckets | None = None


class Wave:
    """The rows of a part of a claim, by row number."""

    def __init__(self, part: WavePart, policy: Policy, interrupted: Callable[[], bool], *, may_miss: bool) -> None:
        """`may_miss`: rows are only updated, so that the destination need not have each of them."""
        rows = part.rows.num_rows
        self._may_miss = may_miss
        self._part = part
        self.stopped_by: Stop | None = None
        self._marks = bytearray(rows)
        self._failures: dict[int, RowFailure] = {}
        self._maybe: set[int] = set()  # rows of batches that were applied in part: nobody knows which part
        self._in_part: set[int] = set()  # rows of which a part is applied
        self._delivered = 0
        self._refused = 0
        most = max(policy.rejections.breaker_rows, policy.rejections.breaker_share * rows)
        self._most_refused = inf if part.known else most
        self._aborted = False
        self._interrupted = interrupted
        self._parks_doubt = policy.park_doubt and not policy.retry_now
        self._repeated = {Outcome.RETRYABLE} if policy.park_doubt else {Outcome.RETRYABLE, Outcome.UNKNOWN}
        # Rows in doubt are not repeated, so no time limit of repeats would end a sync that leaves all of them in doubt.
        self._breaking = {Outcome.REJECTED, Outcome.UNKNOWN} if policy.park_doubt else {Outcome.REJECTED}
        self._aside: list[Sequence[int]] = []
        self._lock = threading.RLock()

    def batch(self, rows: Sequence[int], table: pa.Table, prepared: Sequence[Any] | None, *, last: bool) -> Batch:
        """A batch of these rows."""
        part = self._part
        buckets = BatchBuckets(part.buckets, rows) if part.buckets else None
        return Batch(table, part.claim, last and part.last, self._left_out(rows), prepared, buckets)

    def _left_out(self, rows: Sequence[int]) -> int:
        """Rows of the claim that are planned, known to be not delivered, and not among `rows`."""
        with self._lock:
            failed = len(self._failures) - sum(row in self._failures for row in rows) if self._failures else 0
            return self._part.left_out + failed

    def middle(self, rows: Sequence[int]) -> int:
        """Where to halve a batch that was refused as one: at the end of a bucket where there is one."""
        half = len(rows) // 2
        edge = self._part.buckets.edge(rows[0], rows[half]) if self._part.buckets else rows[half]
        return bisect_left(rows, edge)

    def all_delivered(self, rows: Sequence[int]) -> bool:
        with self._lock:
            return all(self._marks[row] == DELIVERED for row in rows)

    def put_aside(self, rows: Sequence[int]) -> None:
        """Rows that failed too often for now."""
        with self._lock:
            self._aside.append(rows)

    def take_aside(self) -> list[Sequence[int]]:
        """What was set aside since this was asked last."""
        with self._lock:
            rows, self._aside = self._aside, []
            return rows

    def is_stopped(self) -> bool:
        """An interrupt is noticed here, between two requests: what is under way ends first."""
        if self.stopped_by is None and self._interrupted():
            self.stop(INTERRUPT)
        return self._aborted or self.stopped_by is not None

    def stop(self, stop: Stop) -> None:
        """No further request; the first reason stands."""
        with self._lock:
            self.stopped_by = self.stopped_by or stop

    def begun(self) -> list[int]:
        """Rows of which a request was made, whatever came of it."""
        with self._lock:
            return [row for row, mark in enumerate(self._marks) if mark != OPEN]

    def abort(self) -> None:
        """A worker is leaving by an exception: no further request, and no result."""
        self._aborted = True

    def begin(self, rows: Sequence[int]) -> None:
        """A request with these rows is under way."""
        with self._lock:
            self._mark(rows, UNDER_WAY)

    def read(self, delivery: Delivery) -> Delivery:
        """The answer to a batch; where doubt is parked, rows that may be applied are not sent in smaller batches."""
        maybe = {*delivery.maybe_applied, *delivery.in_part}
        if not (self._parks_doubt and maybe):
            return delivery
        if not delivery.refused_whole:  # what is refused by itself is not sent again
            maybe -= {one.index for one in delivery.results if one.outcome is Outcome.REJECTED}
        reason = "some rows of the batch were refused, and it is not known which"
        apart = Outcome.RETRYABLE if delivery.refused_whole else None
        results = tuple(
            replace(one, outcome=Outcome.UNKNOWN, reason=reason)
            if one.index in maybe
            else replace(one, outcome=apart or one.outcome)
            for one in delivery.results
        )
        return replace(delivery, results=results, refused_whole=False)

    def record(self, rows: Sequence[int], delivery: Delivery) -> None:
        """Write down the sink's answer; a batch refused as one says nothing about a single row."""
        with self._lock:
            if delivery.refused_whole and len(delivery.results) < len(rows):
                refused = Delivery.of_all(len(rows), Outcome.REJECTED, "the batch was refused")
                delivery = replace(refused, maybe_applied=delivery.maybe_applied, in_part=delivery.in_part)
            self._in_part.update(rows[index] for index in delivery.in_part)
            self._maybe.update(rows[index] for index in (*delivery.maybe_applied, *delivery.in_part))
            if delivery.refused_whole and len(rows) > 1:
                self._refused_as_one(rows)
                return
            self._mark(rows, DELIVERED)
            for result in delivery.results:
                self._fail(rows[result.index], result)
            for row in rows if self._failures else ():
                if self._marks[row] == DELIVERED:
                    self._failures.pop(row, None)
            self._delivered += len(rows) - len(delivery.results)
            if delivery.stop is not None:
                self.stop(Stop(StopKind.FATAL, delivery.stop))
            self._look_at_breaker()

    def again(self, rows: Sequence[int], delivery: Delivery) -> list[int]:
        """The rows to send again: not applied for the destination's fault, or, unless doubt is parked, nobody knows."""
        return [rows[result.index] for result in delivery.results if result.outcome in self._repeated]

    def close(self) -> tuple[dict[int, RowFailure], Counts]:
        """Everything that was not delivered, and the counts."""
        with self._lock:
            stop = self.stopped_by
            left = RowFailure(Outcome.RETRYABLE, f"not sent: {stop.reason}" if stop else "not sent", 0)
            self._failures |= {row: left for row, mark in enumerate(self._marks) if mark == OPEN}
            for row in self._maybe & self._failures.keys():
                failure = self._failures[row]
                if failure.outcome in (Outcome.RETRYABLE, Outcome.FATAL):  # anything else was said of this row alone
                    self._failures[row] = replace(failure, outcome=Outcome.UNKNOWN)
            return dict(sorted(self._failures.items())), self._count(self._part.rows.column(OPERATION))

    def _count(self, operations: pa.ChunkedArray) -> Counts:
        def counted(rows: Iterable[int]) -> PerOperation:
            return count_operations(operations, list(rows))

        planned, not_delivered = count_operations(operations), counted(self._failures)
        refused = counted(row for row, failure in self._failures.items() if failure.outcome is Outcome.REJECTED)
        absent = counted(row for row, failure in self._failures.items() if failure.outcome is Outcome.NO_MATCH)
        left = counted(row for row, failure in self._failures.items() if failure.attempts == 0)
        failed = not_delivered - refused - absent - left
        return Counts(planned, planned - not_delivered, refused, failed, left, absent)

    def _refused_as_one(self, rows: Sequence[int]) -> None:
        self._mark(rows, FAILED)
        for row in rows:
            before = self._failures.get(row)
            outcome = before.outcome if before else Outcome.RETRYABLE
            attempts = before.attempts if before else 0
            self._failures[row] = RowFailure(outcome, "refused together with other rows", attempts + 1)

    def _fail(self, row: int, result: RowResult) -> None:
        outcome, reason = result.outcome, result.reason
        if outcome is Outcome.NO_MATCH and not self._may_miss:
            outcome = Outcome.REJECTED  # a row that is to be there
        before = self._failures.get(row)
        joined = before.outcome.then(outcome) if before else outcome
        self._failures[row] = RowFailure(joined, reason, (before.attempts if before else 0) + 1, row in self._in_part)
        self._marks[row] = FAILED
        # Of a batch that is parked as one, most rows may be well.
        self._refused += outcome in self._breaking and not (outcome is Outcome.UNKNOWN and row in self._maybe)
        if outcome is Outcome.FATAL:
            self.stop(Stop(StopKind.FATAL, reason))

    def _look_at_breaker(self) -> None:
        if self._refused > self._most_refused and self._refused > self._delivered:
            words = " or ".join(sorted(outcome.value for outcome in self._breaking))
            reason = f"{self._refused} rows {words}, {self._delivered} delivered"
            self.stop(Stop(StopKind.REJECTIONS, reason))

    def _mark(self, rows: Sequence[int], mark: int) -> None:
        if isinstance(rows, range):
            self._marks[rows.start : rows.stop] = bytes((mark,)) * len(rows)
        else:
            for row in rows:
                self._marks[row] = mark


def count_operations(operations: pa.ChunkedArray, rows: Sequence[int] | None = None) -> PerOperation:
    """Rows of each operation: of all, or of the given row numbers."""
    some = operations if rows is None else operations.take(pa.array(rows, pa.int64()))
    counted = {entry["values"]: entry["counts"] for entry in some.value_counts().to_pylist()}
    return PerOperation(**counted) if counted else NO_ROWS
