"""The SQL of one sync on its SQLite table, and what an existing table must be like."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS, inexact_types, unfilled_column, unmapped_key
from dbt_reverse_etl.sinks.sql.sqlite.values import Storage, is_supported, storage_of
from dbt_reverse_etl.values.arrow import is_text, plain_type

EXACT_DIGITS = 15  # SQLite keeps that many when it turns decimal text into REAL


def quote(name: str) -> str:
    """An identifier for SQL text."""
    return '"' + name.replace('"', '""') + '"'


def fold(name: str) -> str:
    """Two identifiers are the same to SQLite if their folded forms are: only ASCII letters lose their case."""
    return name.encode().lower().decode()


@dataclass(frozen=True)
class Statements:
    """The SQL of one sync; `write` takes the fields in the order of the schema, the others take the key.

    Attributes:
        create: makes the table.
        write: inserts or updates one row, as the mode says.
        delete: removes one row.
        exists: finds one row.
        key_at: where the key's fields stand among the fields.
    """

    create: str
    write: str
    delete: str
    exists: str
    key_at: tuple[int, ...]


def statements(task: SinkTask) -> Statements:
    """Render the SQL of a task."""
    names: list[str] = list(task.schema.names)
    table, key_at = quote(task.object), tuple(names.index(name) for name in task.key)
    by_key = _where(task.key, range(len(task.key)))
    return Statements(
        create=_create(task),
        write=_update(task, names) if task.mode is Mode.UPDATE_ONLY else _insert(task, names),
        delete=f"DELETE FROM {table} WHERE {by_key}",  # noqa: S608  (identifiers are quoted, values are bound)
        exists=f"SELECT 1 FROM {table} WHERE {by_key}",  # noqa: S608
        key_at=key_at,
    )


def select(task: SinkTask) -> str:
    """Reads the fields of every row."""
    return f"SELECT {', '.join(map(quote, task.schema.names))} FROM {quote(task.object)}"  # noqa: S608


def _create(task: SinkTask) -> str:
    columns = [
        f"{quote(column.name)} {storage_of(column.type).value}{' NOT NULL' if column.name in task.key else ''}"
        for column in task.schema
    ]
    primary = ", ".join(quote(name) for name in task.key)
    return f"CREATE TABLE {quote(task.object)} ({', '.join(columns)}, PRIMARY KEY ({primary}))"


def _insert(task: SinkTask, names: Sequence[str]) -> str:
    fields, marks = ", ".join(map(quote, names)), ", ".join("?" * len(names))
    others = [name for name in names if name not in task.key] or task.key
    assignments = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in others)
    action = "NOTHING" if task.mode is Mode.INSERT_ONLY else f"UPDATE SET {assignments}"
    # OR ABORT: a table's own `ON CONFLICT REPLACE` would silently remove other rows.
    return (
        f"INSERT OR ABORT INTO {quote(task.object)} ({fields}) VALUES ({marks}) "  # noqa: S608
        f"ON CONFLICT ({', '.join(map(quote, task.key))}) DO {action}"
    )


def _update(task: SinkTask, names: Sequence[str]) -> str:
    at = {name: index for index, name in enumerate(names)}
    others = [name for name in names if name not in task.key] or task.key
    assignments = ", ".join(f"{quote(name)} = ?{at[name] + 1}" for name in others)
    where = _where(task.key, [at[name] for name in task.key])
    return f"UPDATE OR ABORT {quote(task.object)} SET {assignments} WHERE {where}"  # noqa: S608


def _where(key: Sequence[str], positions: Sequence[int]) -> str:
    # COLLATE BINARY: on a NOCASE column, 'A' would also hit the row 'a'.
    tests = (f"{quote(name)} = ?{at + 1} COLLATE BINARY" for name, at in zip(key, positions, strict=True))
    return " AND ".join(tests)


def task_problems(task: SinkTask) -> list[Problem]:
    """What makes a task impossible on any SQLite table."""
    where, names = f"sync {task.sync}", list(task.schema.names)
    found: list[Problem] = []
    if not task.object or "\0" in task.object or fold(task.object).startswith(("sqlite_", OURS)):
        found.append(
            Problem(f"{where}, object", repr(task.object), "a table name that is not reserved", "choose another object")
        )
    found += unmapped_key(task)
    if len({fold(name) for name in names}) < len(names) or any("\0" in name or not name for name in names):
        expected = "names that differ in more than the case of letters"
        found.append(Problem(f"{where}, fields", str(names), expected, "rename a field under `fields:`"))
    return found + inexact_types(task, "SQLite", is_supported)


@dataclass(frozen=True)
class _Column:
    name: str
    declared: str
    required: bool  # an insert that does not name it fails
    writable: bool


def table_problems(connection: sqlite3.Connection, task: SinkTask) -> list[Problem]:
    """What an existing object lacks for this task; reads the schema only."""
    where = f"sync {task.sync}, object {task.object}"
    if _kind(connection, task.object) != "table":
        return [Problem(where, "a view or virtual table", "a table", "name the table that holds the rows")]
    columns = _columns(connection, task.object)
    problems = [problem for field in task.schema for problem in _field_problems(where, field, columns, task.object)]
    if task.mode is not Mode.UPDATE_ONLY:
        mapped = {fold(name) for name in task.schema.names}
        problems += [
            unfilled_column(where, column.name)
            for folded, column in columns.items()
            if column.required and folded not in mapped
        ]
    return problems + _key_problems(where, connection, task)


def object_exists(connection: sqlite3.Connection, name: str) -> bool:
    """Whether a table or view of that name is there."""
    return _kind(connection, name) is not None


def _kind(connection: sqlite3.Connection, name: str) -> str | None:
    query = "SELECT type, sql FROM main.sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return None
    return "virtual" if str(row[1]).upper().startswith("CREATE VIRTUAL") else str(row[0])


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, _Column]:
    query = 'SELECT name, type, "notnull", dflt_value, hidden FROM pragma_table_xinfo(?)'
    rows = connection.execute(query, (table,)).fetchall()
    alias = _rowid_alias(connection, table)
    return {
        fold(name): _Column(
            name,
            declared or "",
            bool(not_null) and default is None and not hidden and fold(name) != alias,
            not hidden,
        )
        for name, declared, not_null, default, hidden in rows
    }


def _rowid_alias(connection: sqlite3.Connection, table: str) -> str | None:
    """The folded name of an INTEGER PRIMARY KEY, the only primary key without an index of its own."""
    if any(origin == "pk" for origin, _ in _unique_indexes(connection, table)):
        return None
    rows = connection.execute("SELECT name FROM pragma_table_xinfo(?) WHERE pk > 0", (table,)).fetchall()
    return fold(rows[0][0]) if rows else None


def _unique_indexes(connection: sqlite3.Connection, table: str) -> list[tuple[str, list[tuple[str | None, str]]]]:
    """(origin, [(folded column or None for an expression, collation)]) of each unique index over all rows."""
    names = 'SELECT name, origin FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
    parts = "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key"
    return [
        (
            origin,
            [(column and fold(column), fold(coll or "")) for column, coll in connection.execute(parts, (index,))],
        )
        for index, origin in connection.execute(names, (table,)).fetchall()
    ]


def _key_problems(where: str, connection: sqlite3.Connection, task: SinkTask) -> list[Problem]:
    key = {fold(name) for name in task.key}
    if key == {_rowid_alias(connection, task.object)}:
        return []
    over_key = [parts for _, parts in _unique_indexes(connection, task.object) if {name for name, _ in parts} == key]
    listed, table = ", ".join(map(quote, task.key)), quote(task.object)
    if not over_key:
        make = f"CREATE UNIQUE INDEX {quote(task.object + '_key')} ON {table} ({listed})"
        return [Problem(where, f"no unique index over {listed}", "one, so that a key is one row", f"run: {make}")]
    if any(collation != "binary" for parts in over_key for _, collation in parts):
        next_step = "declare the key columns without COLLATE, or collate the index BINARY"
        return [Problem(where, f"the unique index over {listed} merges different texts", "COLLATE BINARY", next_step)]
    return []


def _field_problems(where: str, field: pa.Field, columns: dict[str, _Column], table: str) -> list[Problem]:
    column, storage = columns.get(fold(field.name)), storage_of(field.type)
    if column is None:
        add = f"ALTER TABLE {quote(table)} ADD COLUMN {quote(field.name)} {storage.value}"
        return [Problem(where, f"no column {field.name}", "a column for each field", f"run: {add}")]
    if not column.writable:
        return [Problem(where, f"{column.name} is a generated column", "a column to write", "leave the field out")]
    if not _keeps(column.declared, field.type):
        found = f"column {column.name} of type {column.declared or 'none'}, which changes values of type {field.type}"
        return [Problem(where, found, f"a column of type {storage.value}", "change the column, or cast in the model")]
    return []


def _keeps(declared: str, arrow_type: pa.DataType) -> bool:
    """Whether a column's affinity leaves values of a type as they are (dates and JSON never look like numbers)."""
    affinity, plain, storage = _affinity(declared), plain_type(arrow_type), storage_of(arrow_type)
    if affinity is None or storage is Storage.BLOB:
        return True
    if storage is Storage.INTEGER:
        return affinity != "REAL" or plain.bit_width <= 32
    if storage is Storage.REAL:
        return affinity != "TEXT"
    if pt.is_decimal(plain):
        return affinity == "TEXT" or plain.precision <= EXACT_DIGITS
    return affinity == "TEXT" or not is_text(plain)


def _affinity(declared: str) -> str | None:
    """SQLite's rules for the affinity of a declared type, in their order; None: no affinity."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return None
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"
