"""Arrow columns as the binary COPY stream of a staging table: column by column, pure, no Python object per value."""

from __future__ import annotations

import struct
import sys
from array import array as machine_array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.refusals import Converted
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.values import date_days, pieces_of, timestamp_micros

EPOCH_DAYS = 10_957  # Postgres counts from 2000-01-01
EPOCH_MICROS = EPOCH_DAYS * 86_400 * 10**6
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

PIECE = 2**24  # bytes

_BYTES = pa.large_binary()
_EMPTY, _NULL_LENGTH = pa.scalar(b"", _BYTES), pa.scalar(b"\xff\xff\xff\xff", _BYTES)
_WIDTHS = {"bool": "b", "int8": "q", "float8": "d", "timestamp": "q", "timestamptz": "q", "date": "i"}
Pieces = tuple[Any, Any]  # length and bytes of each cell, as a COPY stream wants them


def stream_of(changes: Changes, types: Sequence[str]) -> Sequence[bytes | memoryview]:
    """Pieces of the COPY stream: the row's place in the batch, whether it is a delete, the fields in order, of these types."""
    cells = [_fixed(changes.places, "i"), _fixed(changes.deleted.cast(pa.int8()), "b")]
    cells += [_cells(array, of_type) for array, of_type in zip(changes.fields.values(), types, strict=True)]
    pieces = [piece for pair in cells for piece in pair]
    rows = pc.binary_join_element_wise(pa.scalar(struct.pack(">h", len(cells)), _BYTES), *pieces, _EMPTY)
    return [HEADER, *pieces_of(changes.applied(rows), PIECE), TRAILER]


def _cells(array: Any, of_type: str) -> Pieces:
    if of_type in _WIDTHS:
        return _fixed(array, _WIDTHS[of_type])
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


def timestamp(array: Any) -> Converted:
    """Microseconds since 2000."""
    micros, refusals = timestamp_micros(array)
    return pc.subtract(micros, EPOCH_MICROS), refusals


def date(array: Any) -> Converted:
    """Days since 2000."""
    days, refusals = date_days(array)
    return pc.subtract(days, pa.scalar(EPOCH_DAYS, pa.int32())), refusals
