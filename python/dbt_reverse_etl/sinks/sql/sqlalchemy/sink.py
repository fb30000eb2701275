"""A table of a database that SQLAlchemy speaks to: DuckDB, SQL Server, Oracle, Postgres.

Each batch is one transaction under the lock of the sync's fence row: rows are deleted and upserted by the dialect's own construct,
the table is asked for the keys that it then has, and the record of the batch is written. Two tables of our own; a user's table gets
no extra column. Types: see `types`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Applied, Batch, Limits, Mode, Rights, Settings, Sink, SinkTask, refuse_newer
from dbt_reverse_etl.sinks.sql.claim_record import Part, Unanswered, answers_of, parts_of
from dbt_reverse_etl.sinks.sql.database import NEVER_DELETES, RESYNC, fence_not_taken, rejections
from dbt_reverse_etl.sinks.sql.rights import UNTRIED

try:
    from sqlalchemy.engine import Connection, Engine
except ModuleNotFoundError as error:
    raise ConfigurationError(
        Problem(
            "destination of type sqlalchemy",
            "no package SQLAlchemy",
            "it installed",
            "pip install 'dbt-reverse-etl[sqlalchemy]'",
        )
    ) from error

from sqlalchemy.exc import SQLAlchemyError

from dbt_reverse_etl.sinks.sql.sqlalchemy.errors import failure, is_rolled_back
from dbt_reverse_etl.sinks.sql.sqlalchemy.reading import read_rows
from dbt_reverse_etl.sinks.sql.sqlalchemy.record import Record
from dbt_reverse_etl.sinks.sql.sqlalchemy.rows import RowsRefused, RowWriter
from dbt_reverse_etl.sinks.sql.sqlalchemy.session import make_engine, rollback_on_error, transaction
from dbt_reverse_etl.sinks.sql.sqlalchemy.settings import SqlalchemySettings
from dbt_reverse_etl.sinks.sql.sqlalchemy.statements import STAGED, Statements, statements
from dbt_reverse_etl.sinks.sql.sqlalchemy.table import (
    Name,
    Table,
    create_table,
    exists,
    new_table,
    object_name,
    read_table,
    table_problems,
    task_problems,
)
from dbt_reverse_etl.sinks.sql.sqlalchemy.values import Changes, changes_of


class SqlalchemySink(Sink):
    """Keeps one table of a database equal to a model."""

    type = "sqlalchemy"
    settings_model = SqlalchemySettings
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    settles_buckets = True
    validates_early = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, SqlalchemySettings)  # noqa: S101  (the engine validates with settings_model)
        self._settings = settings
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._unanswered = Unanswered()

    @property
    def identity(self) -> str:
        """dialect://host:port/database, or dialect://file."""
        return self._settings.identity

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """A refused batch is halved until the row at fault stands alone, so it is not large."""
        staged = self._settings.dialect in STAGED
        return Limits(rows=50_000 if staged else 5_000, bytes=32 * 2**20)

    def validate(self, task: SinkTask) -> None:
        """Refuse names, keys and types that the dialect has no exact form for, and a driver that is not installed."""
        problems = task_problems(task, self._settings.dialect)
        if problems:
            raise ConfigurationError(*problems)
        self._made_engine()

    def check(self) -> None:
        """Log in, nothing else; a file that is not there is made by the first push, its folder is not."""
        file = self._settings.file
        if file is None or file.exists():
            with self._reading():
                return
        if not file.parent.is_dir():
            raise self._error(f"no folder {file.parent}", "the folder of the file", "make it, or correct the path")

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (each database has its own way to ask)
        """Only the login was tried."""
        return Rights(untried=("the rights on the table and to make ours", UNTRIED))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the table or the fence row is gone, although rows were delivered."""
        file = self._settings.file
        if file and not file.exists():  # to connect would make it
            return None if task.first else f"the file {file}"
        name, record = _name(task), self._record_of(task)
        with self._reading() as connection:
            fence = record.fence(connection) if record.exists(connection) else None
            refuse_newer(fence, task)
            if task.first:
                return None
            if not exists(connection, name):
                return f"the table {name}"
            return f"the record of this sync in {record.fences}" if fence is None else None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one query sees it."""
        file, name = self._settings.file, _name(task)
        if file and not file.exists():  # to connect would make it
            raise self._error(f"no more the file {file}", "what the last push left", RESYNC)
        with self._reading() as connection:
            if not exists(connection, name):
                raise self._error(f"no more the table {name}", "what the last push left", RESYNC)
            table = self._fitting_table(connection, task)
            yield from read_rows(connection, table.mapped(name, task), task.schema)

    def open(self, task: SinkTask) -> None:
        """Take the fence, then prepare the table: DDL is a transaction of its own in some databases."""
        self.validate(task)
        self._task, self._record = task, self._record_of(task)
        self._unanswered = Unanswered()
        with self._lock, self._explained():
            self._drop_connection()
            connection = self._connected()
            self._record.create(connection)
            with transaction(connection):
                self._take_fence(connection)
            with transaction(connection):
                table = self._prepared_table(connection)
            mapped = table.mapped(_name(task), task)
            self._sql: Statements = statements(mapped, table.key(task), task.mode, self._settings.dialect)
            self._types = {field: column.type for field, column in zip(task.schema.names, mapped.c, strict=True)}
            self._names = table.names

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), transaction(self._connected()) as connection:
            lost = self._record.lost(connection)
            if lost:
                raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")
            self._record.forget(connection, but=claims)
            answers = answers_of(self._record.parts(connection))
            return {claim: answers.get(claim) for claim in claims}

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; one in which the database refuses a row is rolled back whole."""
        rows, task = batch.rows.num_rows, self._task
        never = None if task.mode is Mode.MIRROR else NEVER_DELETES
        changes = changes_of(batch.rows, self._types, task.key, self._settings.dialect, deletes=never)
        with self._lock:
            try:
                return self._deliver(batch, changes)
            except RowsRefused as refusal:
                return Delivery.of_all(rows, Outcome.REJECTED, str(refusal))
            except SQLAlchemyError as error:
                return Delivery.of_all(rows, *failure(error))

    def finish(self, claim: str = "") -> None:
        """Forget the records of all claims but this one."""
        with self._lock, suppress(SQLAlchemyError, DestinationError), transaction(self._connected()) as connection:
            if not self._record.lost(connection):
                self._record.forget(connection, but=[claim])

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop_connection()

    def _deliver(self, batch: Batch, changes: Changes) -> Delivery:
        connection = self._connected()
        with rollback_on_error(connection):
            lost = self._record.lost(connection)
            if lost:
                connection.rollback()
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, lost)
            before = self._unanswered
            if before.is_of(batch) and self._record.has(connection, batch.claim, before.part):
                connection.rollback()
                return before.answer
            writer = RowWriter(connection, self._sql, self._task.mode, self._names)
            refused = changes.refused | writer.write(changes)
            parts = parts_of(batch, refused)
            self._record.add(connection, batch.claim, parts)
            return self._commit(connection, batch, parts[0], rejections(refused))

    def _commit(self, connection: Connection, batch: Batch, part: Part, answer: Delivery) -> Delivery:
        try:
            connection.commit()
        except SQLAlchemyError as error:
            if is_rolled_back(error):
                outcome, reason = failure(error, writing=True, known=self._names)
                if outcome is Outcome.REJECTED:
                    raise RowsRefused(reason) from None
                raise
            return self._after_lost_commit(batch, part, answer)
        return answer

    def _after_lost_commit(self, batch: Batch, part: Part, answer: Delivery) -> Delivery:
        """Ask the record, on a connection of its own: the lock of the fence is free only when the doubtful transaction has ended."""
        rows = batch.rows.num_rows
        try:
            self._drop_connection()
            with transaction(self._connected()) as connection:
                lost = self._record.lost(connection)
                if self._record.has(connection, batch.claim, part):
                    return answer
        except SQLAlchemyError as error:
            lost = failure(error)[1]
        else:
            if not lost:  # a newer run may have removed the record
                return Delivery.of_all(rows, Outcome.RETRYABLE, "the commit failed, the batch was rolled back")
        self._unanswered.note(batch, part, answer)
        return Delivery.of_all(rows, Outcome.UNKNOWN, f"the connection was lost at the commit; {lost}")

    def _take_fence(self, connection: Connection) -> None:
        lost = self._record.take(connection, first=self._task.first)
        if lost:
            fence = self._record.fence(connection)
            raise self._error(*fence_not_taken(self._task, lost, fence, self._record.fences))

    def _prepared_table(self, connection: Connection) -> Table:
        name = _name(self._task)
        if not exists(connection, name):
            self._create(connection, name)
        return self._fitting_table(connection, self._task)

    def _create(self, connection: Connection, name: Name) -> None:
        task = self._task
        if not task.first:
            raise self._error(f"the table {name} has vanished", "the table of the last push", RESYNC)
        if not self._settings.create_object or task.mode is Mode.UPDATE_ONLY:
            ddl = create_table(name, task, connection.dialect)
            next_step = f"run: {ddl}; or set create_object: true and a mode that inserts"
            raise self._error(f"no table {name}", "an existing table", next_step)
        new_table(name, task).create(connection)

    def _fitting_table(self, connection: Connection, task: SinkTask) -> Table:
        name = _name(task)
        table = read_table(connection, name)
        if table is None:
            raise self._error(f"no table {name}", "the table of the sync", RESYNC)
        problems = table_problems(table, name, task, connection.dialect)
        if problems:
            raise DestinationError(*problems)
        return table

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._settings.state_schema or _name(task).schema, task.sync_id, task.fence)

    def _made_engine(self) -> Engine:
        if self._engine is None:
            self._engine = make_engine(self._settings)
        return self._engine

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self._drop_connection()
            self._connection = self._made_engine().connect()
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._explained(), self._made_engine().connect() as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            _, reason = failure(error)
            expected, next_step = "a database that can be read and written", "see docs/sqlalchemy.md, then push again"
            raise self._error(reason, expected, next_step) from None

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"database {self.identity}", found, expected, next_step))


def _name(task: SinkTask) -> Name:
    name = object_name(task.object)
    if name is None:
        raise ConfigurationError(*task_problems(task, ""))
    return name
