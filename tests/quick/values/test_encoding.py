"""The JSON encoding against an oracle in plain Python that knows nothing of Arrow's kernels."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.values import encoding
from dbt_reverse_etl.values.encoding import encode_lines, encode_rows, encode_values, texts
from tests.support.effort import scaled

UTC = dt.timezone.utc
TEXT = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\x00"\\\n\t\x1f\x7f\u2028\u2029😀'))
)
MOMENT = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
DECIMAL = st.integers(-(10**38 - 1), 10**38 - 1)
FLOAT = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([-0.0, 5e-324, 1e16, 1e22, 1.0]))


def decimals(scale: int) -> st.SearchStrategy[Decimal]:
    return DECIMAL.map(lambda digits: Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale)))


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.float64(), FLOAT),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.decimal128(38, 12), decimals(12)),
    (pa.decimal128(38, 38), decimals(38)),
    (pa.decimal128(38, 0), decimals(0)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), MOMENT),
    (pa.timestamp("us", "America/New_York"), MOMENT.map(lambda moment: moment.replace(tzinfo=UTC))),
]
KEYS = [leaf for leaf in LEAVES if leaf[0] in (pa.string(), pa.int64(), pa.date32())]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


def nest(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def list_of(typed: Typed) -> Typed:
        return pa.list_(typed[0]), st.lists(nullable(typed[1]), max_size=3)

    def struct_of(fields: list[Typed]) -> Typed:
        names = [f"f{index}" for index in range(len(fields))]
        kind = pa.struct([pa.field(name, field[0]) for name, field in zip(names, fields, strict=True)])
        values = {name: nullable(field[1]) for name, field in zip(names, fields, strict=True)}
        return kind, st.fixed_dictionaries(values)

    def map_of(pair: tuple[Typed, Typed]) -> Typed:
        (key, keys), (item, items) = pair
        entries = st.lists(st.tuples(keys, nullable(items)), max_size=3, unique_by=lambda entry: entry[0])
        return pa.map_(key, item), entries

    return st.one_of(
        inner.map(list_of),
        st.lists(inner, min_size=1, max_size=3).map(struct_of),
        st.tuples(st.sampled_from(KEYS), inner).map(map_of),
    )


TYPED = st.recursive(st.sampled_from(LEAVES), nest, max_leaves=4)


def expected(kind: pa.DataType, value: Any) -> Any:
    """What the JSON must hold."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = [(expected(kind.key_type, key), expected(kind.item_type, item)) for key, item in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [{"key": k, "value": v} for k, v in pairs]
    if pa.types.is_struct(kind):
        return {field.name: expected(field.type, value[field.name]) for field in kind}
    if isinstance(value, list):
        return [expected(kind.value_type, item) for item in value]
    return expected_scalar(kind, value)


def expected_scalar(kind: pa.DataType, value: Any) -> Any:
    if isinstance(value, float):
        return Float(value, 4 if kind == pa.float32() else 8)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, f".{kind.scale}f")
    if isinstance(value, dt.time):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, dt.date) else value


@dataclass(frozen=True)
class Float:
    """A float by its bits, so that -0.0 is not 0.0; `width` in bytes."""

    value: float
    width: int

    def is_written_as(self, digits: Any) -> bool:
        form = "f" if self.width == 4 else "d"
        return isinstance(digits, str) and struct.pack(form, float(digits)) == struct.pack(form, self.value)


def parse(text: bytes) -> Any:
    """Parse with the standard library, keeping floats as their digits and refusing bare NaN."""
    return json.loads(text, parse_float=str, parse_constant=pytest.fail)


def same(got: Any, want: Any) -> bool:
    if isinstance(want, Float):
        return want.is_written_as(got)
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[name], want[name]) for name in want)
    if isinstance(want, list):
        return len(got) == len(want) and all(same(a, b) for a, b in zip(got, want, strict=True))
    return type(got) is type(want) and bool(got == want)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind, values = draw(TYPED)
    return kind, draw(st.lists(nullable(values), max_size=6))


