"""One exact JSON encoding of Arrow values, for every sink that writes JSON: docs/json-encoding.md.

Everything is computed column by column in Arrow: no Python object per row.
"""

from __future__ import annotations

from binascii import b2a_base64
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from dbt_reverse_etl.values.arrow import is_bytes, is_text, not_utf8, outside_years
from dbt_reverse_etl.values.json_text import (
    NULL,
    TEXT,
    data_of,
    escaped,
    joined,
    lists_of,
    objects_of,
    quoted_text,
    replaced,
    rewritten,
)


def _written(given: object) -> object:
    if given is None:  # an unquoted null, or a value that was forgotten
        raise PydanticCustomError("nan", "found nothing; expected 'reject' or 'null'; next: put null into quotes")
    return given


Nan = Annotated[Literal["reject", "null"], BeforeValidator(_written)]

NOT_FINITE = "NaN or Infinity has no JSON form"
NOT_A_YEAR = "a year outside 0001 to 9999 has no RFC 3339 form"
NOT_UTF8 = "text that is not UTF-8"


@dataclass(frozen=True)
class Encoded:
    """Encoded values, one for each row.

    Attributes:
        rows: JSON as bytes; None for a rejected row.
        rejected: row index -> reason with the field's name, never with a value.
    """

    rows: list[bytes | None]
    rejected: dict[int, str]


def encode_rows(
    rows: pa.Table,
    *,
    nan: Nan = "reject",
    nan_is_null: Collection[str] = (),
    constants: Mapping[str, Any] | None = None,
) -> Encoded:
    """Encode each row as one JSON object; `constants` are added to each, after its fields.

    Args:
        nan_is_null: fields for which `nan` is `null`.

    Raises:
        TypeError: for a type that no model has, or a constant that is no JSON value.
    """
    encoder = _Encoder(nan)
    return encoder.result(encoder.rows(rows, constants or {}, nan_is_null))


def encode_lines(rows: pa.Table, *, nan: Nan = "reject") -> tuple[bytes, dict[int, str]]:
    """Encode rows as JSON Lines, with a line feed after each row. Rejected rows are left out, and returned as `encode_rows` does."""
    encoder = _Encoder(nan)
    lines = encoder.rows(rows, {}, end="}\n")
    return encoder.accepted(lines)


def encode_values(values: pa.Array | pa.ChunkedArray, *, name: str = "value", nan: Nan = "reject") -> Encoded:
    """Encode each value of one column as JSON; an SQL NULL is `null`. `name` stands in the reasons."""
    encoder = _Encoder(nan)
    return encoder.result(encoder.json(_one_array(values), name, _same_row))


