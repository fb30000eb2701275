"""Arrow columns as the binary COPY stream of a staging table: column by column, pure, no Python object per value.

| Arrow type | column of the staging table |
|---|---|
| integers | int8 |
| floats | float8; NaN and Infinity stay what they are |
| bool | bool |
| string | text; NUL characters are refused |
| binary | bytea |
| decimal | text, all digits |
| timestamp with zone | timestamptz |
| timestamp without zone | timestamp |
| date | date |
| list, struct, map | text, canonical JSON as of `dbt_reverse_etl.values.encoding` |

The statements cast each to the type of its column.
"""

from __future__ import annotations

import struct
import sys
from array import array as machine_array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.refusals import Converted
from dbt_reverse_etl.sinks.sql.columns import Columns
from dbt_reverse_etl.sinks.sql.values import (
    Form,
    as_it_is,
    cast_to,
    date_days,
    decimal_text,
    texts_without_nul,
    timestamp_micros,
)
from dbt_reverse_etl.values.arrow import is_bytes, is_text

EPOCH_DAYS = 10_957  # Postgres counts from 2000-01-01
EPOCH_MICROS = EPOCH_DAYS * 86_400 * 10**6
NUL = "a NUL character, which Postgres cannot store"
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_BYTES = pa.large_binary()
_EMPTY, _NULL_LENGTH = pa.scalar(b"", _BYTES), pa.scalar(b"\xff\xff\xff\xff", _BYTES)
_WIDTHS = {"int8": "q", "float8": "d", "timestamp": "q", "timestamptz": "q", "date": "i"}
Pieces = tuple[Any, Any]  # length and bytes of each cell, as a COPY stream wants them


def stream_of(columns: Columns, types: Sequence[str]) -> Sequence[bytes | memoryview]:
    """Pieces of the COPY stream: the row's place in the batch, whether it is a delete, the fields in order, of these types."""
    places = pa.array(range(len(columns.deleted)), pa.int32())
    cells = [_fixed(places, "i"), _bools(columns.deleted)]
    cells += [_cells(array, of_type) for array, of_type in zip(columns.fields.values(), types, strict=True)]
    return [HEADER, _rows(cells, columns), TRAILER]


def _rows(cells: Sequence[Pieces], columns: Columns) -> memoryview:
    """All cells of all rows, row by row, in one piece of memory."""
    pieces = [piece for pair in cells for piece in pair]
    joined = pc.binary_join_element_wise(pa.scalar(struct.pack(">h", len(cells)), _BYTES), *pieces, _EMPTY)
    if not columns.is_whole:
        joined = joined.take(pa.array(columns.kept, pa.int64()))
    if not len(joined):
        return memoryview(b"")
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]] if data else memoryview(b"")


def _cells(array: Any, of_type: str) -> Pieces:
    if of_type in _WIDTHS:
        return _fixed(array, _WIDTHS[of_type])
    if of_type == "bool":
        return _bools(array)
    if of_type == "text":
        array = array.cast(pa.large_string())
    return _variable(array.cast(_BYTES))


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


def _bools(array: Any) -> Pieces:
    length = pa.scalar(struct.pack(">i", 1), _BYTES)
    values = pc.if_else(array, pa.scalar(b"\1", _BYTES), pa.scalar(b"\0", _BYTES))
    if array.null_count == 0:
        return length, values
    return pc.if_else(array.is_valid(), length, _NULL_LENGTH), pc.fill_null(values, _EMPTY)


def _timestamp(array: Any) -> Converted:
    micros, refusals = timestamp_micros(array)
    return pc.subtract(micros, EPOCH_MICROS), refusals


def _date(array: Any) -> Converted:
    days, refusals = date_days(array)
    return pc.subtract(days, pa.scalar(EPOCH_DAYS, pa.int32())), refusals


FORMS: tuple[Form, ...] = (
    (pt.is_integer, "int8", cast_to(pa.int64())),
    (pt.is_boolean, "bool", as_it_is),
    (pt.is_floating, "float8", cast_to(pa.float64())),
    (is_text, "text", texts_without_nul(NUL)),
    (is_bytes, "bytea", as_it_is),
    (pt.is_decimal, "text", decimal_text),
    (lambda kind: pt.is_timestamp(kind) and kind.tz is not None, "timestamptz", _timestamp),
    (pt.is_timestamp, "timestamp", _timestamp),
    (pt.is_date, "date", _date),
)
