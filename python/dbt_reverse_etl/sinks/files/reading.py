"""The rows that a consumer of an object sees: its listed parts, folded by key, the newest change first.

Two passes over the parts, one part in memory at a time: the first finds the newest change of each key, so the keys of all rows are in
memory; the second reads those changes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION, SinkTask
from dbt_reverse_etl.sinks.files.decoding import decoded
from dbt_reverse_etl.sinks.files.manifest import Manifest, Part
from dbt_reverse_etl.sinks.files.partitions import row_numbers
from dbt_reverse_etl.sinks.files.store import Store, UnusableError
from dbt_reverse_etl.values.encoding import encode_values

READ_AT_ONCE = 100_000  # rows in one table, at least
_FOLD_AT_ONCE = 1_000_000  # changes that may wait to be folded
_ORDER = "order"


def read_rows(store: Store, manifest: Manifest, task: SinkTask) -> Iterator[pa.Table]:
    """The fields of a task in every row, as `reading.rows_of` gives them. Raises UnusableError where the listed parts are not the whole
    object, or one of them is not as it was written."""
    if manifest.whole_from is None:
        raise UnusableError(
            "rows that are in no listed part, after keep_days or adopt",
            "every row since a full load, or the first",
            "dbt run-operation resync for this sync, and push until no row is left out",
        )
    newest, begin, waiting = _newest(store, manifest.parts, task), 0, list[pa.Table]()
    for part in manifest.parts:
        chosen = _between(newest, begin, begin + part.rows)
        begin += part.rows
        if len(chosen):
            waiting.append(_changes(store, part, task.schema).take(chosen))
        if sum(table.num_rows for table in waiting) >= READ_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _newest(store: Store, parts: Sequence[Part], task: SinkTask) -> pa.Array:
    """Which changes are the newest of their key, and no delete: their numbers, counted over all parts, in order."""
    schema = pa.schema([pa.field(OPERATION, pa.string()), *(task.schema.field(name) for name in task.key)])
    found, waiting, begin = list[pa.Table](), 0, 0
    for part in parts:
        found.append(_keys(_changes(store, part, schema), begin, task.key))
        begin, waiting = begin + part.rows, waiting + part.rows
        if waiting >= max(_FOLD_AT_ONCE, found[0].num_rows):
            found, waiting = [_folded(found)], 0
    if not found:
        return pa.array([], pa.int64())
    orders = _folded(found).column(_ORDER).combine_chunks()
    kept = orders.filter(pc.equal(pc.bit_wise_and(orders, 1), 0))
    return pc.shift_right(kept, 1).sort()


def _keys(changes: pa.Table, begin: int, key: Sequence[str]) -> pa.Table:
    """The key, and twice the number of the change, and one more for a delete."""
    orders = pc.multiply(pc.add(row_numbers(changes.num_rows), begin), 2)
    deleted = pc.equal(changes.column(OPERATION).combine_chunks(), "delete").cast(pa.int64())
    columns = [_comparable(changes.column(name).combine_chunks()) for name in key]
    return pa.table([*columns, pc.add(orders, deleted)], names=[*(f"_{name}" for name in key), _ORDER])


def _comparable(array: pa.Array) -> pa.Array:
    """Arrow groups by no nested values."""
    return pa.array(encode_values(array).rows, pa.binary()) if pt.is_nested(array.type) else array


def _folded(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables)
    newest = table.group_by(table.column_names[:-1]).aggregate([(_ORDER, "max")])
    return newest.rename_columns(table.column_names)


def _between(numbers: pa.Array, begin: int, end: int) -> pa.Array:
    """Those of some ordered numbers that are in a range, counted from its begin."""
    first, last = (bisect_left(numbers, bound, key=lambda number: number.as_py()) for bound in (begin, end))
    return pc.subtract(numbers.slice(first, last - first), begin)


def _changes(store: Store, part: Part, schema: pa.Schema) -> pa.Table:
    """Fields of a part, and `_unreadable`."""
    content = store.read(part.name)
    if content is None:
        found, expected = f"no file {part.name}, which the manifest lists", "no run meanwhile, and every listed part"
        raise UnusableError(found, expected, "repeat it, or restore the file, or resync")
    if hashlib.sha256(content).hexdigest() != part.sha256:
        found, expected = f"another content of {part.name}", "the sha256 of the manifest"
        raise UnusableError(found, expected, "restore the file, or resync")
    return decoded(content, part, schema)
