"""What a table must be like for a sync, and the DDL that makes it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS, inexact_types, no_full_load, unfilled_column, unmapped_key
from dbt_reverse_etl.sinks.sql.mysql.catalog import BASE_TABLE, Column, Name, Table, is_name, object_name, quoted
from dbt_reverse_etl.sinks.sql.mysql.record import ENGINE
from dbt_reverse_etl.sinks.sql.mysql.settings import MysqlOptions
from dbt_reverse_etl.sinks.sql.mysql.values import is_supported
from dbt_reverse_etl.values.arrow import is_bytes, is_text, plain_type

_Fits = Callable[[Column, pa.DataType], bool]

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
_LONG_TEXTS = _TEXTS - {"char"}
_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})  # whose texts are told from others without the server
_MICROSECONDS = 6
_KEY_LENGTH = 255  # three such columns fit into an index


def create_table(name: Name, task: SinkTask) -> str:
    """A table for the model's types, with the key as its primary key."""
    fields = [f"{quoted(field.name)} {_created_type(field, task)}" for field in task.schema]
    soft = soft_delete(task)
    if soft:
        fields.append(f"{quoted(soft)} datetime(6)")
    key = ", ".join(map(quoted, task.key))
    texts = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    return f"CREATE TABLE {name.sql} ({', '.join(fields)}, PRIMARY KEY ({key})) ENGINE={ENGINE} {texts}"


def add_column(name: Name, field: pa.Field) -> str:
    """Adds one column for a field."""
    return f"ALTER TABLE {name.sql} ADD COLUMN {quoted(field.name)} {column_type(field.type)}"


def column_type(arrow_type: pa.DataType) -> str:
    """The type of a column that holds every value of an Arrow type."""
    plain = plain_type(arrow_type)
    if pt.is_decimal(plain):
        return f"decimal({max(plain.precision, plain.precision - plain.scale)}, {max(plain.scale, 0)})"
    if pt.is_integer(plain):
        kind = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}[plain.bit_width]
        return kind if pt.is_signed_integer(plain) else f"{kind} unsigned"
    return next(written for is_type, written in _CREATED if is_type(plain))


def _created_type(field: pa.Field, task: SinkTask) -> str:
    plain = plain_type(field.type)
    if field.name in task.key and is_text(plain):
        return f"varchar({_KEY_LENGTH})"
    if field.name in task.key and is_bytes(plain):
        return f"varbinary({_KEY_LENGTH})"
    return column_type(field.type)


_CREATED = (
    (pt.is_nested, "json"),
    (pt.is_boolean, "tinyint(1)"),
    (pt.is_floating, "double"),  # a FLOAT is shown with six digits
    (is_bytes, "longblob"),
    (pt.is_timestamp, "datetime(6)"),
    (pt.is_date, "date"),
    (pt.is_time, "time(6)"),
    (lambda _kind: True, "longtext"),
)


def soft_delete(task: SinkTask) -> str | None:
    """The column that a delete sets, or None."""
    return task.options.soft_delete if isinstance(task.options, MysqlOptions) else None


def task_problems(task: SinkTask, database: str) -> list[Problem]:
    """What makes a task impossible on any table."""
    where, names, found = f"sync {task.sync}", list(task.schema.names), list[Problem]()
    name = object_name(task.object, database)
    if name is None or name.name.startswith(OURS):
        expected = "table, database.table or `quoted`.name of at most 64 characters a part, not a reserved one"
        found.append(Problem(f"{where}, object", repr(task.object), expected, "choose another object"))
    found += unmapped_key(task)
    if len({name.lower() for name in names}) < len(names) or not all(map(is_name, names)):
        expected = "different names of 1 to 64 characters, also without upper and lower case"
        found.append(Problem(f"{where}, fields", str(names), expected, "rename a field under `fields:`"))
    found += inexact_types(task, "MySQL", is_supported)
    nested = [key for key in task.key if key in names and pt.is_nested(plain_type(task.schema.field(key).type))]
    found += [
        Problem(f"{where}, key", f"{key}, of a nested type", "plain types", "choose another key") for key in nested
    ]
    soft = soft_delete(task)
    if soft and (task.mode is not Mode.MIRROR or soft.lower() in map(str.lower, names)):
        expected = "a column that is no field, and mode: mirror"
        found.append(Problem(f"{where}, options.soft_delete", soft, expected, "change the option or the mode"))
    return found + no_full_load(task, soft)


def missing_fields(table: Table, task: SinkTask) -> list[pa.Field]:
    """Fields without a column."""
    return [field for field in task.schema if table.column(field.name) is None]


def table_problems(table: Table, name: Name, task: SinkTask) -> list[Problem]:
    """What of a table does not fit a task."""
    where = f"sync {task.sync}, object {name}"
    if table.kind != BASE_TABLE:
        return [Problem(where, "no table (a view?)", "a table", "name the table that holds the rows")]
    if table.engine != ENGINE:
        found, next_step = (
            f"the engine {table.engine}, without transactions",
            f"run: ALTER TABLE {name.sql} ENGINE={ENGINE}",
        )
        return [Problem(where, found, ENGINE, next_step)]
    problems = [problem for field in task.schema for problem in _field_problems(where, field, table, name, task)]
    problems += _soft_problems(where, table, task)
    if task.mode is not Mode.UPDATE_ONLY:
        problems += _unmapped_problems(where, table, task)
    return problems + _key_problems(where, table, name, task.key)


