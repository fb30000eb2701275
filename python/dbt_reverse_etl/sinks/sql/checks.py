"""What a table must be like for a sync, and the DDL that makes it so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.refusals import unmapped_key
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.table import OURS, Name, Table, Wrong, soft_delete

MOMENT = pa.timestamp("us", "UTC")


def task_problems(task: SinkTask, dialect: Dialect) -> list[Problem]:
    """What makes a task impossible on any table."""
    where, names, found = f"sync {task.sync}", list(task.schema.names), list[Problem]()
    name, expected = dialect.object_name(task.object), f"{dialect.object_form}, not a reserved one"
    if name is None or dialect.fold(name.name).startswith((OURS, *dialect.reserved)):
        found.append(Problem(f"{where}, object", repr(task.object), expected, "choose another object"))
    found += unmapped_key(task)
    if len({dialect.fold(field) for field in names}) < len(names) or not all(map(dialect.is_name, names)):
        found.append(Problem(f"{where}, fields", str(names), dialect.name_form, "rename a field under `fields:`"))
    expected, next_step = f"a type that {dialect.name} can hold exactly", "cast the column in the model"
    found += [
        Problem(f"{where}, field {field.name}", f"the type {field.type}", expected, next_step)
        for field in task.schema
        if not dialect.is_supported(field.type)
    ]
    for key in task.key:
        kind = task.schema.field(key).type if key in names else pa.int64()
        if pt.is_nested(kind) or pt.is_floating(kind):
            said = "a nested type" if pt.is_nested(kind) else f"the type {kind}"
            expected = "a type that is compared exactly"
            found.append(Problem(f"{where}, key", f"{key}, of {said}", expected, "choose another key"))
    return found + _soft_delete_problems(task, dialect)


def _soft_delete_problems(task: SinkTask, dialect: Dialect) -> list[Problem]:
    soft = soft_delete(task)
    names = {dialect.fold(name) for name in task.schema.names}
    if soft is None or (task.mode is Mode.MIRROR and dialect.fold(soft) not in names):
        return []
    expected = "a column that is no field, and mode: mirror"
    where = f"sync {task.sync}, options.soft_delete"
    return [Problem(where, soft, expected, "change the option or the mode")]


def other_case(connection: Any, name: Name, dialect: Dialect) -> Wrong | None:
    """What is wrong if the object is not there, and a table with its name in another case is."""
    there = None if dialect.exists(connection, name) else dialect.name_in_other_case(connection, name)
    if there is None:
        return None
    other = replace(name, name=there)
    written = str(other) if dialect.object_name(str(other)) == other else replace(other, catalog=None).sql
    next_step = f"write object: {written}; or make {name} yourself, if both are meant"
    return f"no table {name}, but {other}", "an existing table", next_step


def missing_fields(table: Table, task: SinkTask, dialect: Dialect) -> list[pa.Field]:
    """The fields that have no column."""
    return [field for field in task.schema if dialect.fold(field.name) not in table.columns]


def fields_to_add(table: Table, task: SinkTask, dialect: Dialect) -> list[pa.Field]:
    """Those of them that are no column in another spelling."""
    return [field for field in missing_fields(table, task, dialect) if not _in_other_case(field, table, task, dialect)]


def _in_other_case(field: pa.Field, table: Table, task: SinkTask, dialect: Dialect) -> str | None:
    """A column whose name differs in case alone, and which no field has."""
    of_fields = {dialect.fold(name) for name in task.schema.names}
    free = (column.name for folded, column in table.columns.items() if folded not in of_fields)
    return next((name for name in free if name.lower() == field.name.lower()), None)


def table_problems(table: Table, name: Name, task: SinkTask, dialect: Dialect) -> list[Problem]:
    """What an existing object lacks for this task, as far as its fields are known."""
    where = f"sync {task.sync}, object {name}"
    deletes = task.mode.deletes and soft_delete(task) is None
    if found := table.wrong or (table.wrong_deletes if deletes else None):
        return [Problem(where, *found)]
    wrong = [_field_problem(field, table, name, task, dialect) for field in task.schema]
    wrong += [_soft_problem(table, name, task, dialect), _key_problem(table, name, task, dialect)]
    if task.mode is not Mode.UPDATE_ONLY and task.known != "key":
        filled = {dialect.fold(field) for field in task.schema.names} | table.fills
        unfilled = [column for folded, column in table.columns.items() if folded not in filled]
        wrong += [_unfilled(column.name, table) for column in unfilled if column.required]
    return [Problem(where, *one) for one in wrong if one]


def _unfilled(column: str, table: Table) -> Wrong:
    found, expected = f"column {column} is NOT NULL, has no default and is not mapped", "a value for each such column"
    of_trigger = ", or name it in the function of the trigger that fills it" if table.looked_for_fills else ""
    return found, expected, f"map a column to {column}, or give it a default{of_trigger}"


def _soft_problem(table: Table, name: Name, task: SinkTask, dialect: Dialect) -> Wrong | None:
    soft = soft_delete(task)
    if soft is None:
        return None
    column = table.columns.get(dialect.fold(soft))
    if column and column.nullable and column.kind in dialect.moment_types:
        return None
    found = f"no column {soft} of a timestamp type that takes NULL"
    return found, "one for soft_delete", f"run: {add_column(dialect, name, pa.field(soft, MOMENT))}"


def _key_problem(table: Table, name: Name, task: SinkTask, dialect: Dialect) -> Wrong | None:
    if frozenset(map(dialect.fold, task.key)) in table.unique:
        return None
    columns = ", ".join(map(dialect.indexed, task.key))
    found = f"no unique index over {', '.join(task.key)} alone{dialect.key_form}"
    index = dialect.quoted(f"{name.name}_key")
    return found, "one, so that a key is one row", f"run: CREATE UNIQUE INDEX {index} ON {name.sql} ({columns})"


def _field_problem(field: pa.Field, table: Table, name: Name, task: SinkTask, dialect: Dialect) -> Wrong | None:
    column = table.columns.get(dialect.fold(field.name))
    knows_type = task.known == "types"
    if column is None:
        other = _in_other_case(field, table, task, dialect)
        if other:
            return f"no column {field.name}, but {other}", "a column for each field", f"write {other} under `fields:`"
        next_step = f"run: {add_column(dialect, name, field)}" if knows_type else "add it"
        is_added = dialect.adds_columns and not knows_type
        return None if is_added else (f"no column {field.name}", "a column for each field", next_step)
    # An update that has more fields than the key only looks for it.
    has_more = task.known == "key" or {*task.schema.names} > {*task.key}
    only_found = task.mode is Mode.UPDATE_ONLY and field.name in task.key and has_more
    if not column.writable and not only_found:
        found = f"{column.name} is a generated column or GENERATED ALWAYS AS IDENTITY"
        return found, "a column to write", "leave the field out"
    if not knows_type:
        return None
    wrong = dialect.column_problem(column, field, task, name)
    if wrong or dialect.kind(field.type).fits(column, field.type):
        return wrong
    found = f"column {column.name} of type {column.declared or column.kind or 'none'}, which changes values of type {field.type}"
    kind, *_ = dialect.column_type(field.type).split(" CHARACTER SET ")  # another one does as well
    expected = f"a column of type {kind}"
    return found, expected, "change the column, or cast in the model"


def create_table(dialect: Dialect, name: Name, task: SinkTask) -> str:
    """A table for the model's types, with the key as its primary key."""
    columns = [_declared(dialect, field, in_key=field.name in task.key) for field in task.schema]
    soft = soft_delete(task)
    if soft:
        columns.append(_declared(dialect, pa.field(soft, MOMENT)))
    key = ", ".join(map(dialect.quoted, task.key))
    return f"CREATE TABLE {name.sql} ({', '.join(columns)}, PRIMARY KEY ({key})){dialect.object_suffix}"


def add_column(dialect: Dialect, name: Name, field: pa.Field) -> str:
    """Adds one column for a field."""
    return f"ALTER TABLE {name.sql} ADD COLUMN {_declared(dialect, field)}"


def _declared(dialect: Dialect, field: pa.Field, *, in_key: bool = False) -> str:
    kind = dialect.column_type(field.type, in_key=in_key)
    return f"{dialect.quoted(field.name)} {kind}{' NOT NULL' if in_key else ''}"
