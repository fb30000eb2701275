"""Arrow columns as the values that SQLAlchemy binds: column by column, pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import sqlalchemy as sa

from dbt_reverse_etl.sinks.base import OPERATION
from dbt_reverse_etl.sinks.sql.database import (
    Converted,
    Refusal,
    date_days,
    null_keys,
    one_array,
    positions,
    reasons_of,
    time_micros,
    timestamp_micros,
    utf8,
    without,
)
from dbt_reverse_etl.sinks.sql.sqlalchemy.types import Type
from dbt_reverse_etl.values.arrow import is_bytes, is_text, plain_array
from dbt_reverse_etl.values.encoding import encode_values

NOT_FINITE = "NaN or Infinity, which the database cannot hold"
SUBNORMAL = "a number closer to zero than 2.2E-308, which the database cannot hold"
NUL = "a NUL character, which the database cannot hold"
EMPTY = "an empty value, which Oracle would store as NULL"
_SMALLEST_NORMAL = 2.2250738585072014e-308
_WIDE = r"[\x{10000}-\x{10FFFF}]"  # two units of UTF-16


@dataclass(frozen=True)
class Changes:
    """One batch as values.

    Attributes:
        writes: inserts and updates: `row`, the place in the batch, and c0, c1, ... the fields in the order of the schema.
        deletes: the same, of which only the key counts.
        refused: place in the batch -> reason.
    """

    writes: pa.Table
    deletes: pa.Table
    refused: dict[int, str]


def changes_of(
    batch: pa.Table, columns: Mapping[str, Type], key: Sequence[str], dialect: str, *, deletes: str | None = None
) -> Changes:
    """Convert one batch; rows with a value that its column cannot hold exactly are refused, and all deletes if `deletes` says why."""
    deleted = pc.equal(one_array(batch.column(OPERATION)), "delete")
    gone = frozenset(positions(deleted))
    refused: dict[int, str] = dict.fromkeys(gone, deletes) if deletes else {}
    arrays = []
    for name, column in columns.items():
        array, wrong = _values(name, plain_array(one_array(batch.column(name))), column, dialect)
        arrays.append(array)
        refused |= wrong
    refused |= null_keys(batch, key)
    numbers = pa.array(range(batch.num_rows), pa.int32())
    table = pa.Table.from_arrays([numbers, *arrays], ["row", *(f"c{at}" for at in range(len(arrays)))])
    kept = pc.invert(pc.is_in(numbers, pa.array(list(refused), pa.int32())))
    writes, removed = pc.and_(kept, pc.invert(deleted)), pc.and_(kept, deleted)
    return Changes(table.filter(writes), table.filter(removed), refused)


def _values(name: str, array: Any, column: Type, dialect: str) -> tuple[Any, dict[int, str]]:
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = [None if row is None or row == b"null" else row.decode() for row in encoded.rows]
        return pa.array(texts, pa.string()), encoded.rejected
    converted, refusals = _converted(array, column, dialect)
    return converted, reasons_of(name, refusals)


def _converted(array: Any, column: Type, dialect: str) -> Converted:  # noqa: PLR0911  (one line for each type)
    kind = array.type
    if pt.is_floating(kind):
        return _float(array.cast(pa.float64()), dialect)
    if is_text(kind):
        return _text(array, column, dialect)
    if is_bytes(kind):
        return _bytes(array.cast(pa.binary()), column, dialect)
    if pt.is_timestamp(kind):
        micros, refusals = timestamp_micros(array)
        return micros.cast(pa.timestamp("us", "UTC" if kind.tz else None)), refusals
    if pt.is_date(kind):
        days, refusals = date_days(array)
        return days.cast(pa.date32()), refusals
    if pt.is_time(kind):
        micros, refusals = time_micros(array)
        return micros.cast(pa.time64("us")), refusals
    if pt.is_boolean(kind) and not isinstance(column, sa.Boolean):
        return array.cast(pa.int8()), []
    return (array.cast(pa.string()), []) if pt.is_null(kind) else (array, [])


def _float(array: Any, dialect: str) -> Converted:
    if dialect not in ("mssql", "oracle"):
        return array, []
    refusals: list[Refusal] = [(pc.invert(pc.is_finite(array)), NOT_FINITE)]
    if dialect == "mssql":
        size = pc.abs(array)
        refusals.append((pc.and_(pc.greater(size, 0.0), pc.less(size, _SMALLEST_NORMAL)), SUBNORMAL))
    return array, refusals


def _bytes(array: Any, column: Type, dialect: str) -> Converted:
    lengths, most = pc.binary_length(array), getattr(column, "length", None)
    refusals: list[Refusal] = [(pc.equal(lengths, 0), EMPTY)] if dialect == "oracle" else []
    if isinstance(most, int):  # the cast in a MERGE would cut them
        refusals.append((pc.greater(lengths, most), f"longer than the {most} bytes of its column"))
    return array, refusals


def _text(array: Any, column: Type, dialect: str) -> Converted:
    texts, refusals = utf8(array.cast(pa.large_string()))
    if dialect == "postgresql":
        refusals.append((pc.match_substring(texts, "\0"), NUL))
    if dialect == "oracle":
        refusals.append((pc.equal(pc.binary_length(texts), 0), EMPTY))
    most = getattr(column, "length", None)
    if most is not None:  # Postgres would cut blanks at the end, the cast in a MERGE anything
        length = pc.utf8_length(texts)
        if dialect == "mssql":
            length = pc.add(length, pc.count_substring_regex(texts, _WIDE))
        refusals.append((pc.greater(length, most), f"longer than the {most} characters of its column"))
    for mask, _ in refusals:
        texts = without(texts, pc.fill_null(mask, False))
    return texts, refusals
