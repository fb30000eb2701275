"""Every type that a model can deliver, with values at its edges, and what texts and JSON stand for, told by plain Python."""

from __future__ import annotations

import struct
from base64 import b64decode
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

Row = dict[str, Any]

UTC = timezone.utc
NAN, INFINITY = float("nan"), float("inf")
SINGLE = 0.10000000149011612  # 0.1 as a float

# In UTC. New York skips the hour after 2 on 10 March and repeats the one after 1 on 3 November; before 1883 it had a time of its own.
_MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(1582, 10, 10, 12, 0, 0, 1, UTC),
    datetime(1883, 11, 18, 17, 1, 2, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(2024, 3, 10, 7, 0, tzinfo=UTC),
    datetime(2024, 11, 3, 5, 30, tzinfo=UTC),
    datetime(2024, 11, 3, 6, 30, tzinfo=UTC),
]
_LOCALS = [
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1582, 10, 10, 12, 0, 0, 1),
    datetime(1883, 11, 18, 12, 1, 2),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2024, 3, 10, 2, 30),
    datetime(2024, 11, 3, 1, 30),
    datetime(2024, 3, 31, 2, 30),
]
_DAYS = [
    date(1, 1, 1),
    date(9999, 12, 31),
    date(1582, 10, 10),
    date(1900, 2, 28),
    date(1969, 12, 31),
    date(2024, 2, 29),
]
_TEXTS = ["", "NULL", "null", "NaN", "O'Neil \"x\"; \\", " a\r\n\tb ", "zwölf 😀\u2028", "=1+1", "'quoted", "0001", "1e5", "a,b;c|d", "true"]  # fmt: skip
_BYTES = [b"", bytes(range(256)), b"null", b"=1"]
# Names that are types elsewhere.
_DETAIL = pa.struct({
    "variant": pa.int64(), "interval": pa.string(), "time": pa.timestamp("us", "UTC"), "void": pa.timestamp("us"), "day": pa.date32(),
    "amount": pa.decimal128(10, 2), "data": pa.binary(), "list": pa.list_(pa.int32()),
})  # fmt: skip
_DETAILS = [
    {
        "variant": 2**63 - 1, "interval": "a\"b", "time": _MOMENTS[6], "void": _LOCALS[5], "day": _DAYS[2],
        "amount": Decimal("-0.10"), "data": b"\0\xff", "list": [1, None],
    },
    dict.fromkeys(("variant", "interval", "time", "void", "day", "amount", "data", "list")),
]  # fmt: skip

# Name -> type, values. Beside them each column is NULL once.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "words": (pa.string(), _TEXTS),
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1]),
    "large": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    "score": (pa.float32(), [SINGLE, -3.4028234663852886e38, 1.401298464324817e-45, 16777216.0]),
    "ratio": (pa.float64(), [0.1, -1.7976931348623157e308, 5e-324, 1e22, -0.0]),
    "total": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0)]),
    "price": (pa.decimal128(38, 10), [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001"), Decimal("1.1000000000")]),
    "share": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal("-1e-38")]),
    "day": (pa.date32(), _DAYS),
    "moment": (pa.timestamp("us", "UTC"), _MOMENTS),
    "wall": (pa.timestamp("us"), _LOCALS),
    "data": (pa.binary(), _BYTES),
    "wholes": (pa.list_(pa.int32()), [[], [1, None, -(2**31)]]),
    "texts": (pa.list_(pa.string()), [[*_TEXTS, None]]),
    "doubles": (pa.list_(pa.float64()), [[0.1, 5e-324, -1.7976931348623157e308, None]]),
    "flags": (pa.list_(pa.bool_()), [[True, None, False]]),
    "prices": (pa.list_(pa.decimal128(38, 10)), [[Decimal("-0.0000000001"), None]]),
    "days": (pa.list_(pa.date32()), [[*_DAYS, None]]),
    "moments": (pa.list_(pa.timestamp("us", "UTC")), [[*_MOMENTS, None]]),
    "locals": (pa.list_(pa.timestamp("us")), [[*_LOCALS, None]]),
    "blobs": (pa.list_(pa.binary()), [[*_BYTES, None]]),
    "matrix": (pa.list_(pa.list_(pa.int32())), [[[1], [], None, [2, 3]]]),
    "detail": (_DETAIL, _DETAILS),
    "details": (pa.list_(_DETAIL), [[*_DETAILS, None]]),
    "by_text": (pa.map_(pa.string(), pa.int64()), [[], [("a\"b", 1), ("", None)]]),
    "by_number": (pa.map_(pa.int32(), pa.timestamp("us")), [[(-1, _LOCALS[5]), (2, None)]]),
    "floats": (pa.list_(pa.float32()), [[SINGLE, 1.401298464324817e-45, None]]),
    "by_moment": (pa.map_(pa.timestamp("us", "UTC"), pa.decimal128(10, 2)), [[(_MOMENTS[0], Decimal("-0.10")), (_MOMENTS[1], None)]]),
    "by_amount": (pa.map_(pa.decimal128(10, 2), pa.bool_()), [[(Decimal("0.10"), True)]]),
    "by_data": (pa.map_(pa.binary(), pa.string()), [[(b"\0\xff", "a"), (b"", None)]]),
    "by_flag": (pa.map_(pa.bool_(), pa.float64()), [[(True, 0.1), (False, None)]]),
    "by_day": (pa.map_(pa.date32(), _DETAIL), [[(_DAYS[2], _DETAILS[0])]]),
}  # fmt: skip
# A value that some destinations refuse, alone in its row.
ALONE: dict[int, tuple[str, Any]] = {
    101: ("ratio", NAN),
    102: ("ratio", INFINITY),
    103: ("ratio", -INFINITY),
    104: ("score", NAN),
    105: ("doubles", [NAN, INFINITY]),
    106: ("words", "a\0b"),
    107: ("texts", ["a\0b"]),
    108: ("doubles", [-0.0]),
}
SCHEMA = pa.schema([("id", pa.int32()), *((name, kind) for name, (kind, _) in COLUMNS.items())])


