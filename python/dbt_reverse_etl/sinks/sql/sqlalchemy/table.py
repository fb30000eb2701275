"""The object of a sync as SQLAlchemy's inspector sees it, what of it does not fit a task, and the DDL that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateTable

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS, inexact_types, unfilled_column, unmapped_key
from dbt_reverse_etl.sinks.sql.sqlalchemy.types import Type, column_type, is_supported, keeps
from dbt_reverse_etl.values.arrow import plain_type


@dataclass(frozen=True)
class Name:
    """A table with its schema; None: that of the connection."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        required: an insert that does not name it fails.
        computed: it cannot be written.
    """

    name: str
    type: Type
    required: bool
    computed: bool


@dataclass(frozen=True)
class Table:
    """An object that is there.

    Attributes:
        columns: by name in lower case.
        unique: the columns of each unique constraint and index, in lower case.
        names: of constraints, indexes and columns, which a reason may show.
    """

    columns: dict[str, Column]
    unique: frozenset[frozenset[str]]
    names: frozenset[str]

    def mapped(self, name: Name, task: SinkTask) -> sa.Table:
        """The columns of the fields, in their order, for statements."""
        found = [self.columns[field.lower()] for field in task.schema.names]
        columns = [sa.Column(column.name, column.type) for column in found]
        return sa.Table(name.table, sa.MetaData(), *columns, schema=name.schema)

    def key(self, task: SinkTask) -> list[str]:
        """The columns of the key."""
        return [self.columns[field.lower()].name for field in task.key]


def object_name(text: str) -> Name | None:
    """`table`, `schema.table`, for SQL Server also `database.schema.table`; None for anything else."""
    schema, _, table = text.rpartition(".")
    parts = text.split(".")
    return Name(schema or None, table) if all(parts) and "\0" not in text and len(parts) <= 3 else None


def exists(connection: Connection, name: Name) -> bool:
    """Whether the object is there."""
    return sa.inspect(connection).has_table(name.table, name.schema)


def read_table(connection: Connection, name: Name) -> Table | None:
    """The object as it is now, or None."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(name.table, name.schema):
        return None
    columns = {column["name"].lower(): _column(column) for column in inspector.get_columns(name.table, name.schema)}
    primary = inspector.get_pk_constraint(name.table, name.schema)
    indexes = inspector.get_indexes(name.table, name.schema)
    constraints = inspector.get_unique_constraints(name.table, name.schema) if _has_constraints(connection) else []
    checks = _checks(connection, inspector, name)
    # An index over an expression or over some rows has None among its columns, or a condition.
    whole = [
        index for index in indexes if index["unique"] and None not in index["column_names"] and not _partial(index)
    ]
    keys: list[Sequence[Any]] = [primary["constrained_columns"]]
    keys += [*(one["column_names"] for one in constraints), *(index["column_names"] for index in whole)]
    unique = frozenset(frozenset(str(column).lower() for column in key) for key in keys if key)
    named = [primary.get("name"), *(one.get("name") for one in (*constraints, *indexes, *checks))]
    names = frozenset(str(one) for one in named if one) | {column.name for column in columns.values()}
    return Table(columns, unique, names)


def _column(found: Any) -> Column:
    counts = bool(found.get("identity")) or found.get("autoincrement") is True
    filled = found["default"] is not None or counts or bool(found.get("computed"))
    # SQL Server takes no value for an identity column, and its dialect does not say `always`.
    always = counts and bool((found.get("identity") or {"always": False}).get("always", True))
    return Column(
        found["name"], found["type"], not found["nullable"] and not filled, bool(found.get("computed")) or always
    )


def _partial(index: Any) -> bool:
    return any(name.endswith("_where") and value for name, value in index.get("dialect_options", {}).items())


def _has_constraints(connection: Connection) -> bool:
    return connection.dialect.name != "mssql"  # whose dialect shows them as indexes alone