SLOW = settings(max_examples=scaled(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.guarantee("Values in JSON")
@SLOW
@given(columns())
def test_every_type_at_every_depth_reads_back_as_the_same_value(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    encoded = encode_rows(pa.table({'a "b"\n': pa.array(values, kind)}))
    assert encoded.rejected == {}
    for text, value in zip(encoded.rows, values, strict=True):
        assert text is not None
        got = parse(text)
        assert list(got) == ['a "b"\n']
        assert same(got['a "b"\n'], expected(kind, value)), text


def test_lists_in_maps_keep_their_elements() -> None:
    kind = pa.map_(pa.int64(), pa.list_(pa.string()))
    array = pa.array([[(0, [None, None])], None, [(1, None)]], kind)
    rows = [b'[{"key":0,"value":[null,null]}]', b"null", b'[{"key":1,"value":null}]']
    assert encode_values(array).rows == rows
    assert encode_values(array.slice(1)).rows == rows[1:]


@SLOW
@given(columns(), st.integers(0, 5), st.integers(0, 5))
def test_a_slice_of_a_table_encodes_as_the_same_rows(
    column: tuple[pa.DataType, list[Any]], start: int, length: int
) -> None:
    kind, values = column
    table = pa.table({"a": pa.chunked_array([pa.array(values, kind), pa.array(values[:2], kind)])})
    whole = encode_rows(table).rows
    assert encode_rows(table.slice(start, length)).rows == whole[start : start + length]


@SLOW
@given(columns())
def test_orjson_and_the_standard_library_read_the_same(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    for text in encode_values(pa.array(values, kind)).rows:
        assert text is not None
        assert orjson.loads(text) == json.loads(text)


@SLOW
@given(columns())
def test_key_texts_are_the_json_strings_without_quotes(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    if pa.types.is_nested(kind):
        with pytest.raises(TypeError, match="no JSON encoding"):
            texts(pa.array(values, kind))
        return
    array = pa.array(values, kind)
    for text, json_text in zip(texts(array), encode_values(array).rows, strict=True):
        assert json_text is not None
        if text is None:
            assert json_text == b"null"
        else:
            assert json_text in (text.encode(), orjson.dumps(text))


NOT_FINITE = st.lists(st.sampled_from([0.5, None, math.nan, math.inf, -math.inf]), max_size=3)


@pytest.mark.guarantee("Values in JSON")
@SLOW
@given(st.lists(nullable(NOT_FINITE), max_size=6))
def test_nan_and_infinity_reject_exactly_their_rows_at_any_depth(values: list[list[float | None] | None]) -> None:
    bad = {
        row
        for row, items in enumerate(values)
        if any(item is not None and not math.isfinite(item) for item in items or [])
    }
    kind = pa.list_(pa.struct([("x", pa.float64())]))
    nested = [None if items is None else [{"x": item} for item in items] for items in values]
    encoded = encode_rows(pa.table({"a": pa.array(nested, kind)}))
    assert set(encoded.rejected) == bad
    assert {row for row, text in enumerate(encoded.rows) if text is None} == bad
    assert set(encoded.rejected.values()) <= {"field a[].x: NaN or Infinity has no JSON form"}
    as_null = encode_rows(pa.table({"a": pa.array(nested, kind)}), nan="null")
    assert as_null.rejected == {}
    for items, text in zip(values, as_null.rows, strict=True):
        want = (
            None
            if items is None
            else [{"x": item if item is not None and math.isfinite(item) else None} for item in items]
        )
        assert json.loads(text or b"")["a"] == want


def _child(maps: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(
        [maps.keys, maps.items], fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.float64())]
    )


def test_a_value_hidden_under_a_null_list_rejects_nothing() -> None:
    floats = pa.array([math.nan, 1.0])
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), floats, mask=pa.array([True, False]))
    assert encode_values(hidden).rows == [b"null", b"[1.0]"]
    maps = pa.MapArray.from_arrays([0, 1, 2, 2], pa.array(["a", "b"]), floats)
    validity = pa.py_buffer(bytes([0b110]))
    nulled = pa.Array.from_buffers(maps.type, 3, [validity, maps.buffers()[1]], children=[_child(maps)])
    assert encode_values(nulled).rows == [b"null", b'{"b":1.0}', b"{}"]
    in_struct = pa.StructArray.from_arrays([floats], ["x"], mask=pa.array([True, False]))
    assert encode_values(in_struct).rows == [b"null", b'{"x":1.0}']


@pytest.mark.guarantee("Values in JSON")
@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([-62_135_596_800_000_001, 0], pa.int64()).cast(pa.timestamp("us")), encoding.NOT_A_YEAR),
        (pa.array([253_402_300_800_000_000, 0], pa.int64()).cast(pa.timestamp("us", "UTC")), encoding.NOT_A_YEAR),
        (pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()), encoding.NOT_A_YEAR),
        (pa.array([-719_163, 0], pa.int32()).cast(pa.date32()), encoding.NOT_A_YEAR),
        (pa.array([2_932_897, 0], pa.int32()).cast(pa.date32()), encoding.NOT_A_YEAR),
        (pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"a"], pa.binary()).buffers()), encoding.NOT_UTF8),
    ],
)
def test_a_value_without_an_exact_form_rejects_its_row_and_no_other(array: pa.Array, reason: str) -> None:
    encoded = encode_rows(pa.table({"a": array}), nan="null")
    assert encoded.rejected == {0: f"field a: {reason}"}
    assert encoded.rows[0] is None
    assert encoded.rows[1] is not None


