"""What MySQL does with the values of each Arrow type, and which of its columns keep them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.refusals import Converted, utf8, without
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import MysqlColumn
from dbt_reverse_etl.sinks.sql.values import Fits, Kind, cast_to, date_text, decimal_text, one_of, timestamp_text
from dbt_reverse_etl.values.arrow import is_bytes, is_text, is_zoned

NOT_FINITE = "NaN or Infinity, which MySQL cannot store"
UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
TEXT = f"longtext {UTF8}"  # a table that gets a column may have another character set
DECIMAL = "decimal({0.precision}, {0.scale})"
CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})  # whose texts are told from others without the server
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
MOST_SCALE = 30  # of DECIMAL
_EXACT_TEXTS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_MICROSECONDS = 6


def _keeps_integer(column: MysqlColumn, plain: pa.DataType) -> bool:
    bits = {"float": 16, "double": 32}.get(column.kind, 0)
    is_wide = column.scale is None and plain.bit_width <= bits
    return column.is_number or column.kind in _EXACT_TEXTS or is_wide


def _keeps_decimal(column: MysqlColumn, plain: pa.DataType) -> bool:
    is_fine = column.kind == "decimal" and column.scale is not None and column.scale >= plain.scale
    return is_fine or column.kind in _EXACT_TEXTS


def _keeps_nested(column: MysqlColumn, plain: pa.DataType) -> bool:
    """MySQL reads a double of its `json` inexactly (its bug 116160); MariaDB's `json` is a longtext, and so is its kind."""
    return column.kind in _EXACT_TEXTS or (column.kind == "json" and not _holds_float(plain))


def _holds_float(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        return _holds_float(kind.key_type) or _holds_float(kind.item_type)
    if pt.is_struct(kind):
        return any(_holds_float(field.type) for field in kind)
    return _holds_float(kind.value_type) if pt.is_list(kind) else pt.is_floating(kind)


def _floats(*kinds: str) -> Fits:
    return lambda column, _plain: column.kind in kinds and column.scale is None


def _precise(*kinds: str) -> Fits:
    return lambda column, _plain: column.kind in kinds and column.precision == _MICROSECONDS


def _double(array: Any) -> Converted:
    """With an exponent, for a literal without one is a DECIMAL."""
    doubles = array.cast(pa.float64())
    infinite = pc.fill_null(pc.invert(pc.is_finite(doubles)), False)
    text = without(doubles, infinite).cast(pa.string())
    exact = pc.if_else(pc.match_substring(text, "e"), text, pc.binary_join_element_wise(text, "e0", ""))
    return exact, [(infinite, NOT_FINITE)]


KINDS = (
    Kind(lambda kind: pt.is_nested(kind) and not _holds_float(kind), "json", _keeps_nested),
    Kind(pt.is_nested, TEXT, _keeps_nested),
    Kind(pt.is_boolean, "tinyint(1)", one_of("tinyint"), cast_to(pa.int8())),
    Kind(pt.is_int64, "bigint", _keeps_integer),
    Kind(pt.is_int32, "int", _keeps_integer),
    Kind(pt.is_int16, "smallint", _keeps_integer),
    Kind(pt.is_integer, "tinyint", _keeps_integer),
    Kind(pt.is_float64, "double", _floats("double"), _double),
    Kind(pt.is_floating, "double", _floats("float", "double"), _double),  # a FLOAT is shown with six digits
    Kind(lambda kind: pt.is_decimal(kind) and kind.scale <= MOST_SCALE, DECIMAL, _keeps_decimal, decimal_text),
    Kind(is_text, TEXT, one_of("char", "json", *_EXACT_TEXTS), utf8),
    Kind(is_bytes, "longblob", one_of(*BINARIES)),
    Kind(is_zoned, "datetime(6)", _precise("datetime", "timestamp"), timestamp_text),
    Kind(pt.is_timestamp, "datetime(6)", _precise("datetime"), timestamp_text),
    Kind(pt.is_date, "date", one_of("date", "datetime"), date_text),
)
