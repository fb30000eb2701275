"""Which column holds which Arrow type exactly, for each dialect.

| Arrow type | column that is made | SQL Server | Oracle |
|---|---|---|---|
| integers | smallint, integer, bigint, numeric(20) | | number |
| floats | double precision | | binary_double |
| bool | boolean | bit | boolean, or smallint before 23ai |
| string | text; varchar(255) in a key | nvarchar | clob, varchar2 |
| binary | blob, bytea | varbinary | blob, raw |
| decimal | numeric of its precision and scale | | |
| timestamp | timestamp, with or without a zone | datetime2(6), datetimeoffset(6) | timestamp |
| date, time | date, time | date, time(6) | date, none |
| list, struct, map, null | text: canonical JSON | nvarchar(max) | clob |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, oracle
from sqlalchemy.types import TypeEngine

from dbt_reverse_etl.values.arrow import is_bytes, is_text, plain_type
from dbt_reverse_etl.values.encoding import unsupported

MOST_DIGITS = 38
MICROSECONDS = 6
KEY_LENGTH = 255
BINARY_COLLATION = "Latin1_General_100_BIN2"

Type = TypeEngine[Any]
_mssql: Any = mssql  # whose types are not typed

TEXT: Type = sa.UnicodeText().with_variant(mssql.NVARCHAR(), "mssql")
KEY_TEXT: Type = sa.Unicode(KEY_LENGTH).with_variant(mssql.NVARCHAR(KEY_LENGTH, BINARY_COLLATION), "mssql")
BYTES: Type = sa.LargeBinary().with_variant(_mssql.VARBINARY("max"), "mssql")
KEY_BYTES: Type = (
    sa.LargeBinary().with_variant(_mssql.VARBINARY(KEY_LENGTH), "mssql").with_variant(oracle.RAW(KEY_LENGTH), "oracle")
)
DOUBLE: Type = sa.Double().with_variant(oracle.BINARY_DOUBLE(), "oracle")
LOCAL: Type = (
    sa.DateTime().with_variant(_mssql.DATETIME2(MICROSECONDS), "mssql").with_variant(oracle.TIMESTAMP(), "oracle")
)
INSTANT: Type = (
    sa.DateTime(timezone=True)
    .with_variant(_mssql.DATETIMEOFFSET(MICROSECONDS), "mssql")
    .with_variant(oracle.TIMESTAMP(timezone=True), "oracle")
)
DATE: Type = sa.Date().with_variant(_mssql.DATE(), "mssql")
TIME: Type = sa.Time().with_variant(_mssql.TIME(MICROSECONDS), "mssql")


def is_supported(arrow_type: pa.DataType, dialect: str) -> bool:
    """Whether the values of a type have an exact form in a dialect."""
    plain = plain_type(arrow_type)
    if pt.is_nested(plain):
        return not unsupported(pa.schema([("", plain)]))
    if pt.is_decimal(plain):
        return bool(max(plain.precision, plain.precision - plain.scale) <= MOST_DIGITS)
    if pt.is_time(plain) and dialect == "oracle":
        return False
    return any(is_kind(plain) for is_kind in _SUPPORTED)


def column_type(arrow_type: pa.DataType, *, in_key: bool = False) -> Type:
    """The type of a column that holds every value of an Arrow type."""
    plain = plain_type(arrow_type)
    if pt.is_decimal(plain):
        return sa.Numeric(max(plain.precision, plain.precision - plain.scale), max(plain.scale, 0))
    if pt.is_timestamp(plain):
        return INSTANT if plain.tz else LOCAL
    if in_key and (is_text(plain) or is_bytes(plain)):
        return KEY_TEXT if is_text(plain) else KEY_BYTES
    return next(made for is_kind, made in _MADE if is_kind(plain))


def keeps(column: Type, arrow_type: pa.DataType, dialect: str) -> bool:
    """Whether a column holds the values of a type as they are; one that is too large or too long is refused by its row."""
    plain = plain_type(arrow_type)
    if pt.is_null(plain):
        return True
    if pt.is_nested(plain):
        is_json = isinstance(column, sa.JSON) and dialect in ("postgresql", "duckdb")
        return is_json or _keeps_text(column, dialect)
    for is_kind, fits in _FITS:
        if is_kind(plain):
            return fits(column, plain, dialect)
    return False


def _keeps_integer(column: Type, _plain: pa.DataType, _dialect: str) -> bool:
    if isinstance(column, sa.Float):
        return False
    if isinstance(column, sa.Numeric):
        return column.scale is None or column.scale >= 0
    return isinstance(column, sa.Integer)


def _keeps_decimal(column: Type, plain: pa.DataType, dialect: str) -> bool:
    if isinstance(column, sa.Float) or not isinstance(column, sa.Numeric):
        return isinstance(column, sa.Integer) and plain.scale <= 0
    # Without precision and scale, Postgres keeps every digit; others have a default scale of 0, but Oracle.
    if column.scale is None:
        return dialect in ("postgresql", "oracle") or plain.scale <= 0
    return bool(column.scale >= plain.scale)


def _keeps_float(column: Type, plain: pa.DataType, dialect: str) -> bool:
    if dialect == "oracle":
        return isinstance(column, oracle.BINARY_DOUBLE)
    single = isinstance(column, sa.REAL) or (isinstance(column, sa.Float) and (column.precision or 53) <= 24)
    return isinstance(column, sa.Float) and (not single or plain.bit_width <= 32)


def _keeps_bool(column: Type, plain: pa.DataType, dialect: str) -> bool:
    return isinstance(column, sa.Boolean) or (dialect == "oracle" and _keeps_integer(column, plain, dialect))


def _keeps_text(column: Type, dialect: str) -> bool:
    if not isinstance(column, sa.String) or isinstance(column, sa.CHAR | sa.NCHAR | sa.Enum):
        return False  # CHAR adds blanks
    unicode = isinstance(column, sa.NVARCHAR | mssql.NTEXT) or "UTF8" in (column.collation or "").upper()
    return unicode or dialect != "mssql"


def _keeps_bytes(column: Type, _plain: pa.DataType, _dialect: str) -> bool:
    return isinstance(column, sa.LargeBinary | sa.VARBINARY | oracle.RAW)


def _keeps_timestamp(column: Type, plain: pa.DataType, dialect: str) -> bool:
    zoned = bool(getattr(column, "timezone", False)) or isinstance(column, mssql.DATETIMEOFFSET)
    if not isinstance(column, sa.DateTime) or zoned != bool(plain.tz) or not _is_precise(column):
        return False
    if dialect == "mssql":
        return isinstance(column, mssql.DATETIME2 | mssql.DATETIMEOFFSET)
    return dialect != "oracle" or isinstance(column, sa.TIMESTAMP)


def _keeps_date(column: Type, _plain: pa.DataType, dialect: str) -> bool:
    return isinstance(column, sa.Date) or (dialect == "oracle" and isinstance(column, oracle.DATE))


def _keeps_time(column: Type, _plain: pa.DataType, _dialect: str) -> bool:
    return isinstance(column, sa.Time) and not getattr(column, "timezone", False) and _is_precise(column)


def _is_precise(column: Type) -> bool:
    precision = getattr(column, "precision", None)
    return precision is None or precision >= MICROSECONDS


_Fits = Callable[[Any, pa.DataType, str], bool]
_SUPPORTED = (
    *(pt.is_integer, pt.is_boolean, pt.is_floating, is_text, is_bytes),
    *(pt.is_timestamp, pt.is_date, pt.is_time, pt.is_null),
)
_MADE: tuple[tuple[Callable[[pa.DataType], bool], Type], ...] = (
    (lambda kind: pt.is_int8(kind) or pt.is_int16(kind) or pt.is_uint8(kind), sa.SmallInteger()),
    (lambda kind: pt.is_int32(kind) or pt.is_uint16(kind), sa.Integer()),
    (lambda kind: pt.is_int64(kind) or pt.is_uint32(kind), sa.BigInteger()),
    (pt.is_uint64, sa.Numeric(20, 0)),
    (pt.is_floating, DOUBLE),
    (pt.is_boolean, sa.Boolean()),
    (is_bytes, BYTES),
    (pt.is_date, DATE),
    (pt.is_time, TIME),
    (lambda _kind: True, TEXT),
)
_FITS: tuple[tuple[Callable[[pa.DataType], bool], _Fits], ...] = (
    (pt.is_boolean, _keeps_bool),
    (pt.is_integer, _keeps_integer),
    (pt.is_decimal, _keeps_decimal),
    (pt.is_floating, _keeps_float),
    (is_text, lambda column, _plain, dialect: _keeps_text(column, dialect)),
    (is_bytes, _keeps_bytes),
    (pt.is_timestamp, _keeps_timestamp),
    (pt.is_date, _keeps_date),
    (pt.is_time, _keeps_time),
)
