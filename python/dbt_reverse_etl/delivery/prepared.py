"""The rows of a wave as its sink wants them: prepared some thousands at a time, while those before them are sent."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.delivery.waves import Edge, anywhere, batches
from dbt_reverse_etl.sinks.base import Limits

ROWS_AT_ONCE = 2_000  # more together are hardly cheaper by the row
_BYTES_AT_ONCE = 16 * 2**20

Entries = Sequence[Any] | None  # one for each row; None: the sink prepares nothing


class Prepared:
    """Thread-safe; use it in a `with`. What is prepared is kept only until the last batch of it has ended.

    Attributes:
        parts: the row numbers of each batch, in order.
    """

    def __init__(
        self, rows: pa.Table, limits: Limits, prepare: Callable[[pa.Table], Entries], edge: Edge = anywhere
    ) -> None:
        self._rows, self._prepare = rows, prepare
        together = replace(
            limits, rows=max(1, ROWS_AT_ONCE // limits.rows) * limits.rows, bytes=max(limits.bytes, _BYTES_AT_ONCE)
        )
        self._slices: list[_Slice] = []
        self.parts: list[range] = []
        for place in batches(rows, together, edge):
            inner = batches(rows.slice(place.start, len(place)), limits, _from(place.start, edge))
            parts = [range(place.start + part.start, place.start + part.stop) for part in inner]
            self._slices.append(_Slice(place, len(parts)))
            self.parts += parts
        self._starts = [one.rows.start for one in self._slices]
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="prepare")

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.shutdown(cancel_futures=True)

    def take(self, rows: Sequence[int]) -> tuple[pa.Table, Entries]:
        """Rows of one batch, without a copy where they are neighbours, and their entries."""
        number = self._number(rows)
        own = self._slices[number]
        if own.batches_left == 0:  # they come once more, after all others
            table = self._picked(rows)
            return table, self._made(table)
        is_first, own.is_begun = not own.is_begun, True
        entries = self._entries(own)
        if is_first and entries is not None and number + 1 < len(self._slices):
            # While requests are under way. Where it fails, the worker that asks for it fails again, and is heard.
            self._ahead.submit(self._entries, self._slices[number + 1])
        first = own.rows.start
        if entries is not None and isinstance(rows, range):
            entries = entries[rows.start - first : rows.stop - first]
        elif entries is not None:
            entries = [entries[row - first] for row in rows]
        return self._picked(rows), entries

    def end(self, part: range) -> None:
        """This batch has ended, but for rows that were set aside."""
        own = self._slices[self._number(part)]
        with own.lock:
            own.batches_left -= 1
            if own.batches_left == 0:
                own.entries = None

    def _number(self, rows: Sequence[int]) -> int:
        return bisect_right(self._starts, rows[0]) - 1

    def _entries(self, own: _Slice) -> Entries:
        with own.lock:
            if own.batches_left and not own.is_made:
                own.entries, own.is_made = self._made(self._picked(own.rows)), True
            return own.entries

    def _made(self, table: pa.Table) -> Entries:
        entries = self._prepare(table)
        if entries is not None and len(entries) != table.num_rows:
            raise ValueError(f"{table.num_rows} rows were to be prepared, and {len(entries)} entries came back")
        return entries

    def _picked(self, rows: Sequence[int]) -> pa.Table:
        if isinstance(rows, range):
            return self._rows.slice(rows.start, len(rows))
        return self._rows.take(pa.array(rows, pa.int64()))


def _from(row: int, edge: Edge) -> Edge:
    return lambda start, stop: edge(row + start, row + stop) - row


@dataclass
class _Slice:
    rows: range
    batches_left: int
    entries: Entries = None
    is_begun: bool = False
    is_made: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
