"""Writes one batch inside an open transaction, and says which rows the table refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import Any

import psycopg
from psycopg import Connection, sql

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import IGNORED, NO_ROW, OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.postgres.catalog import known_constraints
from dbt_reverse_etl.sinks.sql.postgres.statements import (
    CREATE_REFUSED,
    EVERY_ROW,
    NO_EFFECT,
    REFUSED,
    STAGE,
    Query,
    Render,
    Statements,
    search,
)
from dbt_reverse_etl.sinks.sql.postgres.values import Staged

PASSES = 8  # a row may wait for what a later row of the batch gives up, or brings
SLICE = 500  # ranges in one search: it copies the list of those that are left for each one
ROW_CLASSES = ("22", "23", "44", "54")
ROW_STATES = ("21000", "P0001", NO_EFFECT)


def row_is_at_fault(state: str | None) -> bool:
    """Whether an SQLSTATE speaks of a row's values."""
    return state is not None and (state[:2] in ROW_CLASSES or state in ROW_STATES)


def condition(state: str) -> str:
    """An SQLSTATE in words: `unique violation (23505)`."""
    try:
        name = psycopg.errors.lookup(state).__name__
    except KeyError:
        return f"SQLSTATE {state}"
    return f"{re.sub(r'(?<!^)(?=[A-Z])', ' ', name).lower()} ({state})"


Found = dict[int, tuple[str, str, str]]  # index -> SQLSTATE, constraint, column, as the error gave them


class _Ineffective(Exception):
    """A statement changed fewer rows than it should."""


class RowWriter:
    """Writes all rows at once; only if one is refused, looks for it, inside the server."""

    def __init__(self, connection: Connection[Any], sql_of_task: Statements, mode: Mode) -> None:
        self._connection, self._sql, self._mode = connection, sql_of_task, mode

    def write(self, batch: Staged) -> dict[int, str]:
        """Apply the deletes, then the writes, which may need a unique value that a delete gives up.

        Returns: index -> reason of each row that was refused.

        Raises:
            psycopg.Error: the database's fault.
        """
        if not batch.writes + batch.deletes:
            return {}
        self._connection.execute(self._sql.create_stage)
        with self._connection.cursor() as cursor, cursor.copy(self._sql.copy) as copy:
            for piece in batch.stream:
                copy.write(piece)
        self._connection.execute("SAVEPOINT all_rows")
        try:
            return self._at_once(batch)
        except _Ineffective:
            pass
        except psycopg.Error as error:
            if not row_is_at_fault(error.sqlstate):
                raise
        self._connection.execute("ROLLBACK TO all_rows")
        return self._apart(batch)

    def _at_once(self, batch: Staged) -> dict[int, str]:
        refused: dict[int, str] = {}
        if batch.deletes and self._changed(self._sql.delete) < batch.deletes:
            refused |= self._rows(self._sql.undeleted, IGNORED)
        if batch.writes:
            refused |= self._write_all(batch.writes)
        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return refused

    def _write_all(self, writes: int) -> dict[int, str]:
        absent = self._rows(self._sql.drop_absent, NO_ROW) if self._mode is Mode.UPDATE_ONLY else {}
        if self._changed(self._sql.write) == writes - len(absent):
            return absent
        if self._sql.strict:
            raise _Ineffective
        return self._rows(self._sql.absent, self._unchanged())

    def _apart(self, batch: Staged) -> dict[int, str]:
        for statement in (CREATE_REFUSED, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE")):
            self._connection.execute(statement)
        every = [range(batch.rows)]
        deletes, writes = self._search(self._sql.delete, every), self._search(self._sql.write, every)
        for number in range(PASSES - 1):
            waiting = [index for index, (state, *_) in (deletes | writes).items() if state.startswith("23")]
            if not waiting:
                break
            before = len(deletes) + len(writes)
            # A chain of rows that wait for each other is done in one pass in the right direction.
            direction = -1 if number % 2 == 0 else 1
            deletes = self._again(self._sql.delete, deletes, direction)
            writes = self._again(self._sql.write, writes, direction)
            if number and len(deletes) + len(writes) == before:
                break
        found = deletes | writes
        # What is asked below casts the staged values, which those of a refused row may not stand.
        gone = [index for index, (state, *_) in found.items() if state != NO_EFFECT]
        self._connection.execute(sql.SQL("DELETE FROM {} WHERE row = ANY (%s)").format(STAGE), (gone,))
        refused = self._reasons(found)
        refused |= self._rows(self._sql.undeleted, IGNORED) if batch.deletes else {}
        if self._mode is Mode.UPDATE_ONLY:
            refused |= self._rows(self._sql.absent, NO_ROW)
        elif not self._sql.strict:
            refused |= self._rows(self._sql.absent, self._unchanged())
        return refused

    def _again(self, statement: Render, refused: Found, direction: int) -> Found:
        waiting = sorted(index for index, (state, *_) in refused.items() if state.startswith("23"))
        rest = {index: found for index, found in refused.items() if not found[0].startswith("23")}
        return rest | self._search(statement, [range(index, index + 1) for index in waiting[::direction]])

    def _search(self, statement: Render, ranges: Sequence[range]) -> Found:
        """Each row that a statement cannot carry out; it is carried out for the others."""
        strict = self._sql.strict and statement is self._sql.write
        for start in range(0, len(ranges), SLICE):
            parts = ranges[start : start + SLICE][::-1]
            firsts, afters = [part.start for part in parts], [part.stop for part in parts]
            self._connection.execute(search(statement, firsts, afters, strict=strict))
        found = self._connection.execute(sql.SQL("DELETE FROM {} RETURNING *").format(REFUSED))
        return {index: (state, constraint, column) for index, state, constraint, column in found}

    def _reasons(self, refused: Found) -> dict[int, str]:
        named = {constraint for state, constraint, _ in refused.values() if state.startswith("23")}
        # A trigger may give any text as a name, also a value of the row.
        known = known_constraints(self._connection, named)
        reasons = {found: self._reason(*found, known) for found in set(refused.values())}
        return {index: reasons[found] for index, found in refused.items()}

    def _reason(self, state: str, constraint: str, column: str, known: Set[str]) -> str:
        if state == NO_EFFECT:
            return self._unchanged()
        if not state.startswith("23"):
            return condition(state)
        if constraint in known:
            return f"{condition(state)}, constraint {constraint}"
        return condition(state) + (f", column {column}" if column in self._sql.columns else "")

    def _unchanged(self) -> str:
        return OTHER_SPELLING if self._sql.merges and self._mode is not Mode.UPDATE_ONLY else IGNORED

    def _changed(self, statement: Render) -> int:
        return self._connection.execute(statement(EVERY_ROW)).rowcount

    def _rows(self, query: Query, reason: str) -> dict[int, str]:
        rows: Iterable[tuple[int]] = self._connection.execute(query)
        return {row: reason for (row,) in rows}
