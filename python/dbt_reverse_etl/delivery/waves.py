"""Waves (contiguous bucket ranges, one acknowledgement each) and batches (what one request carries)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from dbt_reverse_etl.delivery.counts import NO_ROWS, PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS
from dbt_reverse_etl.sinks.base import Limits


@dataclass(frozen=True)
class Histogram:
    """Planned rows per bin of equally many buckets, counted apart from the stream that is sent.

    Attributes:
        row_bytes: about so many has a row.
    """

    bins: tuple[PerOperation, ...]
    row_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.bins or BUCKETS % len(self.bins):
            raise ValueError(f"the number of bins must divide {BUCKETS}, found {len(self.bins)}")

    @property
    def width(self) -> int:
        """Buckets per bin."""
        return BUCKETS // len(self.bins)

    def rows(self, lo: int, hi: int) -> PerOperation:
        """Planned rows of the buckets [lo, hi), which start and end with a bin."""
        if lo % self.width or hi % self.width:
            raise ValueError(f"[{lo}, {hi}) does not start and end with a bin of {self.width} buckets")
        return sum(self.bins[lo // self.width : hi // self.width], NO_ROWS)

    @property
    def total(self) -> PerOperation:
        return sum(self.bins, NO_ROWS)

    @staticmethod
    def of_bucket(number: int, rows: PerOperation) -> Histogram:
        """Planned rows of one bucket, and none of any other."""
        return Histogram((*[NO_ROWS] * number, rows, *[NO_ROWS] * (BUCKETS - number - 1)))


_MOST_GROWTH = 10.0


@dataclass(frozen=True)
class WaveSize:
    """How large a wave may be.

    Attributes:
        rows: of the first wave.
        most, most_bytes: of the largest wave: so much stands in the memory of the process that sends it.
        grow_below: seconds; after a quicker wave the next one is as large as would take them, but ten times as large at most.
        shrink_above: seconds; a slower wave halves the next one.
    """

    rows: int = 50_000
    most: int = 400_000
    most_bytes: int = 256 * 1024 * 1024
    grow_below: float = 10.0
    shrink_above: float = 30.0

    def of_rows(self, row_bytes: int) -> WaveSize:
        """For rows of so many bytes."""
        most = max(1, min(self.most, self.most_bytes // max(1, row_bytes)))
        return replace(self, rows=min(self.rows, most), most=most)

    def after(self, rows: int, seconds: float) -> int:
        """Rows of the wave that follows one of `rows` that took `seconds`."""
        if seconds < self.grow_below:
            growth = min(_MOST_GROWTH, self.grow_below / max(seconds, 0.001))
            return max(rows, min(int(rows * growth), self.most))
        return max(1, rows // 2) if seconds > self.shrink_above else rows


ONE_WAVE = WaveSize(rows=sys.maxsize, most=sys.maxsize, most_bytes=sys.maxsize)


class Waves:
    """Hands out the next bucket range, sized by how long the wave before it took; together they cover [0, BUCKETS)."""

    def __init__(self, histogram: Histogram, size: WaveSize, only: int | None = None) -> None:
        """`only`: hand out this bucket alone."""
        self._histogram = histogram
        self._size = size.of_rows(histogram.row_bytes)
        self._rows = self._size.rows
        self._lo, self._hi = (0, BUCKETS) if only is None else (only, only + 1)

    def next_range(self, took: float | None = None) -> tuple[int, int] | None:
        """The next [lo, hi), or None after the last; `took` is in seconds, None for the first wave."""
        if self._lo == self._hi:
            return None
        if took is not None:
            self._rows = self._size.after(self._rows, took)
        lo, width = self._lo, self._histogram.width
        hi, rows = lo + width, self._histogram.bins[lo // width].total
        while hi < self._hi and self._fits(rows, hi):
            rows += self._histogram.bins[hi // width].total
            hi += width
        self._lo = hi
        return lo, hi

    def _fits(self, rows: int, hi: int) -> bool:
        more = self._histogram.bins[hi // self._histogram.width].total
        return more == 0 or rows == 0 or rows + more <= self._rows


Edge = Callable[[int, int], int]  # where a batch that starts at a row ends best, `stop` at most


def anywhere(start: int, stop: int) -> int:  # noqa: ARG001  (the shape of an Edge)
    """Every row is as good an end as another."""
    return stop


def batches(rows: pa.Table, limits: Limits, edge: Edge = anywhere) -> Iterator[range]:
    """Row numbers of each batch, in order: at most `limits.rows` rows and `limits.bytes` bytes, a larger row alone."""
    if rows.num_rows == 0:
        return
    fit = max(1, rows.num_rows * limits.bytes // max(rows.nbytes, 1))
    step = max(1, min(limits.rows, fit))
    start = 0
    while start < rows.num_rows:
        stop = edge(start, min(start + step, rows.num_rows))
        yield from _halves(rows, range(start, stop), limits.bytes)
        start = stop


def _halves(rows: pa.Table, part: range, size: int) -> Iterator[range]:
    if len(part) == 1 or rows.slice(part.start, len(part)).nbytes <= size:
        yield part
        return
    middle = part.start + len(part) // 2
    yield from _halves(rows, range(part.start, middle), size)
    yield from _halves(rows, range(middle, part.stop), size)
