"""Arrow columns as the rows of INSERT statements into a staging table: column by column, pure, no Python object per value.

| Arrow type | column of the staging table |
|---|---|
| integers | bigint, bigint unsigned |
| floats | double; NaN and Infinity are refused |
| bool | tinyint |
| string | longtext |
| binary | longblob |
| decimal | decimal of its precision and scale |
| timestamp | datetime(6), in UTC where it has a zone |
| date, time | date, time(6) |
| list, struct, map | longtext, canonical JSON as of `dbt_reverse_etl.values.encoding` |
| null | longtext |

Where the column of the table holds texts, integers and decimals are staged as texts too: MySQL compares a number with a
text as two doubles. Years outside 1 to 9999 and parts finer than a microsecond are refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION
from dbt_reverse_etl.sinks.sql.database import (
    Convert,
    Converted,
    Refusal,
    cast_to,
    date_text,
    decimal_text,
    null_keys,
    one_array,
    positions,
    reasons_of,
    time_text,
    timestamp_text,
    utf8,
    without,
)
from dbt_reverse_etl.sinks.sql.mysql.catalog import Column
from dbt_reverse_etl.values.arrow import is_bytes, is_text, plain_array, plain_type
from dbt_reverse_etl.values.encoding import encode_values, unsupported

NOT_FINITE = "NaN or Infinity, which MySQL cannot store"
REQUIRED = "NULL, and its column is NOT NULL"
BLANK_AT_END = "a blank at the end, which CHAR would drop"
OUTSIDE_CHARSET = "a character that the character set of its column has not"
TOO_LARGE = "the row is larger than max_allowed_packet of the server"
MOST_DIGITS, MOST_SCALE = 65, 30  # of DECIMAL
TEXT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
STATEMENT = 2**22  # bytes of rows in one INSERT, if the server takes that
_ROOM = 1024  # for the statement around the rows

_BYTES = pa.large_binary()
# Of utf8mb4 no byte of a longer character is one of these; sql_mode lets the backslash escape.
_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"))


@dataclass(frozen=True)
class Staged:
    """One batch, ready to be staged.

    Attributes:
        rows: rows of the batch; the places in the staging table are below it.
        values: `(place, is a delete, fields ...)`, many of them in each piece, separated by commas.
        writes, deletes: how many rows of each kind are in `values`.
        refused: index in the batch -> reason, for rows that are not in `values`.
    """

    rows: int
    values: Sequence[memoryview]
    writes: int
    deletes: int
    refused: dict[int, str]


def staged(
    batch: pa.Table, columns: Mapping[str, Column], key: Sequence[str], *, packet: int, deletes: str | None = None
) -> Staged:
    """Convert one batch; rows with a value that its column cannot hold exactly are refused, and all deletes if `deletes` says why.

    `columns`: field -> its column, in the order of the staging table. `packet`: bytes that the server takes at once.
    """
    deleted = pc.equal(one_array(batch.column(OPERATION)), "delete")
    gone = frozenset(positions(deleted))
    literals = [_bare(pa.array(range(batch.num_rows), pa.int32())), _flag(deleted)]
    refused: dict[int, str] = dict.fromkeys(gone, deletes) if deletes else {}
    absent: set[int] = set()  # deletes of keys that the table cannot hold: nothing to do
    for name, column in columns.items():
        array = plain_array(one_array(batch.column(name)))
        literal, wrong, unfit = _literals(name, array, column)
        literals.append(literal)
        refused |= wrong | {row: reason for row, reason in unfit.items() if row not in gone}
        absent |= gone & unfit.keys() if name in key else set()
    refused |= null_keys(batch, key)
    rows = _rows(literals)
    too_large = pc.greater(pc.binary_length(rows), packet - _ROOM)
    refused |= dict.fromkeys(positions(too_large), TOO_LARGE)
    out = refused.keys() | absent
    if out:
        rows = rows.take(pa.array([row for row in range(batch.num_rows) if row not in out], pa.int64()))
    removed = len(gone - out)
    pieces = tuple(_pieces(rows, min(STATEMENT, packet - _ROOM)))
    return Staged(batch.num_rows, pieces, len(rows) - removed, removed, refused)


def staging_type(arrow_type: pa.DataType, column: Column) -> str:
    """The type of the staging column for the values of a field."""
    plain = plain_type(arrow_type)
    if pt.is_nested(plain) or column.is_text:
        return TEXT
    if pt.is_decimal(plain):
        return f"DECIMAL({max(plain.precision, plain.precision - plain.scale)}, {max(plain.scale, 0)})"
    return _form(plain)[0]


def is_supported(arrow_type: pa.DataType) -> bool:
    """Whether a type has an exact form."""
    plain = plain_type(arrow_type)
    if pt.is_nested(plain):
        return not unsupported(pa.schema([("", plain)]))
    if pt.is_decimal(plain):
        return bool(max(plain.precision, plain.precision - plain.scale) <= MOST_DIGITS and plain.scale <= MOST_SCALE)
    return any(is_type(plain) for is_type, *_ in FORMS)


def _rows(literals: Sequence[Any]) -> Any:
    """`(1,0,'a'),` for each row."""
    joined = pc.binary_join_element_wise(*literals, pa.scalar(b",", _BYTES))
    return pc.binary_join_element_wise(
        pa.scalar(b"(", _BYTES), joined, pa.scalar(b"),", _BYTES), pa.scalar(b"", _BYTES)
    )


def _pieces(rows: Any, most: int) -> Iterator[memoryview]:
    """As many whole rows at once as fit, without the comma at the end."""
    if not len(rows):
        return
    _, offsets, data = rows.buffers()
    ends = memoryview(offsets).cast("q")[rows.offset : rows.offset + len(rows) + 1]
    first = 0
    while first < len(rows):
        after = max(bisect_right(ends, ends[first] + most) - 1, first + 1)
        yield memoryview(data)[ends[first] : ends[after] - 1]
        first = after


def _literals(name: str, array: Any, column: Column) -> tuple[Any, dict[int, str], dict[int, str]]:
    """SQL literals of a field, the rows with values that MySQL cannot hold, and those that the column cannot."""
    write: Callable[[Any], Any]
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = [None if row == b"null" else row for row in encoded.rows]
        array, wrong, write = pa.array(texts, _BYTES).cast(pa.large_string()), encoded.rejected, _quoted
    else:
        _, convert, write = _form(array.type)
        if column.is_text:
            array, write = (array if is_text(array.type) else convert(array)[0].cast(pa.string())), _quoted
            convert = utf8
        array, refusals = convert(array)
        wrong = reasons_of(name, refusals)
    unfit = reasons_of(name, _unfit(array, column))
    return pc.fill_null(write(array), pa.scalar(b"NULL", _BYTES)), wrong, unfit


def _unfit(array: Any, column: Column) -> list[Refusal]:
    """Values that the table would refuse only in part: it cuts blanks, and fills bytes up."""
    found: list[Refusal] = [] if column.nullable else [(array.is_null(), REQUIRED)]
    if column.charset is not None:
        texts = array.cast(pa.large_string())
        for length, most, unit in (
            (pc.binary_length(texts), column.octets, "bytes"),
            (pc.utf8_length(texts), column.characters, "characters"),
        ):
            found.append((pc.greater(length, most), f"longer than the {most} {unit} of its column"))
        if column.kind == "char":
            found.append((pc.ends_with(texts, " "), BLANK_AT_END))
        if column.charset == "ascii":
            found.append((pc.invert(pc.string_is_ascii(texts)), OUTSIDE_CHARSET))
        elif column.charset != "utf8mb4":
            found.append((pc.match_substring_regex(texts, r"[\x{10000}-\x{10FFFF}]"), OUTSIDE_CHARSET))
    elif column.is_binary:
        differs, said = (pc.not_equal, "not as long as") if column.kind == "binary" else (pc.greater, "longer than")
        lengths = pc.binary_length(array.cast(_BYTES))
        found.append((differs(lengths, column.octets), f"{said} the {column.octets} bytes of its column"))
    return found


def _form(arrow_type: pa.DataType) -> tuple[str, Convert, Callable[[Any], Any]]:
    for is_type, staging, convert, write in FORMS:
        if is_type(arrow_type):
            return staging, convert, write
    raise TypeError(f"MySQL has no form for the type {arrow_type}")


def _bare(array: Any) -> Any:
    """Numbers."""
    return array.cast(pa.large_string()).cast(_BYTES)


def _flag(array: Any) -> Any:
    return _bare(array.cast(pa.int8()))


def _quoted(array: Any) -> Any:
    """Texts of the connection's character set, utf8mb4."""
    return _string(array.cast(pa.large_string()).cast(_BYTES), b"'")


