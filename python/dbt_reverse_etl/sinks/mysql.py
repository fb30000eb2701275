"""A table of a MySQL or MariaDB database. Types: see `mysql_values`; what a column must be like: `mysql_table`.

The rows of a batch are put into a temporary table; then one transaction under the lock of the sync's fence row deletes and
upserts them from there, and writes the record of the batch. Two tables of our own; a user's table gets no extra column.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Batch, Limits, Mode, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.database import LOST_RECORD, NEVER_DELETES, rejections
from dbt_reverse_etl.sinks.mysql_settings import MysqlOptions, MysqlSettings

try:
    import pymysql
except ModuleNotFoundError as error:
    raise ConfigurationError(
        Problem(
            "destination of type mysql", "no package PyMySQL", "it installed", "pip install 'dbt-reverse-etl[mysql]'"
        )
    ) from error

from pymysql.connections import Connection

from dbt_reverse_etl.sinks.mysql_catalog import Name, Table, engine_of, object_name, read_table
from dbt_reverse_etl.sinks.mysql_reading import read_rows
from dbt_reverse_etl.sinks.mysql_record import ENGINE, Record
from dbt_reverse_etl.sinks.mysql_rows import RowsMoved, RowWriter
from dbt_reverse_etl.sinks.mysql_session import (
    ROLLED_BACK,
    connect,
    failure,
    number,
    rollback_on_error,
    run,
    transaction,
)
from dbt_reverse_etl.sinks.mysql_statements import Statements, statements
from dbt_reverse_etl.sinks.mysql_table import add_column, create_table, missing_fields, table_problems, task_problems
from dbt_reverse_etl.sinks.mysql_values import Staged, staged

RESYNC = "restore the database, or dbt run-operation resync for this sync"
OLDEST_MYSQL, OLDEST_MARIADB = (8, 0), (10, 5)
MOVED = "another session changed rows of the batch, which was rolled back"


class MysqlSink(Sink):
    """Keeps one table of a MySQL or MariaDB database equal to a model."""

    type = "mysql"
    settings_model = MysqlSettings
    options_model = MysqlOptions
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    distributable = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, MysqlSettings)  # noqa: S101  (the engine validates with settings_model)
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection[Any] | None = None

    @property
    def identity(self) -> str:
        """host:port/database."""
        host = self._settings.host if self._settings.is_socket else self._settings.host.lower()
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self._settings.port}/{self._settings.database}"

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Batches that keep the number of commits low; a bad row is searched from here, so they are not larger."""
        return Limits(rows=25_000, bytes=32 * 2**20, concurrency=4)

    def validate(self, task: SinkTask) -> None:
        """Refuse names that MySQL does not take, keys that are not mapped, and types without an exact form."""
        problems = task_problems(task, self._settings.database)
        if problems:
            raise ConfigurationError(*problems)

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

    def missing(self, task: SinkTask) -> str | None:
        """Whether the table or the fence row is gone, although rows were delivered."""
        if task.first:
            return None
        name, record = self._name(task), self._record_of(task)
        with self._reading() as connection:
            if engine_of(connection, name) is None:
                return f"the table {name}"
            if not record.exists(connection) or record.fence(connection) is None:
                return f"the record of this sync in {record.fences}"
        return None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one transaction sees it; rows marked by `soft_delete` are left out."""
        name = self._name(task)
        with self._reading() as connection:
            table = read_table(connection, name)
            if table is None:
                raise self._error(f"no table {name}", "the table of the last push", RESYNC)
            problems = table_problems(table, name, task)
            if problems:
                raise DestinationError(*problems)
            yield from read_rows(connection, name, task)

    def open(self, task: SinkTask) -> None:
        """Take the fence, then prepare the table: each DDL of MySQL is a transaction of its own."""
        self.validate(task)
        self._task, self._record = task, self._record_of(task)
        with self._lock, self._explained():
            self._drop_connection()
            connection = self._connected()
            self._record.create(connection)
            unsafe = self._record.unsafe(connection)
            if unsafe:
                next_step = f"run: ALTER TABLE {unsafe.sql} ENGINE={ENGINE}"
                raise self._error(f"{unsafe} without transactions", f"the engine {ENGINE}", next_step)
            with transaction(connection):
                self._take_fence(connection)
            table = self._prepared_table(connection)
            row = run(connection, "SELECT @@max_allowed_packet").fetchone()
            self._packet = int(row[0]) if row else 2**20
            self._sql: Statements = statements(task, self._name(task), table, self._settings.database)
            self._table = table
            self._columns = {name: table.columns[name.lower()] for name in task.schema.names}

    def settle(self, claims: Sequence[str]) -> dict[str, bool | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), transaction(self._connected()) as connection:
            lost = self._record.lost(connection)
            if lost:
                raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")
            records = self._record.claims(connection)
            self._record.forget(connection, records.keys() - set(claims))
            return {claim: records.get(claim) for claim in claims}

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; rows that the table refuses are left out of it."""
        rows = batch.rows.num_rows
        never = None if self._task.mode is Mode.MIRROR else NEVER_DELETES
        changes = staged(batch.rows, self._columns, self._task.key, packet=self._packet, deletes=never)
        with self._lock:
            try:
                return self._deliver(batch, changes)
            except RowsMoved:
                return Delivery.of_all(rows, Outcome.RETRYABLE, MOVED)
            except pymysql.Error as error:
                return Delivery.of_all(rows, *failure(error))

    def finish(self) -> None:
        """Every wave is acknowledged: the records of the claims are no longer needed."""
        with (
            self._lock,
            suppress(pymysql.Error, DestinationError),
            transaction(self._connected()) as connection,
        ):
            if not self._record.lost(connection):
                self._record.forget(connection, self._record.claims(connection).keys())

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop_connection()

    def _deliver(self, batch: Batch, changes: Staged) -> Delivery:
        connection, part = self._connected(), secrets.token_hex(16)
        writer = self._writer(connection)
        # Outside of the transaction: nobody waits for us meanwhile, and some servers refuse temporary tables in one.
        if changes.values:
            writer.stage(changes)
        with rollback_on_error(connection):
            run(connection, "START TRANSACTION")
            lost = self._record.lost(connection)
            if lost:
                run(connection, "ROLLBACK")
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, lost)
            refused = changes.refused | (writer.write(changes) if changes.values else {})
            self._record.add(connection, batch, part, len(refused))
            return self._commit(connection, batch, part, rejections(refused))

    def _writer(self, connection: Connection[Any]) -> RowWriter:
        key = frozenset(map(str.lower, self._task.key))
        indexes = frozenset(name for name, columns in self._table.unique.items() if columns == key)
        known = self._table.constraints | {column.name for column in self._table.columns.values()}
        return RowWriter(connection, self._sql, self._task.mode, known, indexes)

    def _commit(self, connection: Connection[Any], batch: Batch, part: str, answer: Delivery) -> Delivery:
        try:
            run(connection, "COMMIT")
        except pymysql.Error as error:
            if number(error) in ROLLED_BACK:
                raise
            return self._after_lost_commit(batch, part, answer)
        return answer

    def _after_lost_commit(self, batch: Batch, part: str, answer: Delivery) -> Delivery:
        """Ask the record, on a connection of its own; it answers only when the doubtful transaction has ended."""
        rows = batch.rows.num_rows
        try:
            self._drop_connection()
            with transaction(self._connected()) as connection:
                lost = self._record.lost(connection)
                if self._record.has(connection, batch.claim, part):
                    return answer
        except pymysql.Error as error:
            lost = failure(error)[1]
        else:
            if not lost:  # a newer run may have removed the record
                return Delivery.of_all(rows, Outcome.RETRYABLE, "the connection was lost, the batch was rolled back")
        return Delivery.of_all(rows, Outcome.UNKNOWN, f"the connection was lost at the commit; {lost}")

    def _take_fence(self, connection: Connection[Any]) -> None:
        task, record = self._task, self._record
        lost = record.take(connection, first=task.first)
        if lost == LOST_RECORD:
            raise self._error(lost, f"the row of sync {task.sync} in {record.fences}", RESYNC)
        if lost:
            next_step = f"let it finish; if the ledger was reset, remove the row of {task.sync_id} from {record.fences}"
            raise self._error(f"{lost} (fence {record.fence(connection)})", f"none newer than {task.fence}", next_step)

    def _prepared_table(self, connection: Connection[Any]) -> Table:
        task, name = self._task, self._name(self._task)
        table = read_table(connection, name)
        if table is None:
            self._create(connection, name)
        elif self._settings.on_new_column == "add":
            for field in missing_fields(table, task):
                run(connection, add_column(name, field))
        table = read_table(connection, name)
        if table is None:
            raise self._error(f"no table {name}", "the table just made", "push again")
        problems = table_problems(table, name, task)
        if problems:
            raise DestinationError(*problems)
        return table

    def _create(self, connection: Connection[Any], name: Name) -> None:
        if not self._task.first:
            raise self._error(f"the table {name} has vanished", "the table of the last push", RESYNC)
        if not self._settings.create_object or self._task.mode is Mode.UPDATE_ONLY:
            next_step = f"run: {create_table(name, self._task)}; or set create_object: true and a mode that inserts"
            raise self._error(f"no table {name}", "an existing table", next_step)
        run(connection, create_table(name, self._task))

    def _name(self, task: SinkTask) -> Name:
        name = object_name(task.object, self._settings.database)
        if name is None:
            raise ConfigurationError(*task_problems(task, self._settings.database))
        return name

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._settings.state_database or self._name(task).database, task.sync_id, task.fence)

    def _connected(self) -> Connection[Any]:
        if self._connection is None or not self._connection.open:
            self._connection = connect(self._settings)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            with suppress(pymysql.Error):
                connection.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection[Any]]:
        with self._explained():
            connection = connect(self._settings)
            try:
                with transaction(connection, read_only=True):
                    yield connection
            finally:
                with suppress(pymysql.Error):
                    connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except pymysql.Error as error:
            _, reason = failure(error)
            expected, next_step = "a database that can be read and written", "see docs/mysql.md, then push again"
            raise self._error(reason, expected, next_step) from None

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"MySQL database {self.identity}", found, expected, next_step))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".")[:2] if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
