"""A table of a Postgres database. Types: see `postgres_values`; what a column must be like: `postgres_table`.

Each batch is one transaction under the lock of the sync's fence row: the rows are copied into a temporary table, deleted
and upserted from there, and the record of the batch is written. Two tables of our own; a user's table gets no extra column.
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
from dbt_reverse_etl.sinks.database import LOST_RECORD, NEVER_DELETES, RolledBack, rejections
from dbt_reverse_etl.sinks.postgres_settings import PostgresOptions, PostgresSettings

try:
    import psycopg
except ModuleNotFoundError as error:
    raise ConfigurationError(
        Problem(
            "destination of type postgres",
            "no package psycopg",
            "it installed",
            "pip install 'dbt-reverse-etl[postgres]'",
        )
    ) from error

from dbt_reverse_etl.sinks.postgres_catalog import Name, Table, exists, object_name, read_table
from dbt_reverse_etl.sinks.postgres_reading import read_rows
from dbt_reverse_etl.sinks.postgres_record import Record
from dbt_reverse_etl.sinks.postgres_rows import RowWriter, row_is_at_fault
from dbt_reverse_etl.sinks.postgres_session import (
    OLDEST_SERVER,
    begin,
    connect,
    failure,
    is_doubtful,
    rollback_on_error,
    transaction,
)
from dbt_reverse_etl.sinks.postgres_statements import Statements, statements
from dbt_reverse_etl.sinks.postgres_table import (
    add_column,
    create_table,
    lengths,
    missing_fields,
    table_problems,
    task_problems,
)
from dbt_reverse_etl.sinks.postgres_values import Staged, staged

RESYNC = "restore the database, or dbt run-operation resync for this sync"
Connection = psycopg.Connection[Any]


class PostgresSink(Sink):
    """Keeps one table of a Postgres database equal to a model."""

    type = "postgres"
    settings_model = PostgresSettings
    options_model = PostgresOptions
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    distributable = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, PostgresSettings)  # noqa: S101  (the engine validates with settings_model)
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    @property
    def identity(self) -> str:
        """host:port/database."""
        host = self._settings.host.lower() if not self._settings.host.startswith("/") else self._settings.host
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self._settings.port}/{self._settings.database}"

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Batches that keep the number of commits low, and few connections; more only compete for the same index pages."""
        return Limits(rows=100_000, bytes=64 * 2**20, concurrency=4)

    def validate(self, task: SinkTask) -> None:
        """Refuse names that Postgres would cut, keys that are not mapped, and types without an exact form."""
        problems = task_problems(task)
        if problems:
            raise ConfigurationError(*problems)

    def check(self) -> None:
        """Log in and read, nothing else."""
        with self._reading() as connection:
            version = connection.info.server_version // 10_000
            if version < OLDEST_SERVER:
                raise self._error(f"Postgres {version}", f"{OLDEST_SERVER} or newer", "upgrade the server")
            row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
            if row is not None and row[0]:
                raise self._error("a standby, which takes no writes", "the primary", "name the primary as host")

    def missing(self, task: SinkTask) -> str | None:
        """Whether the table or the fence row is gone, although rows were delivered."""
        if task.first:
            return None
        name, record = _name(task), self._record_of(task)
        with self._reading() as connection:
            if not exists(connection, name):
                return f"the table {name}"
            if not record.exists(connection) or record.fence(connection) is None:
                return f"the record of this sync in {record.fences}"
        return None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one query sees it; rows marked by `soft_delete` are left out."""
        name = _name(task)
        with self._reading() as connection:
            table = read_table(connection, name)
            if table is None:
                raise self._error(f"no table {name}", "the table of the last push", RESYNC)
            problems = table_problems(table, name, task)
            if problems:
                raise DestinationError(*problems)
            yield from read_rows(connection, name, table, task)

    def open(self, task: SinkTask) -> None:
        """Take the fence and prepare the table, in one transaction."""
        self.validate(task)
        self._task, self._record = task, self._record_of(task)
        with self._lock, self._explained():
            self._drop_connection()
            with transaction(self._connected(), self._settings) as connection:
                self._take_fence(connection)
                table = self._prepared_table(connection)
                self._sql: Statements = statements(task, _name(task), table)
                self._lengths = lengths(table, task)

    def settle(self, claims: Sequence[str]) -> dict[str, bool | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), transaction(self._connected(), self._settings) as connection:
            lost = self._record.lost(connection)
            if lost:
                raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")
            records = self._record.claims(connection)
            self._record.forget(connection, records.keys() - set(claims))
            return {claim: records.get(claim) for claim in claims}

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; rows that the table refuses are left out of it."""
        rows = batch.rows.num_rows
        with self._lock:
            never = None if self._task.mode is Mode.MIRROR else NEVER_DELETES
            names, key = self._task.schema.names, self._task.key
            changes = staged(batch.rows, names, key, deletes=never, lengths=self._lengths)
            try:
                return self._deliver(batch, changes)
            except RolledBack as refusal:
                return Delivery.of_all(rows, Outcome.REJECTED, str(refusal))
            except psycopg.Error as error:
                return Delivery.of_all(rows, *failure(error))

    def finish(self) -> None:
        """Every wave is acknowledged: the records of the claims are no longer needed."""
        with (
            self._lock,
            suppress(psycopg.Error, DestinationError),
            transaction(self._connected(), self._settings) as connection,
        ):
            if not self._record.lost(connection):
                self._record.forget(connection, self._record.claims(connection).keys())

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop_connection()

    def _deliver(self, batch: Batch, changes: Staged) -> Delivery:
        connection, part = self._connected(), secrets.token_hex(16)
        with rollback_on_error(connection):
            begin(connection, self._settings)
            lost = self._record.lost(connection)
            if lost:
                connection.execute("ROLLBACK")
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, lost)
            refused = changes.refused | RowWriter(connection, self._sql, self._task.mode).write(changes)
            self._record.add(connection, batch, part, len(refused))
            return self._commit(connection, batch, part, rejections(refused))

    def _commit(self, connection: Connection, batch: Batch, part: str, answer: Delivery) -> Delivery:
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            if not connection.broken and not is_doubtful(error):
                if row_is_at_fault(error.sqlstate):
                    raise RolledBack("a deferred constraint or trigger of the table refused the batch") from error
                raise
            return self._after_lost_commit(batch, part, answer)
        return answer

    def _after_lost_commit(self, batch: Batch, part: str, answer: Delivery) -> Delivery:
        """Ask the record, on a connection of its own; it answers only when the doubtful transaction has ended."""
        rows = batch.rows.num_rows
        try:
            self._drop_connection()
            with transaction(self._connected(), self._settings) as connection:
                lost = self._record.lost(connection)
                if self._record.has(connection, batch.claim, part):
                    return answer
        except psycopg.Error as error:
            lost = failure(error)[1]
        else:
            if not lost:  # a newer run may have removed the record
                return Delivery.of_all(rows, Outcome.RETRYABLE, "the connection was lost, the batch was rolled back")
        return Delivery.of_all(rows, Outcome.UNKNOWN, f"the connection was lost at the commit; {lost}")

    def _take_fence(self, connection: Connection) -> None:
        task, record = self._task, self._record
        record.create(connection)
        lost = record.take(connection, first=task.first)
        if lost == LOST_RECORD:
            raise self._error(lost, f"the row of sync {task.sync} in {record.fences}", RESYNC)
        if lost:
            next_step = f"let it finish; if the ledger was reset, remove the row of {task.sync_id} from {record.fences}"
            raise self._error(f"{lost} (fence {record.fence(connection)})", f"none newer than {task.fence}", next_step)

    def _prepared_table(self, connection: Connection) -> Table:
        task, name = self._task, _name(self._task)
        table = read_table(connection, name)
        if table is None:
            self._create(connection, name)
        elif self._settings.on_new_column == "add":
            for field in missing_fields(table, task):
                connection.execute(add_column(name, field))
        table = read_table(connection, name)
        if table is None:
            raise self._error(f"no table {name}", "the table just made", "push again")
        problems = table_problems(table, name, task)
        if problems:
            raise DestinationError(*problems)
        return table

    def _create(self, connection: Connection, name: Name) -> None:
        if not self._task.first:
            raise self._error(f"the table {name} has vanished", "the table of the last push", RESYNC)
        if not self._settings.create_object or self._task.mode is Mode.UPDATE_ONLY:
            ddl = create_table(name, self._task).as_string(None)
            next_step = f"run: {ddl}; or set create_object: true and a mode that inserts"
            raise self._error(f"no table {name}", "an existing table", next_step)
        connection.execute(create_table(name, self._task))

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._settings.state_schema or _name(task).schema, task.sync_id, task.fence)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._settings)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with (
            self._explained(),
            connect(self._settings) as connection,
            transaction(connection, self._settings, read_only=True),
        ):
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            _, reason = failure(error)
            expected, next_step = "a database that can be read and written", "see docs/postgres.md, then push again"
            raise self._error(reason, expected, next_step) from None

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"Postgres database {self.identity}", found, expected, next_step))


def _name(task: SinkTask) -> Name:
    name = object_name(task.object)
    if name is None:
        raise ConfigurationError(*task_problems(task))
    return name
