"""Writes one batch from a staging table, by statements that touch no row but that of the very key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pyarrow.types as pt
import pymysql
from pymysql.constants import ER

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.refusals import positions
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialect import Dialect, Fault
from dbt_reverse_etl.sinks.sql.dialects.mysql.kinds import TEXT
from dbt_reverse_etl.sinks.sql.dialects.mysql.literals import rows_of
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import OUT_OF_RANGE, UTC, condition, number, run
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import ENGINE, MysqlTable
from dbt_reverse_etl.sinks.sql.rows import INEFFECTIVE, MISPLACED, OTHER_KEY, OTHER_SPELLING, Found
from dbt_reverse_etl.sinks.sql.statements import STAGE, StagedWriter, conjunction
from dbt_reverse_etl.sinks.sql.table import Name, soft_delete
from dbt_reverse_etl.sinks.sql.values import pieces_of

TOO_LARGE = "the row is larger than max_allowed_packet of the server"
STATEMENT = 2**22  # bytes of rows in one INSERT, if the server takes that
_ROOM = 1024  # for the statement around the rows
WAITS = frozenset({ER.DUP_ENTRY, ER.ROW_IS_REFERENCED, ER.NO_REFERENCED_ROW, 1451, 1452, OUT_OF_RANGE})
# Names in the server's texts; only those that the table has are shown.
_NAMES = re.compile(r"(?:key|CONSTRAINT|constraint|column) ['`](.+?)['`](?= |$)")


class MysqlWriter(StagedWriter):
    """Writes all rows at once; only if one is refused, halves: a statement that fails leaves nothing behind."""

    table: MysqlTable

    def __init__(self, dialect: Dialect, task: SinkTask, name: Name, table: MysqlTable, packet: int) -> None:
        """`packet`: bytes that the server takes at once."""
        super().__init__(dialect, task, name, table)
        self._packet = packet - _ROOM
        self.looks = False  # until a row is missing: each look costs three statements more
        written = {*map(dialect.fold, task.schema.names), dialect.fold(soft_delete(task) or "")}
        is_zoned = any(column.kind == "timestamp" for name, column in table.columns.items() if name in written)
        # A `timestamp` is read and written in the zone of the session; else defaults write local time as for anybody else.
        self._zone = UTC if is_zoned else "DEFAULT"

    @property
    def now(self) -> str:
        return "UTC_TIMESTAMP(6)"

    @property
    def counts(self) -> bool:
        """Of an upsert the server counts the changes, not the rows; and none of its triggers ignores one."""
        return self.task.mode is Mode.UPDATE_ONLY

    def is_moved(self, changes: Changes, others: int) -> bool:
        """An UPDATE that found no row holds no lock, so that the row may have come before we asked for it."""
        return self.changed_rows + others < changes.writes

    @property
    def stage_table(self) -> str:
        return Name(self.dialect.settings.database, STAGE, "`").sql

    @property
    def _types(self) -> list[str]:
        """Of the fields in the staging table."""
        # Beside a text a number is staged as one, too: MySQL compares a number with a text as two doubles.
        kinds = [(field.type, self.columns[field.name].is_text) for field in self.task.schema]
        return [TEXT if pt.is_nested(kind) or as_text else self.dialect.column_type(kind) for kind, as_text in kinds]

    def packed(self, changes: Changes) -> Changes:
        rows = rows_of(changes, self._types)
        too_large = positions(pc.greater(pc.binary_length(rows), self._packet))
        changes = changes.without(dict.fromkeys(too_large, TOO_LARGE)) if too_large else changes
        return replace(changes, data=tuple(pieces_of(changes.applied(rows), min(STATEMENT, self._packet))))

    def stage(self, connection: Any, changes: Changes) -> None:
        """Nobody waits for us meanwhile, and some servers refuse temporary tables in a transaction."""
        if not changes.data:
            return
        cells = ", ".join(f"c{at} {of_type}" for at, of_type in enumerate(self._types))
        layout = f"place INT PRIMARY KEY, deleted TINYINT NOT NULL, {cells}"
        run(connection, f"SET SESSION time_zone = {self._zone}")
        run(connection, f"DROP TEMPORARY TABLE IF EXISTS {self.stage_table}")
        run(connection, f"CREATE TEMPORARY TABLE {self.stage_table} ({layout}) ENGINE={ENGINE}")
        for piece in changes.data:
            run(connection, f"INSERT INTO {self.stage_table} VALUES ".encode() + piece[:-1])  # without the last comma

    @property
    def target(self) -> str:
        return self.name.sql

    def upsert(self, rows: str) -> str:
        """The row that is found must be the right one: MySQL finds it by any unique index, as its columns compare."""
        key, soft = self._own(self.task.key[0]), soft_delete(self.task)
        assigned = [f"{key} = {f'IF({self._guard}, {key}, {key})' if self._is_guarded else key}"]
        if self.task.mode is not Mode.INSERT_ONLY:
            names = [name for name in self.task.schema.names if name not in self.task.key]
            assigned += [f"{self._own(name)} = {self.cell(name)}" for name in names]
            assigned += [f"{self._own(soft)} = NULL"] if soft else []
        return f"{self.insert(rows)} ON DUPLICATE KEY UPDATE {', '.join(assigned)}"

    @property
    def _is_guarded(self) -> bool:
        """Whether ON DUPLICATE KEY could find a row of another key."""
        only = len(self.table.indexes) == 1 and not self.table.others
        return not only or self.table.rewrites or any(self.columns[key].is_text for key in self.task.key)

    @property
    def _guard(self) -> str:
        """An error for a row that has not this very key: EXP of a large number is out of range."""
        same = conjunction([self._is_same(key, self._own(key)) for key in self.task.key])
        return f"EXP(IF({same}, 0, 9999)) = 1"

    def change(self, values: Mapping[str, str], wanted: Sequence[str]) -> str:
        assigned = ", ".join(f"t.{self.dialect.quoted(name)} = {value}" for name, value in values.items())
        return f"UPDATE {self._joined} SET {assigned} WHERE {conjunction(wanted)}"

    def removal(self, wanted: Sequence[str]) -> str:
        return f"DELETE t FROM {self._joined} WHERE {conjunction(wanted)}"

    @property
    def _joined(self) -> str:
        """Staged rows, each with its row by the index of the key, in this order."""
        return f"{self.stage_table} AS s STRAIGHT_JOIN {self.name.sql} AS t ON {conjunction(self.match)}"

    @property
    def match(self) -> list[str]:
        return [part for key in self.task.key for part in self._matches(key)]

    def _matches(self, key: str) -> Sequence[str]:
        column, there = self.columns[key], f"t.{self.dialect.quoted(key)}"
        if not column.is_text:
            return [f"{there} = {self.cell(key)}"]
        # The first finds it by the index, as the column compares; the second tells different texts apart.
        cell = self.cell(key) if column.charset == "utf8mb4" else f"CONVERT({self.cell(key)} USING {column.charset})"
        return [f"{there} = {cell} COLLATE {column.collation}", self._is_same(key, there)]

    def _is_same(self, key: str, there: str) -> str:
        if not self.columns[key].is_text:
            return f"{there} = {self.cell(key)}"
        return f"CAST(CONVERT({there} USING utf8mb4) AS BINARY) = CAST({self.cell(key)} AS BINARY)"

    def holds(self, name: str) -> str:
        there = f"t.{self.dialect.quoted(name)}"
        return f"({self._is_same(name, there)} OR {there} IS NULL AND {self.cell(name)} IS NULL)"

    def _own(self, name: str) -> str:
        return f"{self.name.sql}.{self.dialect.quoted(name)}"

    def fault_of(self, connection: Any, error: Any) -> Fault:
        """The number, and the constraint or column; never a value, for these stand in the text too."""
        super().fault_of(connection, error)
        text = str(error.args[1]) if len(error.args) > 1 else ""
        names = [name for found in _NAMES.findall(text) for name in (found, found.rpartition(".")[2].strip("`"))]
        return number(error), next((name for name in reversed(names) if name in self.table.names), "")

    def waits(self, fault: Fault) -> bool:
        return fault[0] in WAITS

    def reasons(self, connection: Any, found: Found) -> dict[int, str]:
        is_guarded = self.task.mode is not Mode.UPDATE_ONLY
        # Of the guard: a plain INSERT names the unique index that holds a value of the row.
        plain = {
            row: self._inserted(connection, row) if is_guarded and fault[0] == OUT_OF_RANGE else fault
            for row, fault in found.items()
        }
        return {row: self._reason(fault) for row, fault in plain.items() if fault}

    def _inserted(self, connection: Any, row: int) -> Fault | None:
        """Why a row cannot be inserted; None: what stood in its way has gone, and now it is written."""
        try:
            run(connection, self.insert(self.within(range(row, row + 1))))
        except pymysql.Error as error:
            return self.fault_of(connection, error)
        return None

    def _reason(self, fault: Fault) -> str:
        if fault == INEFFECTIVE:
            return self.unchanged
        if fault == MISPLACED:
            return OTHER_KEY
        code, name = fault
        if code == ER.DUP_ENTRY and self.table.indexes.get(name) == frozenset(map(str.lower, self.task.key)):
            return OTHER_SPELLING
        return condition(code) + (f", {name}" if name else "")
