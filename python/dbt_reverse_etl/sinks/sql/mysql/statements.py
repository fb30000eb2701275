"""The SQL of one sync on its MySQL table. Identifiers are quoted, values come from the staging table.

No statement names the staging table twice: MySQL cannot open a temporary table again.
"""
# ruff: noqa: S608  (identifiers are quoted, and there are no values)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS
from dbt_reverse_etl.sinks.sql.mysql.catalog import Column, Name, Table, quoted
from dbt_reverse_etl.sinks.sql.mysql.record import ENGINE
from dbt_reverse_etl.sinks.sql.mysql.table import soft_delete
from dbt_reverse_etl.sinks.sql.mysql.values import staging_type

Render = Callable[[range], str]
STAGE, TARGET = quoted(f"{OURS}stage"), quoted(f"{OURS}target")


@dataclass(frozen=True)
class Statements:
    """The SQL of one sync.

    Attributes:
        drop_stage, create_stage: the staging table: `row`, `deleted`, then the fields c0, c1, ...
        fill: what stands before staged rows.
        write, delete: make the statement for the staged rows of a range.
        insert: the same as a plain INSERT, which names the unique index that holds a row's value.
        absent: rows of the staged writes whose key is not in the table.
    """

    drop_stage: str
    create_stage: str
    fill: bytes
    write: Render
    delete: Render
    insert: Render
    absent: str


def statements(task: SinkTask, name: Name, table: Table, database: str) -> Statements:
    """Render the SQL of a task on its table; the staging table stands in `database`."""
    columns = {field.name: table.columns[field.name.lower()] for field in task.schema}
    return _Renderer(task, name, table, columns, f"{quoted(database)}.{STAGE}").statements()


@dataclass(frozen=True)
class _Renderer:
    task: SinkTask
    name: Name
    table: Table
    columns: dict[str, Column]
    stage: str

    def statements(self) -> Statements:
        pairs = enumerate(self.task.schema)
        cells = [f"c{index} {staging_type(field.type, self.columns[field.name])}" for index, field in pairs]
        layout = f"`row` INT PRIMARY KEY, deleted TINYINT NOT NULL, {', '.join(cells)}"
        target = f"{self.name.sql} AS {TARGET}"
        return Statements(
            drop_stage=f"DROP TEMPORARY TABLE IF EXISTS {self.stage}",
            create_stage=f"CREATE TEMPORARY TABLE {self.stage} ({layout}) ENGINE={ENGINE}",
            fill=f"INSERT INTO {self.stage} VALUES ".encode(),
            write=self._update if self.task.mode is Mode.UPDATE_ONLY else self._upsert,
            delete=self._delete,
            insert=self._insert,
            absent=f"SELECT {STAGE}.`row` FROM {self.stage} WHERE NOT {STAGE}.deleted "
            f"AND NOT EXISTS (SELECT 1 FROM {target} WHERE {self._match()})",
        )

    def _insert(self, rows: range) -> str:
        names, cells = self._names(), [self._cell(field) for field in self.task.schema.names]
        if soft_delete(self.task):
            cells.append("NULL")
        return (
            f"INSERT INTO {self.name.sql} ({', '.join(map(quoted, names))}) SELECT {', '.join(cells)} "
            f"FROM {self.stage} WHERE NOT {STAGE}.deleted AND {_within(rows)}"
        )

    def _upsert(self, rows: range) -> str:
        return f"{self._insert(rows)} ON DUPLICATE KEY UPDATE {', '.join(self._assignments())}"

    def _assignments(self) -> list[str]:
        """What becomes of a row that is there, first of all that it is the right one."""
        key = self._own(self.task.key[0])
        kept = f"IF({self._guard()}, {key}, {key})" if self._is_guarded() else key
        assigned = [f"{key} = {kept}"]
        if self.task.mode is not Mode.INSERT_ONLY:
            assigned += [f"{self._own(field)} = {self._cell(field)}" for field in self._others()]
            soft = soft_delete(self.task)
            assigned += [f"{self._own(soft)} = NULL"] if soft else []
        return assigned

    def _is_guarded(self) -> bool:
        """Whether ON DUPLICATE KEY could find a row of another key."""
        only = len(self.table.unique) == 1 and not self.table.others
        return not only or any(self.columns[key].is_text for key in self.task.key)

    def _guard(self) -> str:
        """An error for a row that has not this very key: EXP of a large number is out of range."""
        same = " AND ".join(self._is_same(key, self._own(key)) for key in self.task.key)
        return f"EXP(IF({same}, 0, 9999)) = 1"

    def _update(self, rows: range) -> str:
        fields = self._others() or self.task.key[:1]
        assigned = ", ".join(f"{TARGET}.{quoted(field)} = {self._cell(field)}" for field in fields)
        return f"UPDATE {self._joined()} SET {assigned} WHERE NOT {STAGE}.deleted AND {_within(rows)}"

    def _delete(self, rows: range) -> str:
        soft = soft_delete(self.task)
        if soft is None:
            return f"DELETE {TARGET} FROM {self._joined()} WHERE {STAGE}.deleted AND {_within(rows)}"
        column = f"{TARGET}.{quoted(soft)}"
        return (
            f"UPDATE {self._joined()} SET {column} = UTC_TIMESTAMP(6) "
            f"WHERE {STAGE}.deleted AND {column} IS NULL AND {_within(rows)}"
        )

    def _joined(self) -> str:
        """Staged rows, each with its row by the index of the key, in this order."""
        return f"{self.stage} STRAIGHT_JOIN {self.name.sql} AS {TARGET} ON {self._match()}"

    def _match(self) -> str:
        return " AND ".join(part for key in self.task.key for part in self._matches(key))

    def _matches(self, key: str) -> Sequence[str]:
        column, there = self.columns[key], f"{TARGET}.{quoted(key)}"
        if not column.is_text:
            return [f"{there} = {self._cell(key)}"]
        # The first finds it by the index, as the column compares; the second tells different texts apart.
        cell = self._cell(key) if column.charset == "utf8mb4" else f"CONVERT({self._cell(key)} USING {column.charset})"
        return [f"{there} = {cell} COLLATE {column.collation}", self._is_same(key, there)]

    def _is_same(self, key: str, there: str) -> str:
        if not self.columns[key].is_text:
            return f"{there} = {self._cell(key)}"
        return f"CAST(CONVERT({there} USING utf8mb4) AS BINARY) = CAST({self._cell(key)} AS BINARY)"

    def _names(self) -> list[str]:
        soft = soft_delete(self.task)
        return [*self.task.schema.names, *([soft] if soft else [])]

    def _others(self) -> Sequence[str]:
        return [name for name in self.task.schema.names if name not in self.task.key]

    def _own(self, name: str) -> str:
        return f"{self.name.sql}.{quoted(name)}"

    def _cell(self, name: str) -> str:
        return f"{STAGE}.c{self.task.schema.names.index(name)}"


def _within(rows: range) -> str:
    return f"{STAGE}.`row` BETWEEN {rows.start} AND {rows.stop - 1}"
