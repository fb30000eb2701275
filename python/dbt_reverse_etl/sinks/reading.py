"""The way back from a destination: values as Arrow columns of the types that were delivered. Pure.

From texts, as databases give them, or from parsed objects, as streams do.

| Arrow type | text |
|---|---|
| numbers, decimals | digits |
| bool | `true`, `false`, `1`, `0` |
| binary | hexadecimal |
| timestamp | `2024-01-01 00:00:00.000000`, in UTC; a `+00` behind it is dropped |
| date, time | `2024-01-01`, `09:30:00.000000` |
| list, struct, map | JSON, as of `dbt_reverse_etl.values.encoding` |

A value of another form was not written by us: it is NULL here, and its row is marked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.values.arrow import is_bytes, is_list, plain_type

UNREADABLE = "_unreadable"
# What a column of a wider type shows behind the value: `2024-01-01 00:00:00` of a date, `5.00` of a whole number.
_MIDNIGHT, _POINT = r"[ T]00:00:00(\.0+)?$", r"\.0+$"
# What Arrow, `Decimal`, `fromisoformat`, `fromhex`, JSON and a missing or surplus part raise.
_WRONG = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    ValueError,
    TypeError,
    DecimalException,
    AttributeError,
    OverflowError,
)


def rows_of(texts: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """The fields of a schema, and the boolean column `_unreadable`.

    Args:
        texts: for each field the texts of its values, or NULL; text or its bytes.
    """
    columns, unreadable = [], pa.array([False] * len(texts[schema.names[0]]), pa.bool_())
    for field in schema:
        column, wrong = _column(texts[field.name], plain_type(field.type))
        columns.append(column)
        unreadable = unreadable if wrong is None else pc.or_(unreadable, wrong)
    return pa.Table.from_arrays([*columns, unreadable], [*schema.names, UNREADABLE])


Parse = Callable[[Any, pa.DataType], Any]  # a value of a type, as `pa.array` takes it


def rows_of_objects(
    objects: Sequence[Mapping[str, Any]], unreadable: Sequence[bool], schema: pa.Schema, parse: Parse
) -> pa.Table:
    """The fields of a schema, and the boolean column `_unreadable`.

    Args:
        objects: parsed objects, one for each row.
        unreadable: rows of which it is known that they were not written by us.
        parse: `from_json`, or that of another format.
    """
    columns, marked = [], pa.array(unreadable, pa.bool_())
    for field in schema:
        values, kind = [row.get(field.name) for row in objects], plain_type(field.type)
        try:
            columns.append(_of_values(values, kind, parse))
        except _WRONG:
            column = pa.concat_arrays([_one_or_none(value, kind, parse) for value in values])
            marked = pc.or_(marked, pc.and_(column.is_null(), pa.array([value is not None for value in values])))
            columns.append(column)
    return pa.Table.from_arrays([*columns, marked], [*schema.names, UNREADABLE])


def _of_values(values: Sequence[Any], kind: pa.DataType, parse: Parse) -> pa.Array:
    return pa.array([parse(value, kind) for value in values], kind)


def _one_or_none(value: Any, kind: pa.DataType, parse: Parse) -> pa.Array:
    try:
        return _of_values([value], kind, parse)
    except _WRONG:
        return pa.nulls(1, kind)


def _column(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """The values, and where a text is no value of the type; None: nowhere."""
    try:
        return _parsed(texts.cast(pa.string()), kind), None
    except _WRONG:
        single = [_value_or_none(texts.slice(row, 1), kind) for row in range(len(texts))]
        column = pa.concat_arrays(single) if single else pa.array([], kind)
        return column, pc.and_(column.is_null(), texts.is_valid())


def _value_or_none(text: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _parsed(text.cast(pa.string()), kind)
    except _WRONG:
        return pa.nulls(1, kind)


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises one of `_WRONG` where a text is no value of the type."""
    single = _of_one(kind)
    if single:
        return pa.array([text if text is None else single(text) for text in texts.to_pylist()], kind)
    if pt.is_timestamp(kind):
        plain = pc.replace_substring_regex(texts, pattern=r"(Z|\+00(:00)?)$", replacement="")
        instants = plain.cast(pa.timestamp("us"))
        return instants.cast(pa.timestamp("us", "UTC")).cast(kind) if kind.tz else instants.cast(kind)
    try:
        return texts.cast(kind)
    except _WRONG:
        trailing = _MIDNIGHT if pt.is_date(kind) else _POINT if pt.is_integer(kind) or pt.is_boolean(kind) else None
        if trailing is None:
            raise
    return pc.replace_substring_regex(texts, pattern=trailing, replacement="").cast(kind)


def _of_one(kind: pa.DataType) -> Callable[[str], Any] | None:
    """Parses one text, where Arrow cannot cast all at once."""
    if is_bytes(kind):
        return bytes.fromhex
    if pt.is_decimal(kind):
        return Decimal
    if pt.is_time(kind):
        return time.fromisoformat
    return (lambda text: from_json(_loads(text), kind)) if pt.is_nested(kind) else None


def _loads(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def from_json(value: Any, kind: pa.DataType) -> Any:
    """What `encoding` wrote, parsed, as `pa.array` takes it."""
    if value is None:
        return None
    if pt.is_struct(kind):
        return {field.name: from_json(value.get(field.name), field.type) for field in kind}
    if pt.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else [(one["key"], one["value"]) for one in value]
        return [(from_json(key, kind.key_type), from_json(item, kind.item_type)) for key, item in pairs]
    if is_list(kind):
        return [from_json(item, kind.value_type) for item in value]
    return _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if is_bytes(kind):
        return bytes.fromhex(value[2:]) if value.startswith("\\x") else base64.b64decode(value, validate=True)
    if pt.is_decimal(kind):
        return Decimal(value)
    if pt.is_timestamp(kind):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    if pt.is_date(kind):
        return date.fromisoformat(value)
    if pt.is_time(kind):
        return time.fromisoformat(value)
    return float(value) if pt.is_floating(kind) else value
