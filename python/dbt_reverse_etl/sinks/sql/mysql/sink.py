"""A table of a MySQL or MariaDB database. Types: see `values`; what a column must be like: `table`.

The rows of a batch are put into a temporary table; then one transaction under the lock of the sync's fence row deletes and
upserts them from there, and writes the record of the batch. Two tables of our own; a user's table gets no extra column.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.database_sink import Database, DatabaseSink
from dbt_reverse_etl.sinks.sql.mysql.settings import MysqlOptions, MysqlSettings

try:
    import pymysql
except ModuleNotFoundError as error:
    raise ConfigurationError(
        Problem(
            "destination of type mysql", "no package PyMySQL", "it installed", "pip install 'dbt-reverse-etl[mysql]'"
        )
    ) from error

from pymysql.connections import Connection

from dbt_reverse_etl.sinks.sql.mysql.catalog import Name, object_name, read_table
from dbt_reverse_etl.sinks.sql.mysql.full_load import DENIED, LOST_ROWS, full_load_of
from dbt_reverse_etl.sinks.sql.mysql.reading import read_rows
from dbt_reverse_etl.sinks.sql.mysql.record import ENGINE, SWAP, Record
from dbt_reverse_etl.sinks.sql.mysql.rights import lacks
from dbt_reverse_etl.sinks.sql.mysql.rows import RowWriter, row_is_at_fault
from dbt_reverse_etl.sinks.sql.mysql.session import (
    ROLLED_BACK,
    connect,
    failure,
    number,
    rollback_on_error,
    run,
)
from dbt_reverse_etl.sinks.sql.mysql.statements import Statements, statements
from dbt_reverse_etl.sinks.sql.mysql.table import (
    add_column,
    create_table,
    missing_fields,
    soft_delete,
    table_problems,
    task_problems,
)
from dbt_reverse_etl.sinks.sql.mysql.values import Staged, staged
from dbt_reverse_etl.sinks.sql.rights import Lack, needs

OLDEST_MYSQL, OLDEST_MARIADB = (8, 0), (10, 5)


class MysqlSink(DatabaseSink):
    """Keeps one table of a MySQL or MariaDB database equal to a model."""

    type = "mysql"
    settings_model = MysqlSettings
    options_model = MysqlOptions
    database = Database(
        "MySQL",
        pymysql.Error,
        failure,
        rollback_on_error,
        read_table,
        read_rows,
        table_problems,
        create_table,
        missing_fields,
        add_column,
    )

    _settings: MysqlSettings
    _record: Record

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Batches that keep the number of commits low; a bad row is searched from here, so they are not larger."""
        return Limits(rows=25_000, bytes=32 * 2**20, concurrency=4)

    def check(self) -> None:
        """Log in and read, nothing else."""
        with self._reading() as connection:
            row = run(connection, "SELECT VERSION(), @@read_only OR @@innodb_read_only").fetchone()
            version, read_only = row or ("", 0)
            oldest = OLDEST_MARIADB if "MariaDB" in version else OLDEST_MYSQL
            if _numbers(version) < oldest:
                expected = f"MySQL {_dotted(OLDEST_MYSQL)} or MariaDB {_dotted(OLDEST_MARIADB)}, or newer"
                raise self._error(f"version {version}", expected, "upgrade the server")
            if read_only:
                raise self._error("a server that takes no writes (a replica?)", "the primary", "name it as host")

    def _open(self, connection: Connection[Any]) -> None:
        """Each DDL of MySQL is a transaction of its own."""
        self._record.create(connection)
        unsafe = self._record.unsafe(connection)
        if unsafe:
            next_step = f"run: ALTER TABLE {unsafe.sql} ENGINE={ENGINE}"
            raise self._error(f"{unsafe} without transactions", f"the engine {ENGINE}", next_step)
        with self._transaction(connection):
            self._take_fence(connection)
        name = self._name(self._task)
        self._load = full_load_of(name)
        self._settle_swap(connection)
        self._table: Any = self._prepared_table(connection)
        if self._task.full_load:
            self._load.begin(connection, self._task)
            name, self._table = self._load.name, read_table(connection, self._load.name)
        row = run(connection, "SELECT @@max_allowed_packet").fetchone()
        self._packet = int(row[0]) if row else 2**20
        self._sql: Statements = statements(self._task, name, self._table, self._settings.database)
        self._columns = {name: self._table.columns[name.lower()] for name in self._task.schema.names}

    def _settle_swap(self, connection: Connection[Any]) -> bool:
        """Find out whether a RENAME without an answer has come; nothing of its load is left."""
        self._load.drop(connection)
        has_come = self._load.was_renamed(connection)
        if has_come or self._record.announces_a_swap(connection):
            self._note_swap(connection, has_come=has_come)
        if has_come and not self._load.drop_old(connection):
            self._note_swap(connection, has_come=False)
            return False
        return has_come

    def _note_swap(self, connection: Connection[Any], *, has_come: bool) -> None:
        with self._transaction(connection):
            self._hold_fence(connection)
            self._record.swapped(connection, has_come=has_come)

    def _swap(self, connection: Connection[Any], claim: str) -> None:
        if not self._load.has(connection, self._loaded):
            raise self._error(LOST_ROWS, "the rows that were loaded", "push again")
        if self._load.can_rename(connection) and self._renamed(connection, claim):
            return
        try:
            self._swapped_in_a_transaction(connection, claim, self._replaced)
        except pymysql.Error as error:
            if not row_is_at_fault(error):
                raise
            raise self._not_taken(failure(error)[1]) from None
        with suppress(pymysql.Error):
            self._load.drop(self._connected())

    def _replaced(self) -> str | None:
        return self._load.replace(self._connected(), self._task, self._table, self._loaded)

    def _renamed(self, connection: Connection[Any], claim: str) -> bool:
        """Swap by RENAME; False: we have not the right to."""
        with self._transaction(connection):
            self._hold_fence(connection)
            self._record.add(connection, claim, [Part(SWAP, closed=False, left_out=self._left_out)])
        try:
            self._load.rename(connection)
        except pymysql.Error as error:
            if number(error) in DENIED:
                self._note_swap(connection, has_come=False)
                return False
            self._drop_connection()
            if self._settle_swap(self._connected()):
                return True
            raise
        self._note_swap(connection, has_come=True)
        if not self._load.drop_old(connection):
            self._note_swap(connection, has_come=False)
            next_step = "set owns_object: false, or take the right ALTER on it from the user of the sink"
            raise self._error(f"a foreign key points at {self._load.target}", "none, for a swap by RENAME", next_step)
        return True

    def _changes(self, rows: pa.Table, deletes: str | None) -> Staged:
        return staged(rows, self._columns, self._task.key, packet=self._packet, deletes=deletes)

    def _stage(self, connection: Connection[Any], changes: Staged) -> None:
        """Nobody waits for us meanwhile, and some servers refuse temporary tables in a transaction."""
        if changes.values:
            self._writer(connection).stage(changes)

    def _write(self, connection: Connection[Any], changes: Staged) -> dict[int, str]:
        return self._writer(connection).write(changes) if changes.values else {}

    def _writer(self, connection: Connection[Any]) -> RowWriter:
        key = frozenset(map(str.lower, self._task.key))
        indexes = frozenset(name for name, columns in self._table.unique.items() if columns == key)
        known = self._table.constraints | {column.name for column in self._table.columns.values()}
        return RowWriter(connection, self._sql, self._task.mode, known, indexes)

    def _lacks(self, connection: Connection[Any], task: SinkTask, record: Sequence[Name]) -> list[Lack]:
        name, settings = self._name(task), self._settings
        how = {"soft_delete": bool(soft_delete(task)), "create_object": settings.create_object}
        ours = [*record, *([full_load_of(name).name] if task.full_load else [])]
        return lacks(connection, needs(task, name, ours, **how), settings.database, settings.user)

    def _task_problems(self, task: SinkTask) -> list[Problem]:
        return task_problems(task, self._settings.database)

    def _object_name(self, task: SinkTask) -> Name | None:
        return object_name(task.object, self._settings.database)

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._settings.state_database or self._name(task).database, task.sync_id, task.fence)

    def _connect(self) -> Connection[Any]:
        return connect(self._settings)

    def _is_connected(self, connection: Connection[Any]) -> bool:
        return bool(connection.open)

    def _begin(self, connection: Connection[Any], *, read_only: bool = False) -> None:
        run(connection, "START TRANSACTION READ ONLY" if read_only else "START TRANSACTION")

    def _run(self, connection: Connection[Any], statement: Any) -> Any:
        return run(connection, statement)

    def _is_rolled_back(self, connection: Connection[Any], error: pymysql.Error) -> bool:  # noqa: ARG002
        return number(error) in ROLLED_BACK


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".")[:2] if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