def _binary(array: Any) -> Any:
    return _string(
        array.cast(pa.binary()).cast(_BYTES) if pt.is_fixed_size_binary(array.type) else array.cast(_BYTES), b"_binary'"
    )


def _string(array: Any, begin: bytes) -> Any:
    for character, escaped in _ESCAPES:
        array = pc.replace_substring(array, character, escaped)
    return pc.binary_join_element_wise(pa.scalar(begin, _BYTES), array, pa.scalar(b"'", _BYTES), pa.scalar(b"", _BYTES))


def _as_it_is(array: Any) -> Converted:
    return array, []


def _double(array: Any) -> Converted:
    """With an exponent, for a literal without one is a DECIMAL."""
    doubles = array.cast(pa.float64())
    infinite = pc.fill_null(pc.invert(pc.is_finite(doubles)), False)
    text = without(doubles, infinite).cast(pa.string())
    exact = pc.if_else(pc.match_substring(text, "e"), text, pc.binary_join_element_wise(text, "e0", ""))
    return exact, [(infinite, NOT_FINITE)]


FORMS: tuple[tuple[Callable[[pa.DataType], bool], str, Convert, Callable[[Any], Any]], ...] = (
    (pt.is_uint64, "BIGINT UNSIGNED", _as_it_is, _bare),
    (pt.is_integer, "BIGINT", _as_it_is, _bare),
    (pt.is_boolean, "TINYINT", _as_it_is, _flag),
    (pt.is_floating, "DOUBLE", _double, _bare),
    (is_text, TEXT, utf8, _quoted),
    (is_bytes, "LONGBLOB", _as_it_is, _binary),
    (pt.is_decimal, "DECIMAL", decimal_text, _bare),
    (pt.is_timestamp, "DATETIME(6)", timestamp_text, _quoted),
    (pt.is_date, "DATE", date_text, _quoted),
    (pt.is_time, "TIME(6)", time_text, _quoted),
    (pt.is_null, TEXT, cast_to(pa.string()), _quoted),
)
