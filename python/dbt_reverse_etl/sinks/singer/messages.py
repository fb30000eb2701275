"""What a Singer target is told: SCHEMA, RECORD and STATE messages, one JSON object a line.

Source: the Singer specification, https://github.com/singer-io/getting-started/blob/master/docs/SPEC.md.
Values are those of `encoding`; here each Arrow type gets the JSON schema of its encoding:

| Arrow type | JSON schema; fields that are no key may also be `null` |
|---|---|
| integers, floats, bool | `integer`, `number`, `boolean` |
| decimal | `string` with `format: x-singer.decimal`, `precision` and `scale`: a number to who knows the format, all digits as text to others |
| string, null | `string` |
| binary | `string` with `contentEncoding: base64` |
| timestamp with zone | `string` with `format: date-time` |
| date | `string` with `format: date` |
| timestamp without zone, time | `string`: a `date-time` or `time` of RFC 3339 has a zone, and validating targets refuse others |
| list, struct | `array` with `items`, `object` with `properties` |
| map | `object` with `additionalProperties`; keys that are no text: `array` of objects with `key` and `value` |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as pt

from dbt_reverse_etl.values.arrow import is_bytes, is_text, is_zoned

_LINES_AT_ONCE = 1_000


def schema_message(stream: str, fields: pa.Schema, key: Sequence[str]) -> bytes:
    """The SCHEMA message of a stream."""
    properties = {
        field.name: json_schema(field.type) if field.name in key else _or_null(json_schema(field.type))
        for field in fields
    }
    schema = {"type": "object", "properties": properties}
    return _line({"type": "SCHEMA", "stream": stream, "schema": schema, "key_properties": list(key)})


def record_messages(stream: str, records: Sequence[bytes]) -> Iterator[bytes]:
    """RECORD messages around encoded rows, some at once."""
    head = orjson.dumps({"type": "RECORD", "stream": stream})[:-1] + b',"record":'
    between = b"}\n" + head
    for start in range(0, len(records), _LINES_AT_ONCE):
        yield head + between.join(records[start : start + _LINES_AT_ONCE]) + b"}\n"


def state_message(state: dict[str, Any]) -> bytes:
    """The STATE message that a target writes back when everything before it is stored."""
    return _line({"type": "STATE", "value": state})


def says(line: bytes, state: dict[str, Any]) -> bool:
    """Whether a line of a target is exactly this state."""
    try:
        return bool(orjson.loads(line) == state)
    except orjson.JSONDecodeError:
        return False


def json_schema(kind: pa.DataType) -> dict[str, Any]:
    """The JSON schema of the values of a type, without NULL."""
    if pt.is_map(kind):
        value = _or_null(json_schema(kind.item_type))
        if is_text(kind.key_type):
            return {"type": ["object"], "additionalProperties": value}
        entry = {"key": json_schema(kind.key_type), "value": value}
        return {"type": ["array"], "items": {"type": ["object"], "properties": entry}}
    if pt.is_list(kind):
        return {"type": ["array"], "items": _or_null(json_schema(kind.value_type))}
    if pt.is_struct(kind):
        return {"type": ["object"], "properties": {field.name: _or_null(json_schema(field.type)) for field in kind}}
    return _scalar(kind)


def _scalar(kind: pa.DataType) -> dict[str, Any]:
    if pt.is_decimal(kind):
        numbers = {"precision": kind.precision, "scale": kind.scale}
        return {"type": ["string"], "format": "x-singer.decimal", **numbers}
    return next((dict(schema) for is_type, schema in _SCALARS if is_type(kind)), {"type": ["string"]})


_SCALARS = (
    (pt.is_integer, {"type": ["integer"]}),
    (pt.is_floating, {"type": ["number"]}),
    (pt.is_boolean, {"type": ["boolean"]}),
    (is_bytes, {"type": ["string"], "contentEncoding": "base64"}),
    (is_zoned, {"type": ["string"], "format": "date-time"}),
    (pt.is_date, {"type": ["string"], "format": "date"}),
)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"type": [*schema["type"], "null"]}


def _line(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
