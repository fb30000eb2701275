"""Arrow types and values as Avro has them. Pure.

| Arrow type | Avro type |
|---|---|
| integers to 32 bits, others | `int`, `long` |
| float32, float64 | `float`, `double` |
| bool, string, binary | `boolean`, `string`, `bytes` |
| decimal | `bytes` with logical type `decimal` |
| date | `int` with `date` |
| timestamp with a zone, without | `long` with `timestamp-micros`, `local-timestamp-micros` |
| list, struct | `array`, `record` |
| map | `map` when its keys are strings, else an `array` of records of `key` and `value` |

Every field may be null and is so by default, so that a field can be added. https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from dbt_reverse_etl.values.arrow import is_bytes, is_text

NAMESPACE = "dbt_reverse_etl"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pt.is_boolean, "boolean"),
    (pt.is_float32, "float"),
    (pt.is_float64, "double"),
    (is_text, "string"),
    (is_bytes, "bytes"),
)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema in which every field may be null: what Spark infers changes from run to run."""
    return pa.schema([pa.field(field.name, _nullable_type(field.type)) for field in schema])


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct(list(nullable(pa.schema(list(kind)))))
    if pt.is_map(kind):
        return pa.map_(_nullable_type(kind.key_type), _nullable_type(kind.item_type))
    return pa.list_(_nullable_type(kind.value_type)) if pt.is_list(kind) else kind


def unsupported(schema: pa.Schema) -> list[str]:
    """Names of the fields that, or a field within, have no name or no form in Avro."""
    found = []
    for field in schema:
        try:
            avro_schema(pa.schema([field]), "Value")
        except TypeError:
            found.append(field.name)
    return found


def avro_schema(schema: pa.Schema, name: str, alike: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The schema of a record. Raises TypeError for what is `unsupported`. `alike`: a field of type struct -> the field before it whose
    record is its record, too; Avro defines each record once."""
    records = {field: f"{_namespace((other,))}.{other}" for field, other in (alike or {}).items()}
    fields = [_written(one, records[one.name]) if one.name in records else _field(one, ()) for one in schema]
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": fields}


_Path = tuple[str, ...]  # names of fields, from the outermost record inwards


def _field(field: pa.Field, within: _Path) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise TypeError(f"{field.name!r} is no name in Avro")
    return _written(field, _type(field.type, field.name, (*within, field.name)))


def _written(field: pa.Field, kind: Any) -> dict[str, Any]:
    if not field.nullable:
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _type(kind: pa.DataType, name: str, path: _Path) -> Any:
    if pt.is_struct(kind):
        return _record(kind, name, path)
    if pt.is_map(kind):
        return _map(kind, name, path)
    if pt.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, f"{name}_item", path)]}
    return _scalar(kind)


def _map(kind: pa.DataType, name: str, path: _Path) -> Any:
    if is_text(kind.key_type):
        return {"type": "map", "values": ["null", _type(kind.item_type, f"{name}_item", path)]}
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return {"type": "array", "items": _record(entry, f"{name}_entry", path)}


def _record(kind: pa.DataType, name: str, path: _Path) -> dict[str, Any]:
    """Its full name follows from its path alone, so that no other field changes it; a field has at most one record."""
    fields = [_field(field, path) for field in kind]
    return {"type": "record", "name": name, "namespace": _namespace(path), "fields": fields}


def _namespace(path: _Path) -> str:
    # No name has a dot, so that no two paths have one namespace.
    return ".".join((NAMESPACE, *path))


def _scalar(kind: pa.DataType) -> Any:
    for is_kind, name in _PLAIN:
        if is_kind(kind):
            return name
    if pt.is_integer(kind):
        return "long" if pt.is_int64(kind) else "int"
    if pt.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pt.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pt.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    raise TypeError(f"type {kind} has no form in Avro")


def to_avro(value: Any, kind: pa.DataType) -> Any:
    """A value of `to_pylist` as writers of Avro take it."""
    if value is None or not pt.is_nested(kind):
        return value
    if pt.is_struct(kind):
        return {field.name: to_avro(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        pairs = [(key, to_avro(item, kind.item_type)) for key, item in value]
        return dict(pairs) if is_text(kind.key_type) else [{"key": key, "value": item} for key, item in pairs]
    return [to_avro(item, kind.value_type) for item in value]


def from_avro(value: Any, kind: pa.DataType) -> Any:
    """The way back: as `pa.array` takes it."""
    if value is None or not pt.is_nested(kind):
        return value
    if pt.is_struct(kind):
        return {field.name: from_avro(value.get(field.name), field.type) for field in kind}
    if pt.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else [(one["key"], one["value"]) for one in value]
        return [(key, from_avro(item, kind.item_type)) for key, item in pairs]
    return [from_avro(item, kind.value_type) for item in value]