def texts(values: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Each scalar as it stands in JSON, without quotes and escapes; None for NULL and for what has no exact form."""
    text, _quoted = _Encoder("null").scalar(_one_array(values), "", _same_row)
    return text.to_pylist()  # type: ignore[no-any-return]


def decimal_texts(array: pa.Array) -> pa.Array:
    """Each decimal with all digits and never an exponent: Arrow writes small ones as 1E-8."""
    text = array.cast(TEXT)
    return rewritten(text, pc.match_substring(text, "E"), lambda value: format(Decimal(value), "f"), into=text)


_Rows = Callable[[int], int]  # position in a (nested) column -> row of the table


def _same_row(position: int) -> int:
    return position


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class _Encoder:
    """Turns columns into columns of JSON text and collects the rows that have no exact form."""

    def __init__(self, nan: Nan) -> None:
        self._nan = nan
        self._rejected: dict[int, str] = {}

    def rows(
        self, rows: pa.Table, constants: Mapping[str, Any], nan_is_null: Collection[str] = (), end: str = "}"
    ) -> pa.Array:
        """An object for each row."""
        lenient = _Encoder("null")
        lenient._rejected = self._rejected
        fields = [
            (name, *(lenient if name in nan_is_null else self).unquoted(_one_array(column), name, _same_row))
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        fixed = [(name, orjson.dumps(value).decode()) for name, value in constants.items()]
        return objects_of(fields, fixed, rows.num_rows, end)

    def accepted(self, lines: pa.Array) -> tuple[bytes, dict[int, str]]:
        """The bytes of those that are not rejected."""
        rejected = dict(sorted(self._rejected.items()))
        if rejected:
            numbers = pa.array(range(len(lines)), pa.int64())
            lines = lines.filter(pc.invert(pc.is_in(numbers, pa.array(list(rejected), pa.int64()))))
        return data_of(lines), rejected

    def result(self, json: pa.Array) -> Encoded:
        rows = json.cast(pa.large_binary()).to_pylist()
        for row in self._rejected:
            rows[row] = None
        return Encoded(rows, dict(sorted(self._rejected.items())))

    def json(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        """JSON text for each value, never null."""
        text, quoted = self.unquoted(array, where, rows)
        return quoted_text(text) if quoted else text

    def unquoted(self, array: pa.Array, where: str, rows: _Rows) -> tuple[pa.Array, bool]:
        """JSON text for each value, never null, and whether it still needs its quotes: who joins it adds them at no cost."""
        kind = array.type
        if pa.types.is_map(kind):
            text = self._map(array, where, rows)
        elif pa.types.is_list(kind):
            text = self._list(array, where, rows)
        elif pa.types.is_struct(kind):
            text = self._struct(array, where, rows)
        else:
            return self._scalar_json(array, where, rows)
        return pc.if_else(array.is_null(), NULL, text) if array.null_count else text, False

    def _scalar_json(self, array: pa.Array, where: str, rows: _Rows) -> tuple[pa.Array, bool]:
        text, quoted = self.scalar(array, where, rows)
        if is_text(array.type):
            text = escaped(text)
        if not text.null_count:
            return text, quoted
        return pc.fill_null(quoted_text(text) if quoted else text, NULL), False

    def scalar(self, array: pa.Array, where: str, rows: _Rows) -> tuple[pa.Array, bool]:
        """Text of each scalar (null stays null), and whether JSON puts it in quotes."""
        kind = array.type
        if pa.types.is_floating(kind):
            return self._float(array, where, rows), False
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return array.cast(TEXT), False
        for is_type, write in _QUOTED:
            if is_type(kind):
                return write(self, array, where, rows), True
        raise TypeError(f"field {where}: type {kind} has no JSON encoding")

    def _float(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        array = self._without(array, pc.invert(pc.is_finite(array)), where, NOT_FINITE, rows)
        text = array.cast(TEXT)
        whole = pc.invert(pc.match_substring(text, "."))
        if whole.true_count:
            whole = pc.and_(whole, pc.invert(pc.match_substring(text, "e")))
        return joined(text, pc.if_else(whole, pa.scalar(".0", TEXT), pa.scalar("", TEXT)))

    def _string(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        text = array.cast(TEXT)
        damaged = not_utf8(text)
        return text if damaged is None else self._without(text, damaged, where, NOT_UTF8, rows)

    def _decimal(self, array: pa.Array, _where: str, _rows: _Rows) -> pa.Array:
        return decimal_texts(array)

    def _binary(self, array: pa.Array, _where: str, _rows: _Rows) -> pa.Array:
        values = array.to_pylist()
        return pa.array([None if one is None else b2a_base64(one, newline=False).decode() for one in values], TEXT)

    def _timestamp(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        array = self._without(array, outside_years(array), where, NOT_A_YEAR, rows)
        # Through int64, so that the zone is dropped and never applied: Arrow holds instants in UTC.
        clock = array.cast(pa.int64()).cast(pa.timestamp("us")).cast(TEXT)
        text = replaced(clock, b" ", b"T")
        return joined(text, pa.scalar("Z", TEXT)) if array.type.tz is not None else text

    def _date(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        return self._without(array, outside_years(array), where, NOT_A_YEAR, rows).cast(TEXT)

    def _struct(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        fields = [
            (field.name, *self.unquoted(values, f"{where}.{field.name}", rows))
            for field, values in zip(array.type, array.flatten(), strict=True)
        ]
        return objects_of(fields, [], len(array))

    def _list(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        offsets, parent = _extents(pc.list_value_length(array), rows)
        return lists_of(offsets, self.json(array.flatten(), f"{where}[]", parent), "[]")

    def _map(self, array: pa.Array, where: str, rows: _Rows) -> pa.Array:
        lengths, keys, values = _entries(array)
        offsets, parent = _extents(lengths, rows)
        names, items = self.json(keys, f"{where} key", parent), self.json(values, f"{where}[]", parent)
        if is_text(array.type.key_type):
            return lists_of(offsets, joined(names, pa.scalar(":", TEXT), items), "{}")
        return lists_of(offsets, objects_of([("key", names, False), ("value", items, False)], [], len(names)), "[]")

    def _without(self, array: pa.Array, bad: pa.Array, where: str, reason: str, rows: _Rows) -> pa.Array:
        """Replace the marked values by null and, unless the policy says null, reject their rows."""
        if not bad.true_count:
            return array
        marked = pc.fill_null(bad, False)
        if reason is not NOT_FINITE or self._nan == "reject":
            for position in pc.indices_nonzero(marked).to_pylist():
                self._rejected.setdefault(rows(position), f"field {where}: {reason}")
        return pc.if_else(marked, pa.scalar(None, array.type), array)


def _entries(array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Lengths, keys and values of the maps. By hand: Arrow 26 loses values when it casts a map to a list."""
    ends = array.offsets
    lengths = pc.subtract(ends[1:], ends[:-1])
    start, count = ends[0].as_py(), ends[-1].as_py() - ends[0].as_py()
    keys, values = array.keys.slice(start, count), array.items.slice(start, count)
    visible = pc.if_else(array.is_valid(), lengths, 0)
    if pc.sum(visible, min_count=0).as_py() < count:  # what a null map hides is no entry
        pairs = zip(array.is_valid().to_pylist(), lengths.to_pylist(), strict=True)
        shown = pa.array([valid for valid, length in pairs for _ in range(length)], pa.bool_())
        keys, values = keys.filter(shown), values.filter(shown)
    return visible, keys, values


def _extents(sizes: pa.Array, rows: _Rows) -> tuple[pa.Array, _Rows]:
    """Offsets of lists of these sizes, and the row of each of their elements."""
    lengths = pc.fill_null(sizes, 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])

    @cache
    def ends() -> list[int]:
        return offsets.to_pylist()  # type: ignore[no-any-return]

    return offsets, lambda position: rows(bisect_right(ends(), position) - 1)


_QUOTED = (
    (is_text, _Encoder._string),
    (pa.types.is_decimal, _Encoder._decimal),
    (is_bytes, _Encoder._binary),
    (pa.types.is_timestamp, _Encoder._timestamp),
    (pa.types.is_date, _Encoder._date),
)
