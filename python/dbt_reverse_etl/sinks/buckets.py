"""Which buckets of a claim a batch completes, where its rows are sent bucket by bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.ranges import Ranges, minus, singles, union


@dataclass(frozen=True)
class Chunk:
    """Rows of a claim that one sender has at hand."""

    sender: str  # unique within the claim
    own: Ranges  # of buckets in the order in which their rows come; no other sender has rows of them. None: others have
    sent_before: int = 0  # rows of the first bucket that this sender had before
    goes_on: bool = False  # more rows of the last bucket follow


@dataclass(frozen=True)
class Piece:
    """The rows [first, stop) of a bucket, as its sender counts them; `is_end`: it has no more."""

    bucket: int
    first: int
    stop: int
    is_end: bool


@dataclass(frozen=True)
class Coverage:
    """What a batch applies if it is applied."""

    sender: str = ""
    whole: Ranges = ()  # buckets whose planned rows are all in this batch
    pieces: tuple[Piece, ...] = ()  # of buckets that are larger than a batch
    touched: Ranges = ()  # buckets with rows in this batch, and others that are left out


class Buckets:
    """The rows of a chunk that are sent, in order; the rows of a bucket are neighbours."""

    def __init__(self, chunk: Chunk, column: pa.ChunkedArray, held: Collection[int]) -> None:
        """`column` is the bucket of each row, int32; `held` are buckets that have planned rows which are not among these."""
        self._chunk, self._held = chunk, singles(held)
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.int32())
        self._of: Sequence[int] = memoryview(array.buffers()[1] or b"").cast("i")[array.offset :][: len(array)]
        is_held = pc.is_in(array, pa.array(held, pa.int32()))
        self._held_rows: list[int] = pc.indices_nonzero(is_held).to_pylist() if held else []
        self._place = sorted((lo, number) for number, (lo, _) in enumerate(chunk.own))

    def edge(self, start: int, stop: int) -> int:
        """The last row number in (start, stop] at which a bucket ends, or `stop` if there is none."""
        first = self._first_of(stop) if self._is_inside(stop) else stop
        return first if first > start else stop

    def coverage(self, rows: Sequence[int], refused: Collection[int]) -> Coverage:
        """Of a batch with these rows, ascending, but for the `refused` places in it, which are not applied."""
        spans = [*_spans(rows)]
        touched = {self._of[rows[index]] for index in refused}
        for span in spans:
            first, stop = (bisect_left(self._held_rows, row) for row in span)
            touched |= {self._of[row] for row in self._held_rows[first:stop]}
        pieces = [piece for span in spans for piece in self._pieces(*span) if piece.bucket not in touched]
        parts = touched | {piece.bucket for piece in pieces}
        space = union(part for span in spans for part in self._space(*span)) if self._chunk.own else ()
        whole = minus(minus(space, self._held), singles(parts))
        return Coverage(self._chunk.sender, whole, tuple(pieces), singles(touched))

    def _space(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """The own buckets from the end of what comes before the rows to the end of the rows."""
        own, of = self._chunk.own, self._of
        at, lo = (0, own[0][0]) if first == 0 else (self._range_of(of[first - 1]), of[first - 1] + 1)
        last, hi = (len(own) - 1, own[-1][1]) if stop == len(of) else (self._range_of(of[stop - 1]), of[stop - 1] + 1)
        if at == last:
            yield lo, hi
            return
        yield lo, own[at][1]
        yield from own[at + 1 : last]
        yield own[last][0], hi

    def _pieces(self, first: int, stop: int) -> Iterator[Piece]:
        """Of the first and the last bucket, where these rows are not all of it."""
        end = self._end_of(first, stop)
        if self._is_inside(first) or (end == stop and self._is_inside(stop)):
            yield self._piece(first, end)
        if end < stop and self._is_inside(stop):
            yield self._piece(self._first_of(stop - 1), stop)

    def _piece(self, first: int, stop: int) -> Piece:
        begin = self._first_of(first)
        before = first - begin + (self._chunk.sent_before if begin == 0 else 0)
        return Piece(self._of[first], before, before + stop - first, not self._is_inside(stop))

    def _is_inside(self, row: int) -> bool:
        """Whether the row before belongs to the same bucket."""
        if row == 0:
            return self._chunk.sent_before > 0
        return self._chunk.goes_on if row == len(self._of) else self._of[row - 1] == self._of[row]

    def _first_of(self, row: int) -> int:
        """The first row of the bucket of a row; past the last one: of the last bucket."""
        bucket = self._of[min(row, len(self._of) - 1)]
        return bisect_left(range(row), True, key=lambda number: self._of[number] == bucket)

    def _end_of(self, row: int, stop: int) -> int:
        """Where the rows of its bucket end, `stop` at most."""
        bucket = self._of[row]
        return row + bisect_left(range(row, stop), True, key=lambda number: self._of[number] != bucket)

    def _range_of(self, bucket: int) -> int:
        return self._place[bisect_left(self._place, (bucket + 1,)) - 1][1]


@dataclass(frozen=True)
class BatchBuckets:
    """Where the rows of a batch lie among those of their sender; without rows: those of none."""

    buckets: Buckets | None = None
    rows: Sequence[int] = ()

    def coverage(self, refused: Collection[int] = ()) -> Coverage:
        """What the batch applies, but for the rows in these places."""
        return self.buckets.coverage(self.rows, refused) if self.buckets and self.rows else Coverage()


def _spans(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows that are neighbours, as [first, stop)."""
    if isinstance(rows, range):
        yield rows.start, rows.stop
        return
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[start], rows[place - 1] + 1
            start = place
