"""What Postgres does with the values of each Arrow type, and which of its columns keep them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.refusals import Converted, utf8, without
from dbt_reverse_etl.sinks.sql.dialects.postgres.copying import date, timestamp
from dbt_reverse_etl.sinks.sql.dialects.postgres.table import EXACT_TEXTS, PostgresColumn
from dbt_reverse_etl.sinks.sql.values import Fits, Kind, cast_to, decimal_text, one_of
from dbt_reverse_etl.values.arrow import is_bytes, is_text, is_zoned

NUL = "a NUL character, which Postgres cannot store"
# Types of Postgres that a text may be cast to without losing anything of it; json and the like may show it in another spelling.
_FROM_TEXT = EXACT_TEXTS | {"bpchar", "uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8"}
# Of other types: categories of texts (citext) and enums.
_OTHER_FROM_TEXT = frozenset("SE")
_MICROSECONDS = 6


def _keeps_nested(column: PostgresColumn, plain: pa.DataType) -> bool:
    return column.kind in EXACT_TEXTS | {"jsonb", "json"} or _keeps_elements(column, plain)


def _keeps_elements(column: PostgresColumn, plain: pa.DataType) -> bool:
    if not pt.is_list(plain) or column.element is None or column.element_category is None:
        return False
    inner, element = plain.value_type, column.element
    of_element = replace(column, type=element, kind=element.name, category=column.element_category, element=None)
    is_plain = not (pt.is_nested(inner) or is_bytes(inner))
    # The first one, as `Dialect.kind`: a moment is a timestamp, too.
    return is_plain and next((kind.fits(of_element, inner) for kind in KINDS if kind.has(inner)), False)


def _keeps_text(column: PostgresColumn, _plain: pa.DataType) -> bool:
    if column.type.schema == "pg_catalog":
        return column.kind in _FROM_TEXT
    return column.category in _OTHER_FROM_TEXT


def _keeps_integer(column: PostgresColumn, plain: pa.DataType) -> bool:
    if column.kind == "numeric":
        return (column.scale or 0) >= 0
    bits = {"float4": 16, "float8": 32}.get(column.kind, 0)
    return column.kind in EXACT_TEXTS | {"int2", "int4", "int8"} or plain.bit_width <= bits


def _keeps_decimal(column: PostgresColumn, plain: pa.DataType) -> bool:
    is_fine = column.kind == "numeric" and (column.scale is None or column.scale >= plain.scale)
    return is_fine or column.kind in EXACT_TEXTS


def _precise(kind: str) -> Fits:
    return lambda column, _plain: column.kind == kind and column.modifier in (-1, _MICROSECONDS)


def _text(array: Any) -> Converted:
    array, refusals = utf8(array)
    has_nul = pc.match_substring(array, "\0")
    return without(array, has_nul), [*refusals, (has_nul, NUL)]


_INTEGERS, _FLOATS = cast_to(pa.int64()), cast_to(pa.float64())
KINDS = (
    Kind(pt.is_nested, "jsonb", _keeps_nested, staged="text"),
    Kind(is_text, "text", _keeps_text, _text, "text"),
    Kind(pt.is_boolean, "boolean", one_of("bool"), cast_to(pa.int8()), "bool"),
    Kind(pt.is_int64, "bigint", _keeps_integer, _INTEGERS, "int8"),
    Kind(pt.is_int32, "integer", _keeps_integer, _INTEGERS, "int8"),
    Kind(pt.is_integer, "smallint", _keeps_integer, _INTEGERS, "int8"),
    Kind(pt.is_float32, "real", one_of("float4", "float8"), _FLOATS, "float8"),
    Kind(pt.is_floating, "double precision", one_of("float8"), _FLOATS, "float8"),
    Kind(pt.is_decimal, "numeric({0.precision}, {0.scale})", _keeps_decimal, decimal_text, "text"),
    Kind(is_bytes, "bytea", one_of("bytea"), staged="bytea"),
    Kind(is_zoned, "timestamptz", _precise("timestamptz"), timestamp, "timestamptz"),
    Kind(pt.is_timestamp, "timestamp", _precise("timestamp"), timestamp, "timestamp"),
    Kind(pt.is_date, "date", one_of("date", "timestamp"), date, "date"),
)
