"""Arrow columns as the binary COPY stream of a staging table: column by column, pure, no Python object per value.

| Arrow type | column of the staging table |
|---|---|
| integers but uint64 | int8 |
| floats | float8; NaN and Infinity stay what they are |
| bool | bool |
| string | text; NUL characters are refused |
| binary | bytea |
| decimal, uint64 | text, all digits |
| timestamp with zone | timestamptz |
| timestamp without zone | timestamp |
| date, time | date, time |
| list, struct, map | text, canonical JSON as of `dbt_reverse_etl.values.encoding` |
| null | text |

The INSERT casts each to the type of its column. Years outside 1 to 9999 and parts finer than a microsecond are refused.
"""

from __future__ import annotations

import struct
import sys
from array import array as machine_array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION
from dbt_reverse_etl.sinks.sql.database import (
    Convert,
    Converted,
    cast_to,
    date_days,
    decimal_text,
    null_keys,
    one_array,
    positions,
    reasons_of,
    time_micros,
    timestamp_micros,
    utf8,
    without,
)
from dbt_reverse_etl.values.arrow import is_bytes, is_list, is_text, plain_array, plain_type
from dbt_reverse_etl.values.encoding import encode_values, unsupported

EPOCH_DAYS = 10_957  # Postgres counts from 2000-01-01
EPOCH_MICROS = EPOCH_DAYS * 86_400 * 10**6
NUL = "a NUL character, which Postgres cannot store"
NO_LENGTHS: Mapping[str, int] = MappingProxyType({})
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_BYTES = pa.large_binary()
_EMPTY, _NULL_LENGTH = pa.scalar(b"", _BYTES), pa.scalar(b"\xff\xff\xff\xff", _BYTES)
Pieces = tuple[Any, Any]  # length and bytes of each cell, as a COPY stream wants them


@dataclass(frozen=True)
class Staged:
    """One batch, ready to be copied.

    Attributes:
        stream: pieces of the COPY stream: the row's place in the batch, whether it is a delete, the fields in order.
        writes, deletes: how many rows of each kind are in it.
        rows: rows of the batch; the places in the stream are below it.
        refused: index in the batch -> reason, for rows that are not in the stream.
    """

    stream: Sequence[bytes | memoryview]
    writes: int
    deletes: int
    rows: int
    refused: dict[int, str]


def staged(
    batch: pa.Table,
    fields: Sequence[str],
    key: Sequence[str],
    *,
    deletes: str | None = None,
    lengths: Mapping[str, int] = NO_LENGTHS,
) -> Staged:
    """Convert one batch; rows with a value that Postgres cannot hold exactly are refused, and all deletes if `deletes` says why.

    `lengths`: field -> the most characters of its texts, or of the texts in its lists.
    """
    deleted = pc.equal(one_array(batch.column(OPERATION)), "delete")
    cells: list[Pieces] = [_fixed(pa.array(range(batch.num_rows), pa.int32()), "i"), _bool_cells(deleted)]
    refused: dict[int, str] = dict.fromkeys(positions(deleted), deletes) if deletes else {}
    for name in fields:
        array = plain_array(one_array(batch.column(name)))
        pieces, reasons = _cells(name, array)
        cells.append(pieces)
        refused |= reasons
        if name in lengths:
            too_long = _too_long(name, array, lengths[name])
            # The table has no such key, so there is nothing to delete.
            refused |= {row: reason for row, reason in too_long.items() if not deleted[row].as_py()}
    refused |= null_keys(batch, key)
    removed = sum(1 for index in positions(deleted) if index not in refused)
    stream: list[bytes | memoryview] = [HEADER, _rows(cells, batch.num_rows, refused), TRAILER]
    return Staged(stream, batch.num_rows - len(refused) - removed, removed, batch.num_rows, refused)


def _too_long(name: str, array: Any, most: int) -> dict[int, str]:
    """Row -> reason of each row with a text of more characters."""
    reason = f"field {name}: longer than the {most} characters of its column"
    if is_list(array.type):
        texts, rows = plain_array(pc.list_flatten(array)), pc.list_parent_indices(array)
        return dict.fromkeys(rows.filter(_longer(texts, most)).to_pylist(), reason)
    return dict.fromkeys(positions(_longer(array, most)), reason)


def _longer(texts: Any, most: int) -> Any:
    return pc.fill_null(pc.greater(pc.utf8_length(texts.cast(pa.large_string())), most), False)


def staging_type(arrow_type: pa.DataType) -> str:
    """The type in pg_catalog of the staging column for a type."""
    plain = plain_type(arrow_type)
    if pt.is_nested(plain):
        return "text"
    if pt.is_timestamp(plain):
        return "timestamptz" if plain.tz else "timestamp"
    return _form(plain)[0]


def is_supported(arrow_type: pa.DataType) -> bool:
    """Whether a type has an exact form."""
    plain = plain_type(arrow_type)
    if pt.is_nested(plain):
        return not unsupported(pa.schema([("", plain)]))
    return any(is_type(plain) for is_type, _, _ in FORMS)