def _checks(connection: Connection, inspector: sa.Inspector, name: Name) -> list[Any]:
    if connection.dialect.name == "mssql":
        return []
    return [
        *inspector.get_check_constraints(name.table, name.schema),
        *inspector.get_foreign_keys(name.table, name.schema),
    ]


def task_problems(task: SinkTask, dialect: str) -> list[Problem]:
    """What makes a task impossible on any table of a dialect."""
    where, names = f"sync {task.sync}", list(task.schema.names)
    found: list[Problem] = []
    name = object_name(task.object)
    if name is None or name.table.startswith(OURS):
        expected = "table or schema.table, without further dots, and not a reserved name"
        found.append(Problem(f"{where}, object", repr(task.object), expected, "choose another object"))
    found += unmapped_key(task)
    if len({field.lower() for field in names}) < len(names) or any(not field or "\0" in field for field in names):
        expected = "different names, also without upper and lower case"
        found.append(Problem(f"{where}, fields", str(names), expected, "rename a field under `fields:`"))
    for key in task.key:
        kind = plain_type(task.schema.field(key).type) if key in names else pa.int64()
        # Drivers of Oracle give a date with a time, and an instant without its zone.
        changed = dialect == "oracle" and (pt.is_date(kind) or (pt.is_timestamp(kind) and kind.tz))
        if pt.is_nested(kind) or pt.is_floating(kind) or changed:
            expected = "a type that is compared exactly"
            found.append(Problem(f"{where}, key", f"{key}, of the type {kind}", expected, "choose another key"))
    return found + inexact_types(task, dialect, lambda kind: is_supported(kind, dialect))


def table_problems(table: Table, name: Name, task: SinkTask, dialect: Dialect) -> list[Problem]:
    """What of a table does not fit a task."""
    where = f"sync {task.sync}, object {name}"
    problems = [problem for field in task.schema for problem in _field_problems(where, field, table, dialect)]
    if task.mode is not Mode.UPDATE_ONLY:
        mapped = {field.lower() for field in task.schema.names}
        unmapped = [column for lower, column in table.columns.items() if lower not in mapped]
        problems += [unfilled_column(where, column.name) for column in unmapped if column.required]
    if frozenset(field.lower() for field in task.key) not in table.unique:
        quote = dialect.identifier_preparer.quote
        make = f"ALTER TABLE {name} ADD UNIQUE ({', '.join(map(quote, task.key))})"
        found = f"no primary key, unique constraint or unique index over {', '.join(task.key)} alone"
        problems.append(Problem(where, found, "one, so that a key is one row", f"run: {make}"))
    return problems


def _field_problems(where: str, field: pa.Field, table: Table, dialect: Dialect) -> list[Problem]:
    column, wanted = table.columns.get(field.name.lower()), column_type(field.type).compile(dialect)
    if column is None:
        return [Problem(where, f"no column {field.name}", "a column for each field", f"add one of type {wanted}")]
    if column.computed:
        return [Problem(where, f"{column.name} is a generated column", "a column to write", "leave the field out")]
    if not keeps(column.type, field.type, dialect.name):
        kind = type(column.type).__name__
        found = f"column {column.name} of type {kind}, which changes values of type {field.type}"
        return [Problem(where, found, f"a column of type {wanted}", "change the column, or cast in the model")]
    return []


def new_table(name: Name, task: SinkTask) -> sa.Table:
    """A table for the model's types, with the key as its primary key."""
    columns = [
        sa.Column(
            field.name,
            column_type(field.type, in_key=field.name in task.key),
            primary_key=field.name in task.key,
            autoincrement=False,
        )
        for field in task.schema
    ]
    return sa.Table(name.table, sa.MetaData(), *columns, schema=name.schema)


def create_table(name: Name, task: SinkTask, dialect: Dialect) -> str:
    """The DDL, in one line."""
    return " ".join(str(CreateTable(new_table(name, task)).compile(dialect=dialect)).split())
