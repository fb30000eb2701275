"""Writes one batch inside an open transaction, and says which rows the table refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import NO_ROW, OTHER_SPELLING, RolledBack
from dbt_reverse_etl.sinks.sql.mysql.session import condition, number, run
from dbt_reverse_etl.sinks.sql.mysql.statements import Render, Statements
from dbt_reverse_etl.sinks.sql.mysql.values import Staged

MOVED = "another session changed rows of the batch, which was rolled back"
PASSES = 8  # a row may wait for what a later row of the batch gives up, or brings
OUT_OF_RANGE = 1690  # also that of our guard: the row of another key has a unique value of this one
ROW_CLASSES = ("22", "23", "44", "45")
# Without an SQLSTATE of those classes: wrong values of many kinds, no default, no partition, CHECK (MySQL), SIGNAL.
ROW_ERRORS = frozenset({1264, 1265, 1292, 1364, 1366, 1406, 1526, 1644, 3819, OUT_OF_RANGE})
WAITS = frozenset({ER.DUP_ENTRY, ER.ROW_IS_REFERENCED, ER.NO_REFERENCED_ROW, 1451, 1452, OUT_OF_RANGE})
# Names in the server's texts; only those that the table has are shown.
_NAMES = re.compile(r"(?:key|CONSTRAINT|constraint|column) ['`](.+?)['`](?= |$)")

Found = dict[int, tuple[int, str]]  # index -> number and name of the error


def row_is_at_fault(error: pymysql.Error) -> bool:
    """Whether an error speaks of a row's values."""
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in ROW_CLASSES or number(error) in ROW_ERRORS


class RowWriter:
    """Writes all rows at once; only if one is refused, halves until it stands alone: a statement that fails leaves nothing behind."""

    def __init__(
        self, connection: Connection[Any], sql_of_task: Statements, mode: Mode, known: Set[str], key_indexes: Set[str]
    ) -> None:
        """`known`: names that a reason may show. `key_indexes`: unique indexes over the key."""
        self._connection, self._sql, self._mode = connection, sql_of_task, mode
        self._known, self._key_indexes = known, key_indexes
        self._changed = 0

    def stage(self, batch: Staged) -> None:
        """Fill the staging table, outside of the transaction. Raises pymysql.Error."""
        for statement in (self._sql.drop_stage, self._sql.create_stage):
            run(self._connection, statement)
        for piece in batch.values:
            run(self._connection, self._sql.fill + piece)

    def write(self, batch: Staged) -> dict[int, str]:
        """Apply the deletes, then the writes, which may need a unique value that a delete gives up.

        Returns: index -> reason of each row that was refused.

        Raises:
            pymysql.Error: the database's fault.
            RolledBack: the transaction must be rolled back.
        """
        every = [range(batch.rows)]
        deletes = self._search(self._sql.delete, every) if batch.deletes else {}
        self._changed = 0
        writes = self._search(self._sql.write, every) if batch.writes else {}
        for turn in range(PASSES - 1):
            before = len(deletes) + len(writes)
            if not any(code in WAITS for code, _ in (deletes | writes).values()):
                break
            # A chain of rows that wait for each other is done in one pass in the right direction.
            direction = -1 if turn % 2 == 0 else 1
            deletes = self._again(self._sql.delete, deletes, direction)
            writes = self._again(self._sql.write, writes, direction)
            if turn and len(deletes) + len(writes) == before:
                break
        absent = self._absent(batch.writes - len(writes), writes) if self._mode is Mode.UPDATE_ONLY else {}
        return absent | self._reasons(deletes | writes)

    def _absent(self, expected: int, refused: Found) -> dict[int, str]:
        """Rows of an update without a match."""
        if not expected or self._changed == expected:
            return {}
        rows: Iterable[tuple[int]] = run(self._connection, self._sql.absent).fetchall()
        absent = {row: NO_ROW for (row,) in rows if row not in refused}
        if self._changed + len(absent) != expected:
            raise RolledBack(MOVED, Outcome.RETRYABLE)
        return absent

    def _again(self, statement: Render, refused: Found, direction: int) -> Found:
        waiting = sorted(index for index, (code, _) in refused.items() if code in WAITS)
        rest = {index: (code, name) for index, (code, name) in refused.items() if code not in WAITS}
        return rest | self._search(statement, [range(index, index + 1) for index in waiting[::direction]])

    def _search(self, statement: Render, ranges: Sequence[range]) -> Found:
        """Each row that a statement cannot carry out; it is carried out for the others."""
        found: Found = {}
        left = list(ranges[::-1])
        while left:
            rows = left.pop()
            try:
                self._changed += run(self._connection, statement(rows)).rowcount
            except pymysql.Error as error:
                if not row_is_at_fault(error):
                    raise
                if len(rows) == 1:
                    found[rows.start] = (number(error), self._named(error))
                else:
                    middle = len(rows) // 2
                    left += [rows[middle:], rows[:middle]]
        return found

    def _named(self, error: pymysql.Error) -> str:
        """The constraint or column that an error names; never a value, for these stand in the text too."""
        text = str(error.args[1]) if len(error.args) > 1 else ""
        names = [name for found in _NAMES.findall(text) for name in (found, found.rpartition(".")[2].strip("`"))]
        return next((name for name in reversed(names) if name in self._known), "")

    def _reasons(self, refused: Found) -> dict[int, str]:
        reasons = {}
        for index, (code, name) in refused.items():
            found = (code, name)
            if code == OUT_OF_RANGE and self._mode is not Mode.UPDATE_ONLY:
                insert = self._search(self._sql.insert, [range(index, index + 1)])
                if not insert:
                    continue  # what stood in its way has gone, and now it is written
                found = insert[index]
            reasons[index] = self._reason(*found)
        return reasons

    def _reason(self, code: int, name: str) -> str:
        if code == ER.DUP_ENTRY and name in self._key_indexes:
            return OTHER_SPELLING
        return condition(code) + (f", {name}" if name else "")
