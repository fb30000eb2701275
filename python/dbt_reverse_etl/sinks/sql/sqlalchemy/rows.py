"""Writes one batch inside an open transaction, and checks what became of it by the keys that the table then has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import IGNORED, NO_ROW, OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.sqlalchemy.errors import failure
from dbt_reverse_etl.sinks.sql.sqlalchemy.statements import STAGE, Statements
from dbt_reverse_etl.sinks.sql.sqlalchemy.values import Changes

Key = tuple[Any, ...]


class RowsRefused(Exception):
    """The database refused some row and did not say which; nothing of the batch may be kept."""


class RowWriter:
    """Writes all rows at once, or none: the engine looks for the ones at fault."""

    def __init__(self, connection: Connection, sql: Statements, mode: Mode, known: Iterable[str]) -> None:
        """`known`: names that a reason may show."""
        self._connection, self._sql, self._mode, self._known = connection, sql, mode, tuple(known)

    def write(self, changes: Changes) -> dict[int, str]:
        """Apply the deletes, then the writes, which may need a unique value that a delete gives up.

        Returns: place in the batch -> reason of each row that was surely not applied.

        Raises:
            RowsRefused: the transaction must be rolled back.
            SQLAlchemyError: the database's fault.
        """
        return self._delete(changes.deletes) | self._write(changes.writes)

    def _delete(self, rows: pa.Table) -> dict[int, str]:
        deletes = self._keys(rows)
        # A delete that finds the row of another key would not be seen afterwards.
        if not self._there(rows, deletes):
            return {}
        self._run(self._sql.delete, rows)
        return {deletes[key]: IGNORED for key in self._there(rows, deletes)}

    def _write(self, rows: pa.Table) -> dict[int, str]:
        writes, absent = self._keys(rows), dict[int, str]()
        if self._mode is Mode.UPDATE_ONLY:
            there = self._there(rows, writes)
            absent = {row: NO_ROW for key, row in writes.items() if key not in there}
            rows = rows.filter(pc.invert(pc.is_in(rows.column("row"), pa.array(list(absent), pa.int32()))))
            writes = {key: row for key, row in writes.items() if key in there}
        if self._sql.write is not None:
            self._run(self._sql.write, rows)
        if self._there(rows, writes) != writes.keys():
            # A trigger swallowed a row, or it went into the row of another key of the batch.
            raise RowsRefused(IGNORED)
        return absent

    def _keys(self, rows: pa.Table) -> dict[Key, int]:
        """Key -> place in the batch."""
        names = list(self._sql.table.c.keys())
        columns = [rows.column(f"c{names.index(name)}").to_pylist() for name in self._sql.key]
        return dict(zip(zip(*columns, strict=True), rows.column("row").to_pylist(), strict=True))

    def _there(self, rows: pa.Table, asked: Mapping[Key, int]) -> set[Key]:
        """Which of these keys the table has. What it takes for one of them and is spelt differently is another's row."""
        if not asked:
            return set()
        with self._staged(rows):
            found = [self._connection.execute(question).fetchall() for question in self._sql.there(list(asked))]
        there = {tuple(row) for part in found for row in part}
        if not there <= asked.keys():
            raise RowsRefused(OTHER_SPELLING)
        return there

    def _run(self, statement: sa.Executable, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        try:
            with self._staged(rows):
                self._connection.execute(statement, None if self._sql.staged else _parameters(rows))
        except SQLAlchemyError as error:
            outcome, reason = failure(error, writing=True, known=self._known)
            if outcome is Outcome.REJECTED:
                raise RowsRefused(reason) from None
            raise

    def _staged(self, rows: pa.Table) -> Any:
        return _Staged(self._connection, rows if self._sql.staged else None)


class _Staged:
    """An Arrow table under a name, for DuckDB alone."""

    def __init__(self, connection: Connection, rows: pa.Table | None) -> None:
        self._driver: Any = connection.connection.driver_connection
        self._rows = rows

    def __enter__(self) -> None:
        if self._rows is not None:
            self._driver.register(STAGE, self._rows)

    def __exit__(self, *_: object) -> None:
        if self._rows is not None:
            self._driver.unregister(STAGE)


def _parameters(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.drop_columns(["row"]).to_pylist()  # type: ignore[no-any-return]