def rows() -> list[Row]:
    """Row 0 is all NULL; in the others each column goes through its values."""
    nothing = dict.fromkeys(COLUMNS)
    most = max(len(values) for _, values in COLUMNS.values())
    full = [
        {"id": n + 1, **{name: values[n % len(values)] for name, (_, values) in COLUMNS.items()}} for n in range(most)
    ]
    alone = [{"id": number, **nothing, name: value} for number, (name, value) in ALONE.items()]
    return [{"id": 0, **nothing}, *full, *alone]


def write(path: Path) -> None:
    """The rows as Parquet, where a type says whether a time has a zone and no zone has a word in a value."""
    pq.write_table(pa.Table.from_pylist(rows(), SCHEMA), path)


def ddl(kind: pa.DataType) -> str:
    """The type in Spark's SQL."""
    if pt.is_list(kind):
        return f"array<{ddl(kind.value_type)}>"
    if pt.is_map(kind):
        return f"map<{ddl(kind.key_type)},{ddl(kind.item_type)}>"
    if pt.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{ddl(field.type)}' for field in kind)}>"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES[kind]


_NAMES = {
    pa.string(): "string", pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.date32(): "date", pa.binary(): "binary",
}  # fmt: skip


def plain(kind: pa.DataType, value: Any) -> Any:  # noqa: PLR0911  (one line for each type)
    """A value of Python so that those are equal which are the same: NaN, zeros by their sign, a map in any form and order."""
    if value is None:
        return None
    if pt.is_list(kind):
        return [plain(kind.value_type, one) for one in value]
    if pt.is_map(kind):
        pairs = (
            value.items()
            if isinstance(value, dict)
            else [one.values() if isinstance(one, dict) else one for one in value]
        )
        return sorted((str(plain(kind.key_type, key)), plain(kind.item_type, item)) for key, item in pairs)
    if pt.is_struct(kind):
        return {field.name: plain(field.type, value[field.name]) for field in kind}
    if pt.is_timestamp(kind) and kind.tz:
        return value.astimezone(UTC).isoformat()
    if pt.is_float32(kind):
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    return repr(value)


def of_json(kind: pa.DataType, value: Any) -> Any:  # noqa: PLR0911  (one line for each type)
    """The value that parsed JSON stands for, in the form of docs/json-encoding.md and no other."""
    if value is None:
        return None
    if pt.is_list(kind):
        return [of_json(kind.value_type, one) for one in value]
    if pt.is_map(kind) and pt.is_string(kind.key_type):
        return {key: of_json(kind.item_type, item) for key, item in value.items()}
    if pt.is_map(kind):
        return [(of_json(kind.key_type, one["key"]), of_json(kind.item_type, one["value"])) for one in value]
    if pt.is_struct(kind):
        return {field.name: of_json(field.type, value[field.name]) for field in kind}
    if pt.is_binary(kind):
        return b64decode(value, validate=True)
    if pt.is_timestamp(kind):
        assert (value[10], value[26:]) == ("T", "Z" if kind.tz else ""), value
        return of_text(kind, value.replace("T", " ").removesuffix("Z"))
    return of_text(kind, value) if isinstance(value, str) else float(value) if pt.is_floating(kind) else value


def of_text(kind: pa.DataType, value: str) -> Any:
    """The value that a text stands for: all digits of a decimal, times with microseconds and in UTC."""
    if pt.is_string(kind):
        return value
    if pt.is_decimal(kind):
        assert value == f"{Decimal(value):.{kind.scale}f}", value
        return Decimal(value)
    if pt.is_date(kind):
        return date.fromisoformat(value)
    assert len(value) == len("2024-01-31 09:30:00.000000"), value
    return datetime.fromisoformat(value).replace(tzinfo=UTC if kind.tz else None)
