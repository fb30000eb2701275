"""What Arrow's types have in common, and which values of them can be written exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


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
    kinds = (pt.is_string, pt.is_large_string)
    return _is_any(arrow_type, kinds) or str(arrow_type) == "string_view"  # newer than Arrow 15


def is_bytes(arrow_type: pa.DataType) -> bool:
    """Whether the values are bytes."""
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)
    return _is_any(arrow_type, kinds) or str(arrow_type) == "binary_view"


def is_list(arrow_type: pa.DataType) -> bool:
    """Whether the values are lists; a map is none."""
    return _is_any(arrow_type, (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def exact(schema: pa.Schema) -> pa.Schema:
    """In microseconds and UTC, as writers take it. Every field may be null: what Spark infers changes from run to run."""
    return pa.schema([pa.field(field.name, _exact(field.type)) for field in schema])


def _exact(kind: pa.DataType) -> pa.DataType:
    kind = plain_type(kind)
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_time(kind):
        return pa.time64("us")
    if pt.is_struct(kind):
        return pa.struct(list(exact(pa.schema(list(kind)))))
    if pt.is_map(kind):
        return pa.map_(_exact(kind.key_type), _exact(kind.item_type))
    return pa.list_(_exact(kind.value_type)) if is_list(kind) else kind


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


def _is_any(arrow_type: pa.DataType, kinds: Any) -> bool:
    return any(is_kind(arrow_type) for is_kind in kinds)
