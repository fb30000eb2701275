"""The types of Arrow that Spark has (`spark_types`), and which values of them can be written exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

# Since 1970, from the first of the year 1 to the last of the year 9999; Spark knows no other unit.
_DAYS = -719_162, 2_932_896
_MICROS = -62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether the values are texts in Arrow too."""
    return bool(pt.is_string(arrow_type) or pt.is_large_string(arrow_type))


def is_bytes(arrow_type: pa.DataType) -> bool:
    """Whether the values are bytes."""
    return bool(pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type))


def is_zoned(arrow_type: pa.DataType) -> bool:
    """Whether the values are moments, not readings of a clock."""
    return bool(pt.is_timestamp(arrow_type)) and arrow_type.tz is not None


def outside_years(array: Any) -> Any:
    """A boolean array, true where the year of a date or a timestamp is outside 1 to 9999."""
    is_date = pt.is_date(array.type)
    ticks, (first, last) = array.cast(pa.int32() if is_date else pa.int64()), _DAYS if is_date else _MICROS
    return pc.or_(pc.less(ticks, pa.scalar(first, ticks.type)), pc.greater(ticks, pa.scalar(last, ticks.type)))


def not_utf8(texts: Any) -> Any:
    """A boolean array, true where a text is not UTF-8; None where all are."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:  # Spark hands over any bytes as a string
        return pa.array([_is_not_utf8(value) for value in texts.cast(pa.large_binary()).to_pylist()], pa.bool_())
    return None


def _is_not_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return True
    return False