def _rows(cells: Sequence[Pieces], rows: int, refused: dict[int, str]) -> memoryview:
    """All cells of all rows, row by row, in one piece of memory."""
    pieces = [piece for pair in cells for piece in pair]
    joined = pc.binary_join_element_wise(pa.scalar(struct.pack(">h", len(cells)), _BYTES), *pieces, _EMPTY)
    if refused:
        joined = joined.take(pa.array([index for index in range(rows) if index not in refused], pa.int64()))
    if not len(joined):
        return memoryview(b"")
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]] if data else memoryview(b"")


def _cells(name: str, array: Any) -> tuple[Pieces, dict[int, str]]:
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = [None if row == b"null" else row for row in encoded.rows]
        return _variable(pa.array(texts, _BYTES)), encoded.rejected
    _, convert, cells = _form(array.type)
    converted, refusals = convert(array)
    return cells(converted), reasons_of(name, refusals)


def _form(arrow_type: pa.DataType) -> tuple[str, Convert, Callable[[Any], Pieces]]:
    for is_type, (name, cells), convert in FORMS:
        if is_type(arrow_type):
            return name, convert, cells
    raise TypeError(f"Postgres has no form for the type {arrow_type}")


def _fixed(array: Any, code: str) -> Pieces:
    """Numbers of one width; `code` as in the module array."""
    numbers = machine_array(code)
    width, data = numbers.itemsize, array.buffers()[1]
    if data is not None:
        numbers.frombytes(memoryview(data)[array.offset * width : (array.offset + len(array)) * width])
    if sys.byteorder == "little":
        numbers.byteswap()
    raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(array), [None, pa.py_buffer(numbers)])
    values, length = raw.cast(pa.binary()).cast(_BYTES), pa.scalar(struct.pack(">i", width), _BYTES)
    if array.null_count == 0:
        return length, values
    valid = array.is_valid()
    return pc.if_else(valid, length, _NULL_LENGTH), pc.if_else(valid, values, _EMPTY)


def _variable(array: Any) -> Pieces:
    """Bytes of any length."""
    lengths = pc.fill_null(pc.binary_length(array), -1).cast(pa.int32())
    return _fixed(lengths, "i")[1], pc.fill_null(array, _EMPTY) if array.null_count else array


def _numbers(code: str) -> Callable[[Any], Pieces]:
    return lambda array: _fixed(array, code)


def _bool_cells(array: Any) -> Pieces:
    length = pa.scalar(struct.pack(">i", 1), _BYTES)
    values = pc.if_else(array, pa.scalar(b"\1", _BYTES), pa.scalar(b"\0", _BYTES))
    if array.null_count == 0:
        return length, values
    return pc.if_else(array.is_valid(), length, _NULL_LENGTH), pc.fill_null(values, _EMPTY)


def _text_cells(array: Any) -> Pieces:
    return _variable(array.cast(pa.large_string()).cast(_BYTES))


def _bytes_cells(array: Any) -> Pieces:
    return _variable(
        array.cast(pa.binary()).cast(_BYTES) if pt.is_fixed_size_binary(array.type) else array.cast(_BYTES)
    )


def _as_it_is(array: Any) -> Converted:
    return array, []


def _text(array: Any) -> Converted:
    array, refusals = utf8(array)
    has_nul = pc.match_substring(array, "\0")
    return without(array, has_nul), [*refusals, (has_nul, NUL)]


def _timestamp(array: Any) -> Converted:
    micros, refusals = timestamp_micros(array)
    return pc.subtract(micros, EPOCH_MICROS), refusals


def _date(array: Any) -> Converted:
    days, refusals = date_days(array)
    return pc.subtract(days, pa.scalar(EPOCH_DAYS, pa.int32())), refusals


_INT8, _FLOAT8 = ("int8", _numbers("q")), ("float8", _numbers("d"))
_TEXT = ("text", _text_cells)

FORMS: tuple[tuple[Callable[[pa.DataType], bool], tuple[str, Callable[[Any], Pieces]], Convert], ...] = (
    (pt.is_uint64, _TEXT, cast_to(pa.string())),
    (pt.is_integer, _INT8, cast_to(pa.int64())),
    (pt.is_boolean, ("bool", _bool_cells), _as_it_is),
    (pt.is_floating, _FLOAT8, cast_to(pa.float64())),
    (is_text, _TEXT, _text),
    (is_bytes, ("bytea", _bytes_cells), _as_it_is),
    (pt.is_decimal, _TEXT, decimal_text),
    (pt.is_timestamp, ("timestamp", _numbers("q")), _timestamp),
    (pt.is_date, ("date", _numbers("i")), _date),
    (pt.is_time, ("time", _numbers("q")), time_micros),
    (pt.is_null, _TEXT, cast_to(pa.string())),
)