def _unmapped_problems(where: str, table: Table, task: SinkTask) -> list[Problem]:
    mapped = {field.lower() for field in task.schema.names}
    return [
        unfilled_column(where, column.name)
        for lower, column in table.columns.items()
        if column.required and lower not in mapped
    ]


def _soft_problems(where: str, table: Table, task: SinkTask) -> list[Problem]:
    soft = soft_delete(task)
    column = table.column(soft) if soft else None
    if soft is None or (column and column.nullable and column.kind in ("datetime", "timestamp")):
        return []
    found = f"no column {soft} of type DATETIME or TIMESTAMP that takes NULL"
    next_step = f"run: ALTER TABLE ... ADD COLUMN {quoted(soft)} datetime(6)"
    return [Problem(where, found, "one for soft_delete", next_step)]


def _key_problems(where: str, table: Table, name: Name, key: Sequence[str]) -> list[Problem]:
    if frozenset(map(str.lower, key)) in table.unique.values():
        return []
    make = f"ALTER TABLE {name.sql} ADD UNIQUE ({', '.join(map(quoted, key))})"
    found = f"no unique index over {', '.join(key)} alone, of whole columns"
    return [Problem(where, found, "one, so that a key is one row", f"run: {make}")]


def _field_problems(where: str, field: pa.Field, table: Table, name: Name, task: SinkTask) -> list[Problem]:
    column = table.column(field.name)
    if column is None:
        return [Problem(where, f"no column {field.name}", "a column for each field", f"run: {add_column(name, field)}")]
    if column.generated:
        return [Problem(where, f"{column.name} is a generated column", "a column to write", "leave the field out")]
    if column.counts and field.name not in task.key:
        found = f"{column.name} is AUTO_INCREMENT and no key, and would replace NULL"
        return [Problem(where, found, "a column to write", "leave the field out")]
    if column.charset is not None and column.charset not in _CHARSETS and is_text(plain_type(field.type)):
        found = f"column {column.name} of character set {column.charset}, which cannot hold every text"
        return [Problem(where, found, "utf8mb4", f"run: ALTER TABLE {name.sql} CONVERT TO CHARACTER SET utf8mb4")]
    if not _keeps(column, field.type):
        found = f"column {column.name} of type {column.kind}, which changes values of type {field.type}"
        next_step = "change the column, or cast in the model"
        return [Problem(where, found, f"a column of type {column_type(field.type)}", next_step)]
    return []


def _keeps(column: Column, arrow_type: pa.DataType) -> bool:
    """Whether a column can hold values of a type as they are; one that is too long or too large is refused by its row."""
    plain = plain_type(arrow_type)
    if pt.is_null(plain):
        return True
    if pt.is_nested(plain):
        return column.kind in _LONG_TEXTS
    return any(is_type(plain) and fits(column, plain) for is_type, fits in _FITS)


def _keeps_integer(column: Column, plain: pa.DataType) -> bool:
    if column.kind == "decimal" or column.kind in _INTEGERS or column.kind in _LONG_TEXTS - {"json"}:
        return True
    bits = {"float": 16, "double": 32}.get(column.kind, 0)
    return column.scale is None and plain.bit_width <= bits


def _keeps_decimal(column: Column, plain: pa.DataType) -> bool:
    if column.kind in _LONG_TEXTS - {"json"}:
        return True
    return column.kind == "decimal" and column.scale is not None and column.scale >= plain.scale


def _keeps_bytes(column: Column, _plain: pa.DataType) -> bool:
    return column.is_binary


def _is(*kinds: str) -> _Fits:
    return lambda column, _plain: column.kind in kinds


def _floats(*kinds: str) -> _Fits:
    return lambda column, _plain: column.kind in kinds and column.scale is None


def _precise(*kinds: str) -> _Fits:
    return lambda column, _plain: column.kind in kinds and column.precision == _MICROSECONDS


def _keeps_timestamp(column: Column, plain: pa.DataType) -> bool:
    kinds = ("datetime", "timestamp") if plain.tz else ("datetime",)
    return _precise(*kinds)(column, plain)


_FITS: tuple[tuple[Callable[[pa.DataType], bool], _Fits], ...] = (
    (pt.is_boolean, _is("tinyint")),
    (pt.is_integer, _keeps_integer),
    (lambda kind: pt.is_float16(kind) or pt.is_float32(kind), _floats("float", "double")),
    (pt.is_floating, _floats("double")),
    (pt.is_decimal, _keeps_decimal),
    (is_text, _is(*_TEXTS)),
    (is_bytes, _keeps_bytes),
    (pt.is_timestamp, _keeps_timestamp),
    (pt.is_date, _is("date", "datetime")),
    (pt.is_time, _precise("time")),
)
