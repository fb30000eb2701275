"""Arrow columns in the form in which message types of `protobuf_types` take their values, and back. Pure."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.values.arrow import is_list
from dbt_reverse_etl.values.encoding import texts

_MICROSECONDS = 10**6
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_form(array: pa.Array) -> pa.Array:
    """A column of a type of `exact`: what `to_pylist` gives of it, the constructor of a message takes. NULL is no value."""
    kind = array.type
    if pt.is_struct(kind):
        fields = [(field.name, to_form(values)) for field, values in zip(kind, array.flatten(), strict=True)]
        return _struct(dict(fields), array)
    if pt.is_map(kind):
        items = {"key": to_form(_within(array, array.keys)), "value": to_form(_within(array, array.items))}
        return _struct({"entries": _lists(array, items)}, array)
    if is_list(kind):
        return _struct({"items": _lists(array, {"value": to_form(_within(array, array.values))})}, array)
    return _scalar_form(array)


def _scalar_form(array: pa.Array) -> pa.Array:
    kind = array.type
    if pt.is_decimal(kind):
        return pa.array(texts(array), pa.large_string())
    if pt.is_timestamp(kind):
        return _instant(array) if kind.tz else _struct(_day(array) | _clock(array), array)
    if pt.is_date(kind):
        return _struct(_day(array), array)
    return _struct(_clock(array), array) if pt.is_time(kind) else array


def _within(array: pa.Array, values: pa.Array) -> pa.Array:
    """Of the values below a list or map those that a slice of it has."""
    start = array.offsets[0].as_py()
    return values.slice(start, array.offsets[-1].as_py() - start)


def _lists(array: pa.Array, fields: dict[str, pa.Array]) -> pa.Array:
    """A list of structs for each list; what NULL hides is hidden by who holds it."""
    values = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    return pa.ListArray.from_arrays(pc.subtract(array.offsets, array.offsets[0]), values)


def _struct(fields: dict[str, pa.Array], where: pa.Array) -> pa.Array:
    """A struct for each value, NULL where that is NULL."""
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=where.is_null())


def _instant(array: pa.Array) -> pa.Array:
    since = array.cast(pa.int64())
    seconds = pc.floor_temporal(since.cast(pa.timestamp("us")), unit="second").cast(pa.int64())
    nanos = pc.multiply(pc.subtract(since, seconds), 1000)
    return _struct({"seconds": pc.divide(seconds, _MICROSECONDS), "nanos": nanos}, array)


def _day(array: pa.Array) -> dict[str, pa.Array]:
    return {"year": pc.year(array), "month": pc.month(array), "day": pc.day(array)}


def _clock(array: pa.Array) -> dict[str, pa.Array]:
    nanos = pc.multiply(pc.add(pc.multiply(pc.millisecond(array), 1000), pc.microsecond(array)), 1000)
    return {"hours": pc.hour(array), "minutes": pc.minute(array), "seconds": pc.second(array), "nanos": nanos}


def from_protobuf(value: Any, kind: pa.DataType) -> Any:
    """The way back: the value of a field as `pa.array` takes it; None: it is not set."""
    if value is None:
        return None
    if pt.is_struct(kind):
        return {field.name: from_protobuf(field_of(value, field.name), field.type) for field in kind}
    if pt.is_map(kind):
        return [(_part(entry, "key", kind.key_type), _part(entry, "value", kind.item_type)) for entry in value.entries]
    if is_list(kind):
        return [_part(item, "value", kind.value_type) for item in value.items]
    return _scalar(value, kind)


def field_of(message: Any, name: str) -> Any:
    """The value of a field; None: it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def _part(message: Any, name: str, kind: pa.DataType) -> Any:
    return from_protobuf(field_of(message, name), kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if pt.is_decimal(kind):
        return Decimal(value)
    if pt.is_timestamp(kind) and kind.tz:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if pt.is_timestamp(kind):
        return datetime.combine(_date(value), _time(value))
    if pt.is_date(kind):
        return _date(value)
    return _time(value) if pt.is_time(kind) else value


def _date(value: Any) -> date:
    return date(value.year, value.month, value.day)


def _time(value: Any) -> time:
    return time(value.hours, value.minutes, value.seconds, value.nanos // 1000)
