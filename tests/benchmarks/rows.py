"""Rows of ten columns of usual types, and changes of them as a batch has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.base import Mode, Options, SinkTask


def people(ids: pa.Array, salt: str) -> dict[str, pa.Array]:
    """Ten columns of usual types for these ids."""
    text = pc.cast(ids, pa.string())
    return {
        "id": ids,
        **{f"s{n}": pc.binary_join_element_wise("text", salt, str(n), text, " ") for n in range(4)},
        "f": pc.multiply(pc.cast(ids, pa.float64()), 0.5),
        "n": pc.multiply(ids, 7),
        "t": pc.cast(pc.add(ids, 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
        "d": pc.cast(pc.cast(pc.bit_wise_and(ids, 16383), pa.int32()), pa.date32()),
        "b": pc.equal(pc.bit_wise_and(ids, 1), 0),
    }


def changes(operations: Sequence[tuple[str, range]], salt: str) -> pa.Table:
    """Rows as a batch has them, in no order."""
    parts = []
    for operation, ids in operations:
        words = {"_operation": pa.array([operation] * len(ids)), "_event_id": pa.array(["0" * 64] * len(ids))}
        parts.append(pa.table({**words, **people(pa.array(ids, pa.int64()), salt)}))
    table = pa.concat_tables(parts)
    mixed = pc.sort_indices(
        pa.table({"h": pc.bit_wise_and(pc.multiply(table.column("id"), 2_654_435_761), 2**31 - 1)}),
        [("h", "ascending")],
    )
    return table.take(mixed).combine_chunks()


def payload(table: pa.Table) -> pa.Table:
    """The columns that the destination has."""
    return table.select([name for name in table.column_names if not name.startswith("_")])


def task_of(table: pa.Table, mode: Mode, options: Options | None = None) -> SinkTask:
    """A sync of these rows into `people`."""
    return SinkTask("ab", "bench", 1, "people", mode, ("id",), payload(table).schema, options=options or Options())


@dataclass(frozen=True)
class Work:
    """So many changes of a table with as many rows, 45/45/10 of updates, inserts and deletes; every way of applying them must leave the same contents."""

    rows: int

    @cached_property
    def before(self) -> pa.Table:
        """The rows before them."""
        return changes([("insert", range(self.rows))], "old")

    @cached_property
    def after(self) -> pa.Table:
        """The changes."""
        some = self.rows * 45 // 100
        deleted = range(some, some + self.rows // 10)
        inserted = range(self.rows, self.rows + some)
        return changes([("update", range(some)), ("delete", deleted), ("insert", inserted)], "new")

    @cached_property
    def task(self) -> SinkTask:
        """A mirror of them."""
        return task_of(self.after, Mode.MIRROR)