@pytest.mark.guarantee("Values in JSON")
@pytest.mark.parametrize(
    ("array", "json_text"),
    [
        (pa.array([-719_162], pa.int32()).cast(pa.date32()), b'"0001-01-01"'),
        (pa.array([2_932_896], pa.int32()).cast(pa.date32()), b'"9999-12-31"'),
        (pa.array([253_402_300_799_999_999]).cast(pa.timestamp("us", "UTC")), b'"9999-12-31T23:59:59.999999Z"'),
        (pa.array([-62_135_596_800_000_000]).cast(pa.timestamp("us")), b'"0001-01-01T00:00:00.000000"'),
        (pa.array([-1]).cast(pa.timestamp("us")), b'"1969-12-31T23:59:59.999999"'),
        (pa.array([0.1], pa.float32()), b"0.1"),
        (pa.array([1e16]), b"1e+16"),
        (pa.array([-0.0]), b"-0.0"),
        (pa.array([Decimal("1E-12")], pa.decimal128(38, 12)), b'"0.000000000001"'),
        (pa.array([Decimal("-0")], pa.decimal128(5, 2)), b'"0.00"'),
        (pa.array(["\x00\x1f\x7f\u2028é"]), '"\\u0000\\u001f\x7f\u2028é"'.encode()),
    ],
)
def test_boundaries_have_the_documented_form(array: pa.Array, json_text: bytes) -> None:
    assert encode_values(array).rows == [json_text]


def test_a_type_that_no_model_has_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(TypeError, match="field pause"):
        encode_rows(pa.table({"pause": pa.array([1], pa.duration("us"))}))


@given(st.lists(st.integers(), max_size=5))
def test_constants_follow_the_fields_of_each_row(values: list[int]) -> None:
    table = pa.table({"a": pa.array([value % 100 for value in values], pa.int64())})
    encoded = encode_rows(table, constants={"source": "dbt", "n": [1, None]})
    rows = [row for row in encoded.rows if row is not None]
    assert [json.loads(row) for row in rows] == [{"a": v % 100, "source": "dbt", "n": [1, None]} for v in values]


def test_a_table_without_columns_is_a_row_of_constants() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert encode_rows(table).rows == [b"{}", b"{}"]
    assert encode_rows(table, constants={"a": 1}).rows == [b'{"a":1}', b'{"a":1}']


def test_lone_surrogates_cannot_stand_in_a_column() -> None:
    with pytest.raises(UnicodeEncodeError):
        pa.array(["\ud800"])


@pytest.mark.guarantee("Values in JSON")
@given(st.data())
def test_lines_are_the_accepted_rows_each_with_its_line_feed(data: st.DataObject) -> None:
    schema = pa.schema([("text", pa.string()), ("number", pa.float64()), ("list", pa.list_(pa.string()))])
    numbers = nullable(st.sampled_from([1.5, math.nan, -math.inf]))
    row = st.fixed_dictionaries({"text": nullable(TEXT), "number": numbers, "list": nullable(st.lists(nullable(TEXT)))})
    table = pa.Table.from_pylist(data.draw(st.lists(row, max_size=5)), schema).slice(1)
    rows = encode_rows(table)
    lines, rejected = encode_lines(table)
    assert (lines, rejected) == (b"".join(line + b"\n" for line in rows.rows if line is not None), rows.rejected)
    assert lines.count(b"\n") == table.num_rows - len(rejected)
