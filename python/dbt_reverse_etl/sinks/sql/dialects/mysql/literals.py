"""Arrow columns as the rows of INSERT statements into a staging table: column by column, pure, no Python object per value.

| Arrow type | column of the staging table |
|---|---|
| integers | bigint |
| floats | double; NaN and Infinity are refused |
| bool | tinyint |
| string | longtext |
| binary | longblob |
| decimal | decimal of its precision and scale |
| timestamp | datetime(6), in UTC where it has a zone |
| date | date |
| list, struct, map | longtext, canonical JSON as of `dbt_reverse_etl.values.encoding` |

Where the column of the table holds texts, integers and decimals are staged as texts too: MySQL compares a number with a
text as two doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.refusals import Converted, Refusal, utf8, without
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import MysqlColumn
from dbt_reverse_etl.sinks.sql.values import Form, as_it_is, cast_to, date_text, decimal_text, timestamp_text
from dbt_reverse_etl.values.arrow import is_bytes, is_text

NOT_FINITE = "NaN or Infinity, which MySQL cannot store"
REQUIRED = "NULL, and its column is NOT NULL"
BLANK_AT_END = "a blank at the end, which CHAR would drop"
OUTSIDE_CHARSET = "a character that the character set of its column has not"
MOST_SCALE = 30  # of DECIMAL
TEXT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

_BYTES = pa.large_binary()
# Of utf8mb4 no byte of a longer character is one of these; sql_mode lets the backslash escape.
_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"))


def rows_of(changes: Changes, types: Sequence[str]) -> Any:
    """`(place,is a delete,fields ...),` for each row of a batch; the staged fields have these types."""
    literals = [_bare(changes.places), _bare(changes.deleted.cast(pa.int8()))]
    for array, of_type in zip(changes.fields.values(), types, strict=True):
        literals.append(pc.fill_null(WRITTEN.get(of_type, _bare)(array), pa.scalar(b"NULL", _BYTES)))
    begin, comma, end, nothing = (pa.scalar(piece, _BYTES) for piece in (b"(", b",", b"),", b""))
    return pc.binary_join_element_wise(begin, pc.binary_join_element_wise(*literals, comma), end, nothing)


def unfit(array: Any, column: MysqlColumn) -> list[Refusal]:
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


def _bare(array: Any) -> Any:
    """Numbers."""
    return array.cast(pa.large_string()).cast(_BYTES)


def _quoted(array: Any) -> Any:
    """Texts of the connection's character set, utf8mb4."""
    return _string(array.cast(pa.large_string()).cast(_BYTES), b"'")


def _binary(array: Any) -> Any:
    return _string(array.cast(_BYTES), b"_binary'")


def _string(array: Any, begin: bytes) -> Any:
    for character, escaped in _ESCAPES:
        array = pc.replace_substring(array, character, escaped)
    return pc.binary_join_element_wise(pa.scalar(begin, _BYTES), array, pa.scalar(b"'", _BYTES), pa.scalar(b"", _BYTES))


def _double(array: Any) -> Converted:
    """With an exponent, for a literal without one is a DECIMAL."""
    doubles = array.cast(pa.float64())
    infinite = pc.fill_null(pc.invert(pc.is_finite(doubles)), False)
    text = without(doubles, infinite).cast(pa.string())
    exact = pc.if_else(pc.match_substring(text, "e"), text, pc.binary_join_element_wise(text, "e0", ""))
    return exact, [(infinite, NOT_FINITE)]


FORMS: tuple[Form, ...] = (
    (pt.is_integer, "BIGINT", as_it_is),
    (pt.is_boolean, "TINYINT", cast_to(pa.int8())),
    (pt.is_floating, "DOUBLE", _double),
    (is_text, TEXT, utf8),
    (is_bytes, "LONGBLOB", as_it_is),
    (lambda kind: pt.is_decimal(kind) and kind.scale <= MOST_SCALE, "DECIMAL", decimal_text),
    (pt.is_timestamp, "DATETIME(6)", timestamp_text),
    (pt.is_date, "DATE", date_text),
)
WRITTEN: Mapping[str, Callable[[Any], Any]] = {
    "LONGBLOB": _binary,
    **dict.fromkeys((TEXT, "DATETIME(6)", "DATE"), _quoted),
}
