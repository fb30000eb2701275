"""Arrow columns as SQLite values: column by column, pure.

| Arrow type | SQLite value |
|---|---|
| integers | INTEGER; a uint64 above 2^63-1 is refused |
| bool | INTEGER 0 or 1 |
| floats | REAL; NaN is refused, since SQLite would store NULL; `-0.0` is `0.0` |
| string | TEXT |
| binary | BLOB |
| decimal | TEXT, all digits, never an exponent: `-0.50` |
| timestamp | TEXT, UTC, microseconds: `2024-01-01 00:00:00.000000` |
| date | TEXT: `2024-01-01` |
| time | TEXT, microseconds: `13:05:00.000000` |
| list, struct, map | TEXT, canonical JSON as of `dbt_reverse_etl.values.encoding` |
| null | NULL |

Years outside 1 to 9999 and parts finer than a microsecond are refused, never rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION
from dbt_reverse_etl.sinks.sql.database import (
    Convert,
    Converted,
    cast_to,
    date_text,
    decimal_text,
    null_keys,
    one_array,
    positions,
    reasons_of,
    time_text,
    timestamp_text,
    utf8,
    without,
)
from dbt_reverse_etl.values.arrow import is_bytes, is_text, plain_array, plain_type
from dbt_reverse_etl.values.encoding import encode_values, unsupported

INT64_MAX = 2**63 - 1
NAN = "NaN, which SQLite would store as NULL"
TOO_LARGE = "an integer above 9223372036854775807"


class Storage(str, Enum):
    """SQLite's storage classes."""

    INTEGER = "INTEGER"
    REAL = "REAL"
    TEXT = "TEXT"
    BLOB = "BLOB"


Values = tuple[Any, ...]


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch, held as columns.

    Attributes:
        indices: their places in the batch.
        columns: for each statement parameter, one value per row.
    """

    indices: Sequence[int]
    columns: Sequence[list[Any]]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Values]:
        return zip(*self.columns, strict=True)

    def only(self, indices: Sequence[int]) -> Rows:
        """The rows at these places, of rows that still are the whole batch."""
        return Rows(indices, [[column[index] for index in indices] for column in self.columns])


@dataclass(frozen=True)
class Changes:
    """One batch as SQLite values.

    Attributes:
        writes: inserts and updates, with the values in the order of the schema.
        deletes: with the values of the key.
        refused: index in the batch -> reason.
    """

    writes: Rows
    deletes: Rows
    refused: dict[int, str]


def changes_of(batch: pa.Table, fields: Sequence[str], key: Sequence[str]) -> Changes:
    """Convert one batch; rows with a value that SQLite cannot hold exactly are refused."""
    values: dict[str, list[Any]] = {}
    refused: dict[int, str] = {}
    for name in fields:
        values[name], reasons = _values(name, one_array(batch.column(name)))
        refused |= reasons
    refused |= null_keys(batch, key)
    deleted = set(positions(pc.equal(one_array(batch.column(OPERATION)), "delete")))
    every = range(batch.num_rows)
    writes = Rows(every, [values[name] for name in fields])
    if deleted or refused:
        writes = writes.only([index for index in every if index not in deleted and index not in refused])
    deletes = Rows(every, [values[name] for name in key]).only(sorted(deleted - refused.keys()))
    return Changes(writes, deletes, refused)


def texts_of(values: Sequence[Any]) -> pa.Array:
    """Values that SQLite returned, as `reading.rows_of` takes them."""
    return pa.array([_text_of(value) for value in values], pa.binary())


def _text_of(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value.hex().encode()
    text = value if value is None or isinstance(value, str) else repr(value)
    return None if text is None else text.encode(errors="surrogateescape")


def storage_of(arrow_type: pa.DataType) -> Storage:
    """The storage class of a type's values."""
    plain = plain_type(arrow_type)
    return Storage.TEXT if pt.is_nested(plain) else _form(plain)[0]


def is_supported(arrow_type: pa.DataType) -> bool:
    """Whether SQLite can hold the type."""
    plain = plain_type(arrow_type)
    return any(is_type(plain) for is_type, _, _ in FORMS) or (
        pt.is_nested(plain) and not unsupported(pa.schema([("", plain)]))
    )


def _values(name: str, array: Any) -> tuple[list[Any], dict[int, str]]:
    """One column as SQLite values, and the reason of each row that it refuses."""
    array = plain_array(array)
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = [None if row is None or row == b"null" else row.decode() for row in encoded.rows]
        return texts, encoded.rejected
    _, convert = _form(array.type)
    converted, refusals = convert(array)
    return converted.to_pylist(), reasons_of(name, refusals)


def _form(arrow_type: pa.DataType) -> tuple[Storage, Convert]:
    """How values of a plain type are stored, and the function that converts an array of them."""
    for is_type, storage, convert in FORMS:
        if is_type(arrow_type):
            return storage, convert
    raise TypeError(f"SQLite has no form for the type {arrow_type}")


def _uint64(array: Any) -> Converted:
    too_large = pc.greater(array, pa.scalar(INT64_MAX, pa.uint64()))
    return without(array, too_large).cast(pa.int64()), [(too_large, TOO_LARGE)]


def _bool(array: Any) -> Converted:
    # Python's sqlite3 binds an int several times faster than a bool.
    return array.cast(pa.int8()), []


def _float(array: Any) -> Converted:
    array = array.cast(pa.float64())
    return array, [(pc.is_nan(array), NAN)]


FORMS: tuple[tuple[Callable[[pa.DataType], bool], Storage, Convert], ...] = (
    (pt.is_uint64, Storage.INTEGER, _uint64),
    (pt.is_integer, Storage.INTEGER, cast_to(pa.int64())),
    (pt.is_boolean, Storage.INTEGER, _bool),
    (pt.is_floating, Storage.REAL, _float),
    (is_text, Storage.TEXT, utf8),
    (is_bytes, Storage.BLOB, cast_to(pa.binary())),
    (pt.is_decimal, Storage.TEXT, decimal_text),
    (pt.is_timestamp, Storage.TEXT, timestamp_text),
    (pt.is_date, Storage.TEXT, date_text),
    (pt.is_time, Storage.TEXT, time_text),
    (pt.is_null, Storage.BLOB, lambda array: (array, [])),
)
