"""What a table must be like for a sync, and the DDL that makes it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pt
from psycopg import sql

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS, inexact_types, no_full_load, unfilled_column, unmapped_key
from dbt_reverse_etl.sinks.sql.postgres.catalog import Column, Name, Table, object_name
from dbt_reverse_etl.sinks.sql.postgres.settings import LONGEST_NAME, PostgresOptions
from dbt_reverse_etl.sinks.sql.postgres.values import is_supported
from dbt_reverse_etl.values.arrow import is_bytes, is_list, is_text, plain_type

_Fits = Callable[[Column, pa.DataType], bool]

TABLE_KINDS = ("r", "p")
_EXACT_TEXTS = frozenset({"text", "varchar"})
# Types of Postgres that a text may be cast to without losing anything of it; json and the like may show it in another spelling.
_FROM_TEXT = _EXACT_TEXTS | {"bpchar", "uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8"}
# Of other types: categories of texts (citext) and enums.
_OTHER_FROM_TEXT = frozenset("SE")
_MICROSECONDS = 6
_VARCHAR, _HEADER = Name("pg_catalog", "varchar"), 4  # the modifier of varchar(n) is n + 4


def create_table(name: Name, task: SinkTask) -> sql.Composed:
    """A table for the model's types, with the key as its primary key."""
    fields = [sql.SQL("{} {}").format(sql.Identifier(field.name), column_type(field.type)) for field in task.schema]
    soft = soft_delete(task)
    if soft:
        fields.append(sql.SQL("{} timestamptz").format(sql.Identifier(soft)))
    key = sql.SQL(", ").join(map(sql.Identifier, task.key))
    return sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(name.sql, sql.SQL(", ").join(fields), key)


def add_column(name: Name, field: pa.Field) -> sql.Composed:
    """Adds one column for a field."""
    column = sql.Identifier(field.name)
    return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(name.sql, column, column_type(field.type))


def column_type(arrow_type: pa.DataType) -> sql.SQL | sql.Composed:
    """The type of a column that holds every value of an Arrow type."""
    plain = plain_type(arrow_type)
    if pt.is_decimal(plain):
        return sql.SQL("numeric({}, {})").format(sql.Literal(plain.precision), sql.Literal(plain.scale))
    if pt.is_timestamp(plain):
        return sql.SQL("timestamptz") if plain.tz else sql.SQL("timestamp")
    return next(written for is_type, written in _CREATED if is_type(plain))


_CREATED = (
    (pt.is_nested, sql.SQL("jsonb")),
    (pt.is_uint64, sql.SQL("numeric(20, 0)")),
    (lambda kind: pt.is_int64(kind) or pt.is_uint32(kind), sql.SQL("bigint")),
    (lambda kind: pt.is_int32(kind) or pt.is_uint16(kind), sql.SQL("integer")),
    (pt.is_integer, sql.SQL("smallint")),
    (pt.is_boolean, sql.SQL("boolean")),
    (lambda kind: pt.is_float32(kind) or pt.is_float16(kind), sql.SQL("real")),
    (pt.is_floating, sql.SQL("double precision")),
    (is_bytes, sql.SQL("bytea")),
    (pt.is_date, sql.SQL("date")),
    (pt.is_time, sql.SQL("time")),
    (lambda _kind: True, sql.SQL("text")),
)


def soft_delete(task: SinkTask) -> str | None:
    """The column that a delete sets, or None."""
    return task.options.soft_delete if isinstance(task.options, PostgresOptions) else None


def lengths(table: Table, task: SinkTask) -> dict[str, int]:
    """Field -> characters that its column of varchar(n) takes. Postgres refuses more, but drops blanks at the end silently."""
    columns = {field.name: table.columns[field.name] for field in task.schema if _holds_texts(plain_type(field.type))}
    return {
        name: column.modifier - _HEADER
        for name, column in columns.items()
        if _VARCHAR in (column.type, column.element) and column.modifier >= _HEADER
    }


def _holds_texts(plain: pa.DataType) -> bool:
    return is_text(plain_type(plain.value_type) if is_list(plain) else plain)


def merges_texts(field: pa.Field, column: Column) -> bool:
    """Whether two different texts may be equal in a column (citext, uuid, char(n), a nondeterministic collation)."""
    exact = column.type.name in _EXACT_TEXTS and column.type.schema == "pg_catalog" and column.deterministic
    return is_text(plain_type(field.type)) and not exact


def task_problems(task: SinkTask) -> list[Problem]:
    """What makes a task impossible on any table."""
    where, names, found = f"sync {task.sync}", list(task.schema.names), list[Problem]()
    name = object_name(task.object)
    if name is None or name.name.startswith(OURS):
        expected = 'table, schema.table or "quoted".name of at most 63 bytes a part, not a reserved one'
        found.append(Problem(f"{where}, object", repr(task.object), expected, "choose another object"))
    found += unmapped_key(task)
    if len(set(names)) < len(names) or not all(map(_is_name, names)):
        expected = "different names of 1 to 63 bytes"
        found.append(Problem(f"{where}, fields", str(names), expected, "rename a field under `fields:`"))
    found += inexact_types(task, "Postgres", is_supported)
    soft = soft_delete(task)
    if soft and (task.mode is not Mode.MIRROR or soft in names):
        expected = "a column that is no field, and mode: mirror"
        found.append(Problem(f"{where}, options.soft_delete", soft, expected, "change the option or the mode"))
    return found + no_full_load(task, soft)


def _is_name(name: str) -> bool:
    return 0 < len(name.encode()) <= LONGEST_NAME and "\0" not in name


