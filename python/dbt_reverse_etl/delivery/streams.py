"""The order in which the rows of a claim are sent: bucket by bucket, so that the record of a batch can say which buckets it completes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.delivery.undelivered import BUCKET
from dbt_reverse_etl.sinks.buckets import Chunk

PERIOD = 256  # buckets


@dataclass(frozen=True)
class Stripes:
    """How the rows of a push lie on the executors: every 256 buckets are cut into so many stripes, and a task has all rows of a stripe.

    Any part of the buckets is spread over all tasks, and what a task has sent is few ranges.
    """

    count: int

    def numbers(self, buckets: pa.ChunkedArray) -> list[int]:
        """The stripes of buckets, one for each run of neighbours."""
        place = pc.shift_right(pc.multiply(pc.bit_wise_and(buckets, PERIOD - 1), self.count), PERIOD.bit_length() - 1)
        numbers = pc.add(pc.multiply(pc.shift_right(buckets, PERIOD.bit_length() - 1), self.count), place)
        runs: list[int] = pc.run_end_encode(pa.concat_arrays(numbers.chunks)).values.to_pylist()
        return runs

    def edges(self, number: int) -> tuple[int, int]:
        """The buckets [lo, hi) of a stripe."""
        period, place = divmod(number, self.count)
        lo, hi = (-(-PERIOD * at // self.count) for at in (place, place + 1))
        return period * PERIOD + lo, period * PERIOD + hi


class TaskStream:
    """What a task was given of a claim: tables of rows, bucket by bucket within each stripe."""

    def __init__(self, stripes: Stripes) -> None:
        self._stripes, self._sender = stripes, secrets.token_hex(4)
        self._last, self._rows_of_last = -1, 0
        self._goes_on = False

    def end(self, table: pa.Table, following: pa.RecordBatch) -> int:
        """How many of the rows are sent before what follows: a bucket is not divided, unless there is no other."""
        before, after = table.column(BUCKET), following.column(BUCKET)[0]
        others: int = pc.sum(pc.not_equal(before, after)).as_py()
        self._goes_on = others == 0
        return others or table.num_rows

    def chunk(self, table: pa.Table) -> Chunk:
        """What the next table is of the claim."""
        column = table.column(BUCKET)
        first, last = column[0].as_py(), column[-1].as_py()
        own = [self._stripes.edges(number) for number in self._stripes.numbers(column)]
        sent_before = self._rows_of_last if first == self._last else 0
        if own[0][0] <= self._last < own[0][1]:
            own[0] = (min(first, self._last + 1), own[0][1])
        own[-1] = (own[-1][0], last + 1)
        rows = pc.sum(pc.equal(column, last)).as_py()
        self._last, self._rows_of_last = last, rows + (sent_before if first == last else 0)
        goes_on, self._goes_on = self._goes_on, False
        return Chunk(self._sender, tuple(own), sent_before, goes_on)


def whole_claim(lo: int, hi: int) -> Chunk:
    """All rows of a claim are at hand."""
    return Chunk(secrets.token_hex(4), ((lo, hi),))


def in_buckets(table: pa.Table) -> pa.Table:
    """The rows in the order of their buckets."""
    column = table.column(BUCKET)
    is_sorted = pc.all(pc.less_equal(column[:-1], column[1:])).as_py() if table.num_rows > 1 else True
    return table if is_sorted else table.take(pc.sort_indices(column))
