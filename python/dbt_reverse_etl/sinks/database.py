"""What the sinks of relational databases share: the words, the names of our tables, and exact values of Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

OURS = "_dbt_reverse_etl_"
FENCES, CLAIMS = f"{OURS}fences", f"{OURS}claims"
OTHER_RUN = "another run holds this sync"
LOST_RECORD = "the destination lost its record of this sync"
NEVER_DELETES = "this mode never deletes"
IGNORED = "the table ignored the row (a trigger?)"
NO_ROW = "no row to update"

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}

YEAR = "a year outside 1 to 9999"
TOO_FINE = "a time finer than a microsecond"
NOT_UTF8 = "text that is not UTF-8"
NULL_KEY = "NULL in a key field"

Refusal = tuple[Any, str]  # boolean Arrow array (true: refused), reason
Converted = tuple[Any, list[Refusal]]  # Arrow array without the refused values, refusals
Convert = Callable[[Any], Converted]


class RolledBack(Exception):
    """The table ended the transaction itself, so nothing of the batch is applied."""


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values, without dictionary or extension."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return plain_type(arrow_type.storage_type)
    return plain_type(arrow_type.value_type) if pt.is_dictionary(arrow_type) else arrow_type


def plain_array(array: Any) -> Any:
    """The values themselves, without dictionary or extension."""
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    return plain_array(array.dictionary_decode()) if pt.is_dictionary(array.type) else array


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether the values are texts in Arrow too."""
    return bool(pt.is_string(arrow_type) or pt.is_large_string(arrow_type) or str(arrow_type) == "string_view")


def is_bytes(arrow_type: pa.DataType) -> bool:
    """Whether the values are bytes."""
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)
    return any(is_kind(arrow_type) for is_kind in kinds) or str(arrow_type) == "binary_view"


def one_array(column: pa.ChunkedArray) -> Any:
    """A column in one piece."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def positions(mask: Any) -> list[int]:
    """Where a boolean array is true."""
    if not pc.any(mask).as_py():
        return []
    indices: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return indices


def without(array: Any, mask: Any) -> Any:
    """The array with NULL where the mask is true, so that what is refused cannot break the conversion of the rest."""
    return pc.if_else(mask, pa.scalar(None, array.type), array) if pc.any(mask).as_py() else array


def utf8(array: Any) -> Converted:
    """Texts; what is not UTF-8 is refused."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # Spark hands over any bytes as a string
        damaged = pa.array([not _is_utf8(value) for value in array.cast(pa.large_binary()).to_pylist()], pa.bool_())
        return without(array, damaged), [(damaged, NOT_UTF8)]
    return array, []


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def decimal_text(array: Any) -> Converted:
    """Decimals as text with all digits, never an exponent."""
    text = array.cast(pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():  # Arrow writes small values as 1E-8
        plain = [value if value is None else format(Decimal(value), "f") for value in text.to_pylist()]
        text = pa.array(plain, pa.string())
    return text, []


def timestamp_micros(array: Any) -> Converted:
    """Timestamps as int64 microseconds since 1970, in UTC where they have a zone."""
    unit, ticks = array.type.unit, array.cast(pa.int64())
    if unit == "ns":  # int64 nanoseconds end in the year 2262: only the precision can be wrong
        return whole_micros(ticks)
    first, last = FIRST_SECOND * PER_SECOND[unit], (LAST_SECOND + 1) * PER_SECOND[unit] - 1
    outside = _outside(ticks, first, last)
    return pc.multiply(without(ticks, outside), 10**6 // PER_SECOND[unit]), [(outside, YEAR)]


def whole_micros(nanos: Any) -> Converted:
    """int64 nanoseconds as microseconds."""
    micros = pc.divide(nanos, 1000)
    return micros, [(pc.not_equal(pc.multiply(micros, 1000), nanos), TOO_FINE)]


def date_days(array: Any) -> Converted:
    """Dates as int32 days since 1970."""
    days = array.cast(pa.date32(), safe=False).cast(pa.int32())
    outside = _outside(days, FIRST_DAY, LAST_DAY)
    return without(days, outside), [(outside, YEAR)]


def time_micros(array: Any) -> Converted:
    """Times of day as int64 microseconds."""
    if array.type == pa.time64("ns"):
        return whole_micros(array.cast(pa.int64()))
    return array.cast(pa.time64("us")).cast(pa.int64()), []


def _outside(ticks: Any, first: int, last: int) -> Any:
    bounds = pa.scalar(first, ticks.type), pa.scalar(last, ticks.type)
    return pc.or_(pc.less(ticks, bounds[0]), pc.greater(ticks, bounds[1]))
