"""Writes the rows of one batch inside an open transaction, and says which rows the table refused."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import IGNORED, NEVER_DELETES, NO_ROW, RolledBack
from dbt_reverse_etl.sinks.sql.sqlite.table import Statements
from dbt_reverse_etl.sinks.sql.sqlite.values import Changes, Rows, Values

# What an expression of the table (generated column, index, trigger) may say about one row's value.
VALUE_FAULTS = ("malformed JSON", "JSON path error", "bad JSON path", "integer overflow", "LIKE or GLOB pattern")
# Messages that name the schema only; the text of a trigger could quote a row.
SAFE = re.compile(
    r"(NOT NULL|UNIQUE|CHECK|FOREIGN KEY|PRIMARY KEY) constraint failed|cannot store \w+ value|datatype mis"
)
PASSES = 3  # a row may wait for a unique value that a later row of the batch gives up
DISK_FULL = "the database or disk is full"

FAILURES: tuple[tuple[str, Outcome, str], ...] = (
    ("is locked", Outcome.RETRYABLE, "the database is locked by another program"),
    ("locking protocol", Outcome.RETRYABLE, "the database is locked by another program"),
    ("is full", Outcome.FATAL, DISK_FULL),
    ("readonly", Outcome.FATAL, "the database cannot be written"),
    ("disk I/O error", Outcome.FATAL, "disk I/O error"),
    ("unable to open", Outcome.FATAL, "the file cannot be opened"),
    ("disk image is malformed", Outcome.FATAL, "the database file is damaged"),
    ("not a database", Outcome.FATAL, "the file is not an SQLite database"),
    ("no such table", Outcome.FATAL, "the table has vanished"),
    ("no column named", Outcome.FATAL, "a column has vanished"),
    ("no such column", Outcome.FATAL, "a column has vanished"),
)


def failure(error: sqlite3.Error) -> tuple[Outcome, str]:
    """What an error of the database means for a transaction that was rolled back. Never its own text."""
    text = str(error)
    for part, outcome, reason in FAILURES:
        if part in text:
            return outcome, reason
    return Outcome.FATAL, f"SQLite failed: {type(error).__name__}"


@dataclass(frozen=True)
class RowWriter:
    """Writes all rows at once; only if one is refused, row by row to find it."""

    connection: sqlite3.Connection
    sql: Statements
    mode: Mode

    def write(self, changes: Changes) -> dict[int, str]:
        """Apply the deletes, then the writes, which may need a unique value that a delete gives up.

        Returns: index -> reason of each row that was refused.

        Raises:
            RolledBack: a trigger ended the transaction.
            sqlite3.Error: the database's fault.
        """
        if self.mode is not Mode.MIRROR:
            refused = dict.fromkeys(changes.deletes.indices, NEVER_DELETES)
        else:
            refused = self._all(self.sql.delete, changes.deletes)
        return refused | self._all(self.sql.write, changes.writes)

    def _all(self, statement: str, rows: Rows) -> dict[int, str]:
        if not len(rows):
            return {}
        self.connection.execute("SAVEPOINT all_rows")
        try:
            if self.connection.executemany(statement, rows).rowcount == len(rows):
                self.connection.execute("RELEASE all_rows")
                return {}
        except sqlite3.Error as error:
            self._check_row_is_at_fault(error)
        self.connection.execute("ROLLBACK TO all_rows")
        self.connection.execute("RELEASE all_rows")
        return self._passes(statement, dict(zip(rows.indices, rows, strict=True)))

    def _passes(self, statement: str, rows: dict[int, Values]) -> dict[int, str]:
        refused = dict(self._one_by_one(statement, rows))
        for _ in range(PASSES - 1):
            again = {index: rows[index] for index, reason in refused.items() if reason.startswith("UNIQUE")}
            if not again:
                break
            still = dict(self._one_by_one(statement, again))
            refused = {index: reason for index, reason in refused.items() if index not in again} | still
        return refused

    def _one_by_one(self, statement: str, rows: dict[int, Values]) -> Iterator[tuple[int, str]]:
        for index, values in rows.items():
            self.connection.execute("SAVEPOINT one_row")
            try:
                changed = self.connection.execute(statement, values).rowcount
            except sqlite3.Error as error:
                self._check_row_is_at_fault(error)
                self.connection.execute("ROLLBACK TO one_row")
                yield index, _reason(error)
            else:
                reason = None if changed else self._unchanged(statement, values)
                if reason:
                    yield index, reason
            self.connection.execute("RELEASE one_row")

    def _unchanged(self, statement: str, values: Values) -> str | None:
        """Why a statement that changed no row did not do its work, or None if there was none to do."""
        key = values if statement == self.sql.delete else tuple(map(values.__getitem__, self.sql.key_at))
        there = self.connection.execute(self.sql.exists, key).fetchone() is not None
        if statement == self.sql.delete:
            return IGNORED if there else None
        if self.mode is Mode.INSERT_ONLY:
            return None if there else IGNORED
        return NO_ROW if self.mode is Mode.UPDATE_ONLY and not there else IGNORED

    def _check_row_is_at_fault(self, error: sqlite3.Error) -> None:
        by_class = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)
        if not by_class and not str(error).startswith(VALUE_FAULTS):
            raise error
        if not self.connection.in_transaction:
            raise RolledBack("a trigger of the table refused the batch") from error


def _reason(error: Exception) -> str:
    safe, code = SAFE.match(str(error)), getattr(error, "sqlite_errorname", None)
    if safe is None or code == "SQLITE_CONSTRAINT_TRIGGER":
        return "a constraint or trigger of the table refused the row"
    # Python 3.10 has no codes, so a trigger may have said it: then only the kind is repeated.
    return str(error) if code else safe.group()
