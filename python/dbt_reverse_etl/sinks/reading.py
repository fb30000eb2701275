"""The way back from a destination: values as Arrow columns of the types that were delivered. Pure.

From texts, as databases give them, or from parsed objects, as streams do.

| Arrow type | text |
|---|---|
| numbers, decimals | digits |
| bool | `true`, `false`, `1`, `0` |
| binary | hexadecimal |
| timestamp | `2024-01-01 00:00:00.000000`, in UTC; a `+00` behind it is dropped |
| date | `2024-01-01` |
| list, struct, map | JSON, as of `dbt_reverse_etl.values.encoding`; of an array, a JSON list of the texts of its elements |

A value of another form was not written by us: it is NULL here, and its row is marked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.values.arrow import is_bytes, is_text

UNREADABLE = "_unreadable"
# What a column of a wider type shows behind the value: `2024-01-01 00:00:00` of a date, `5.00` of a whole number.
_MIDNIGHT, _POINT = r"[ T]00:00:00(\.0+)?$", r"\.0+$"
# Of a decimal with more of them than its value needs: Arrow counts them as digits, and takes at most 38 or 76.
_ZEROS = r"([0-9])\.0+$|(\.[0-9]*[1-9])0+$"
# Arrow and `Decimal` also read 0x10, 05 and 1_0, which are other keys in a column of texts. DuckDB writes .5 for 0.5.
_WHOLE, _DECIMAL = r"^-?(0|[1-9][0-9]*)(\.0+)?$", r"^-?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
# What Arrow, `Decimal`, `fromisoformat`, `fromhex`, JSON and a missing or surplus part raise.
_WRONG = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, NotImplementedError)


def rows_of(texts: Mapping[str, pa.Array], schema: pa.Schema, arrays: Collection[str] = ()) -> pa.Table:
    """The fields of a schema, from the texts or bytes of the values of each, and the boolean column `_unreadable`; `arrays` are fields
    of the type list that come from an array."""
    columns = [
        _column(texts[field.name], field.type, _of_arrays if field.name in arrays else _parsed) for field in schema
    ]
    return _marked(columns, schema, columns[0][1])


Parse = Callable[[Any, pa.DataType], Any]  # a value of a type, as `pa.array` takes it


def rows_of_objects(
    objects: Sequence[Mapping[str, Any]], unreadable: Sequence[bool], schema: pa.Schema, parse: Parse
) -> pa.Table:
    """The fields of a schema, from one parsed object for each row, and the boolean column `_unreadable`, in which rows may be marked
    already; `parse` is `from_json`, or that of another format."""

    def parsed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([parse(value, kind) for value in values], kind)

    columns = [_column([row.get(field.name) for row in objects], field.type, parsed) for field in schema]
    return _marked(columns, schema, pa.array(unreadable, pa.bool_()))


def _marked(columns: Sequence[tuple[pa.Array, pa.Array]], schema: pa.Schema, unreadable: pa.Array) -> pa.Table:
    for _, wrong in columns:
        unreadable = pc.or_(unreadable, wrong)
    return pa.Table.from_arrays([*(column for column, _ in columns), unreadable], [*schema.names, UNREADABLE])


_ParseAll = Callable[[Any, pa.DataType], pa.Array]


def _column(values: Any, kind: pa.DataType, parse: _ParseAll) -> tuple[pa.Array, pa.Array]:
    """The values, NULL where one is none of the type, and where that is."""
    try:
        return parse(values, kind), pa.repeat(pa.scalar(False), len(values))
    except _WRONG:
        single = [_one(values[row : row + 1], kind, parse) for row in range(len(values))]
    column = pa.concat_arrays([pa.nulls(0, kind), *(pa.nulls(1, kind) if one is None else one for one in single)])
    return column, pa.array([one is None for one in single], pa.bool_())


def _one(value: Any, kind: pa.DataType, parse: _ParseAll) -> pa.Array | None:
    try:
        return parse(value, kind)
    except _WRONG:
        return None


def _of_arrays(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists, from JSON lists of the texts of their elements. Raises as `_parsed`."""
    plain = texts.cast(pa.string()).to_pylist()
    lists = [None if text is None else _list(json.loads(text)) for text in plain]
    array = pa.array(lists, pa.list_(pa.string()))
    elements = _parsed(array.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, elements, mask=array.is_null()).cast(kind)


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises one of `_WRONG` where a text is no value of the type."""
    texts = texts.cast(pa.string())
    form = _WHOLE if pt.is_integer(kind) else _DECIMAL if pt.is_decimal(kind) else None
    if form and not pc.all(pc.match_substring_regex(texts, form), min_count=0).as_py():
        raise ValueError("no number as databases write it")
    if pt.is_decimal(kind):
        texts = pc.replace_substring_regex(texts, pattern=_ZEROS, replacement=r"\1\2")
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
    return (lambda text: from_json(json.loads(text, parse_float=Decimal), kind)) if pt.is_nested(kind) else None


def from_json(value: Any, kind: pa.DataType) -> Any:
    """What `encoding` wrote, parsed, as `pa.array` takes it. Raises one of `_WRONG` where it wrote something else."""
    if value is None:
        return None
    if pt.is_struct(kind):
        if not isinstance(value, dict) or value.keys() != {field.name for field in kind}:
            raise ValueError("no object of these fields")
        return {field.name: from_json(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        return [(from_json(key, kind.key_type), from_json(item, kind.item_type)) for key, item in _pairs(value, kind)]
    if pt.is_list(kind):
        return [from_json(item, kind.value_type) for item in _list(value)]
    return _scalar(value, kind)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _pairs(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    if is_text(kind.key_type):
        return list(value.items())
    if any(one.keys() != {"key", "value"} for one in _list(value)):
        raise ValueError("no pairs of a map")
    return [(one["key"], one["value"]) for one in value]


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """`pa.array` itself would cut 1.9 to an integer."""
    is_bool = isinstance(value, bool)  # which Python counts as an integer
    if pt.is_boolean(kind):
        return _checked(value, is_bool)
    if pt.is_integer(kind):
        is_whole = isinstance(value, int) or (isinstance(value, Decimal) and value % 1 == 0)
        return int(_checked(value, is_whole and not is_bool))
    if pt.is_floating(kind):
        return float(_checked(value, isinstance(value, int | float | Decimal) and not is_bool))
    return _of_json_text(_checked(value, isinstance(value, str)), kind)


def _of_json_text(text: str, kind: pa.DataType) -> Any:
    """Of the one form in which `encoding` writes it: Python's own readers take others, and cut what is finer than a microsecond."""
    if is_bytes(kind):
        return base64.b64decode(text, validate=True)
    if pt.is_decimal(kind):
        number = Decimal(text)
        return _checked(number, f"{number:f}" == text)
    if pt.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        at = datetime.fromisoformat(text.removesuffix(zone))
        return _checked(at, at.isoformat(timespec="microseconds") + zone == text)
    if pt.is_date(kind):
        day = date.fromisoformat(text)
        return _checked(day, day.isoformat() == text)
    return text


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise ValueError("a value in another form")
    return value