def missing_fields(table: Table, task: SinkTask) -> list[pa.Field]:
    """The fields without a column."""
    return [field for field in task.schema if field.name not in table.columns]


def table_problems(table: Table, name: Name, task: SinkTask) -> list[Problem]:
    """What an existing object lacks for this task."""
    where = f"sync {task.sync}, object {name}"
    if table.kind not in TABLE_KINDS:
        return [Problem(where, "no table (a view or foreign table?)", "a table", "name the table that holds the rows")]
    problems = [problem for field in task.schema for problem in _field_problems(where, field, table, name)]
    problems += _soft_problems(where, table, task)
    if task.mode is not Mode.UPDATE_ONLY:
        problems += _unmapped_problems(where, table, task)
    return problems + _key_problems(where, table, name, task.key)


def _unmapped_problems(where: str, table: Table, task: SinkTask) -> list[Problem]:
    return [
        unfilled_column(where, column.name)
        for column in table.columns.values()
        if column.required and column.name not in task.schema.names
    ]


def _soft_problems(where: str, table: Table, task: SinkTask) -> list[Problem]:
    soft = soft_delete(task)
    column = table.columns.get(soft) if soft else None
    if soft is None or (column and column.nullable and column.type.name in ("timestamptz", "timestamp")):
        return []
    found = f"no column {soft} of a timestamp type that takes NULL"
    return [Problem(where, found, "one for soft_delete", f"run: ALTER TABLE ... ADD COLUMN {soft} timestamptz")]


def _key_problems(where: str, table: Table, name: Name, key: Sequence[str]) -> list[Problem]:
    if frozenset(key) in table.unique:
        return []
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    make = sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(name.sql, columns).as_string(None)
    found = f"no unique index over {', '.join(key)} alone, that holds for all rows and is not deferrable"
    return [Problem(where, found, "one, so that a key is one row", f"run: {make}")]


def _field_problems(where: str, field: pa.Field, table: Table, name: Name) -> list[Problem]:
    column = table.columns.get(field.name)
    if column is None:
        next_step = f"run: {add_column(name, field).as_string(None)}"
        return [Problem(where, f"no column {field.name}", "a column for each field", next_step)]
    if not column.writable:
        found = f"{column.name} is a generated column or GENERATED ALWAYS AS IDENTITY"
        return [Problem(where, found, "a column to write", "leave the field out, or make it GENERATED BY DEFAULT")]
    if not _keeps(column, field.type):
        found = f"column {column.name} of type {column.type.name}, which changes values of type {field.type}"
        expected = f"a column of type {column_type(field.type).as_string(None)}"
        return [Problem(where, found, expected, "change the column, or cast in the model")]
    return []


def _keeps(column: Column, arrow_type: pa.DataType) -> bool:
    """Whether a column can hold values of a type as they are; one that is too long or too large is refused by the table."""
    kind, plain = column.type.name, plain_type(arrow_type)
    if pt.is_nested(plain):
        return kind in ("jsonb", "json", "text", "varchar") or _keeps_elements(column, plain)
    if pt.is_null(plain):
        return True
    if is_text(plain):
        return kind in _FROM_TEXT if column.type.schema == "pg_catalog" else column.category in _OTHER_FROM_TEXT
    return any(is_type(plain) and fits(column, plain) for is_type, fits in _FITS)


def _keeps_elements(column: Column, plain: pa.DataType) -> bool:
    if not is_list(plain) or column.element is None or column.element_category is None:
        return False
    inner = plain_type(plain.value_type)
    if pt.is_nested(inner) or is_bytes(inner):
        return False
    return _keeps(replace(column, type=column.element, category=column.element_category, element=None), inner)


def _keeps_integer(column: Column, plain: pa.DataType) -> bool:
    kind = column.type.name
    if kind == "numeric":
        return (_scale(column) or 0) >= 0
    small = plain.bit_width <= (32 if kind == "float8" else 16)
    return kind in ("int2", "int4", "int8") or kind in _EXACT_TEXTS or (kind in ("float4", "float8") and small)


def _keeps_decimal(column: Column, plain: pa.DataType) -> bool:
    if column.type.name in _EXACT_TEXTS:
        return True
    scale = _scale(column)
    return column.type.name == "numeric" and (scale is None or scale >= plain.scale)


def _scale(column: Column) -> int | None:
    """Digits after the point of numeric(p, s): 11 bits with a sign. None: any number of them."""
    return None if column.modifier < 0 else (((column.modifier - 4) & 0x7FF) ^ 1024) - 1024


def _is(*names: str) -> _Fits:
    return lambda column, _plain: column.type.name in names


def _precise(*names: str) -> _Fits:
    return lambda column, _plain: column.type.name in names and column.modifier in (-1, _MICROSECONDS)


def _keeps_timestamp(column: Column, plain: pa.DataType) -> bool:
    return _precise("timestamptz" if plain.tz else "timestamp")(column, plain)


_FITS: tuple[tuple[Callable[[pa.DataType], bool], _Fits], ...] = (
    (pt.is_boolean, _is("bool")),
    (pt.is_integer, _keeps_integer),
    (lambda kind: pt.is_float16(kind) or pt.is_float32(kind), _is("float4", "float8")),
    (pt.is_floating, _is("float8")),
    (pt.is_decimal, _keeps_decimal),
    (is_bytes, _is("bytea")),
    (pt.is_timestamp, _keeps_timestamp),
    (pt.is_date, lambda column, _plain: column.type.name in ("date", "timestamp")),
    (pt.is_time, _precise("time")),
)
