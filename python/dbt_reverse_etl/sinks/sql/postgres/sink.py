"""A table of a Postgres database. Types: see `values`; what a column must be like: `table`.

Each batch is one transaction under the lock of the sync's fence row: the rows are copied into a temporary table, deleted
and upserted from there, and the record of the batch is written. Two tables of our own; a user's table gets no extra column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.sql.database import RolledBack
from dbt_reverse_etl.sinks.sql.database_sink import Database, DatabaseSink
from dbt_reverse_etl.sinks.sql.postgres.settings import PostgresOptions, PostgresSettings

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

from dbt_reverse_etl.sinks.sql.postgres.catalog import Name, object_name, read_table
from dbt_reverse_etl.sinks.sql.postgres.full_load import FullLoad, begin_full_load, drop_left_over, load_table
from dbt_reverse_etl.sinks.sql.postgres.reading import read_rows
from dbt_reverse_etl.sinks.sql.postgres.record import Record
from dbt_reverse_etl.sinks.sql.postgres.rights import lacks
from dbt_reverse_etl.sinks.sql.postgres.rows import RowWriter, condition, row_is_at_fault
from dbt_reverse_etl.sinks.sql.postgres.session import (
    OLDEST_SERVER,
    begin,
    connect,
    failure,
    is_doubtful,
    rollback_on_error,
)
from dbt_reverse_etl.sinks.sql.postgres.statements import Statements, statements
from dbt_reverse_etl.sinks.sql.postgres.table import (
    add_column,
    create_table,
    lengths,
    missing_fields,
    soft_delete,
    table_problems,
    task_problems,
)
from dbt_reverse_etl.sinks.sql.postgres.values import Staged, staged
from dbt_reverse_etl.sinks.sql.rights import Lack, needs

Connection = psycopg.Connection[Any]


class PostgresSink(DatabaseSink):
    """Keeps one table of a Postgres database equal to a model."""

    type = "postgres"
    settings_model = PostgresSettings
    options_model = PostgresOptions
    database = Database(
        "Postgres",
        psycopg.Error,
        failure,
        rollback_on_error,
        read_table,
        read_rows,
        table_problems,
        create_table,
        missing_fields,
        add_column,
    )

    _settings: PostgresSettings

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Large batches, for each passes over the whole index once, and few connections; more only compete for its pages."""
        return Limits(rows=500_000, bytes=64 * 2**20, concurrency=4)

    def check(self) -> None:
        """Log in and read, nothing else."""
        with self._reading() as connection:
            version = connection.info.server_version // 10_000
            if version < OLDEST_SERVER:
                raise self._error(f"Postgres {version}", f"{OLDEST_SERVER} or newer", "upgrade the server")
            row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
            if row is not None and row[0]:
                raise self._error("a standby, which takes no writes", "the primary", "name the primary as host")

    def _open(self, connection: Connection) -> None:
        """All in one transaction."""
        with self._transaction(connection):
            self._record.create(connection)
            self._take_fence(connection)
            name, table = self._name(self._task), self._prepared_table(connection)
            drop_left_over(connection, name)
            self._load: FullLoad | None = None
            if self._task.full_load:
                self._load = begin_full_load(connection, name, self._task)
                name, table = self._load.name, read_table(connection, self._load.name)
            self._sql: Statements = statements(self._task, name, table)
            self._lengths = lengths(table, self._task)

    def _swap(self, connection: Connection, claim: str) -> None:
        load = self._load
        assert load  # noqa: S101  (swap is for full loads only)
        try:
            self._swapped_in_a_transaction(connection, claim, lambda: load.swap(connection, self._task, self._loaded))
        except psycopg.Error as error:
            if not row_is_at_fault(error.sqlstate):
                raise
            raise self._not_taken(condition(error.sqlstate or "")) from None

    def _changes(self, rows: pa.Table, deletes: str | None) -> Staged:
        names, key = self._task.schema.names, self._task.key
        return staged(rows, names, key, deletes=deletes, lengths=self._lengths)

    def _write(self, connection: Connection, changes: Staged) -> dict[int, str]:
        refused = RowWriter(connection, self._sql, self._task.mode).write(changes)
        return {row: self._load.in_words(reason) for row, reason in refused.items()} if self._load else refused

    def _lacks(self, connection: Connection, task: SinkTask, record: Sequence[Name]) -> list[Lack]:
        name, how = (
            self._name(task),
            {"soft_delete": bool(soft_delete(task)), "create_object": self._settings.create_object},
        )
        ours = [*record, *([load_table(name)] if task.full_load else [])]
        return lacks(connection, needs(task, name, ours, **how), self._settings.user)

    def _task_problems(self, task: SinkTask) -> list[Problem]:
        return task_problems(task)

    def _object_name(self, task: SinkTask) -> Name | None:
        return object_name(task.object)

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._settings.state_schema or self._name(task).schema, task.sync_id, task.fence)

    def _shown(self, statement: Any) -> str:
        text: str = statement.as_string(None)
        return text

    def _connect(self) -> Connection:
        return connect(self._settings)

    def _is_connected(self, connection: Connection) -> bool:
        return not connection.closed

    def _begin(self, connection: Connection, *, read_only: bool = False) -> None:
        begin(connection, self._settings, read_only=read_only)

    def _run(self, connection: Connection, statement: Any) -> Any:
        return connection.execute(statement)

    def _is_rolled_back(self, connection: Connection, error: psycopg.Error) -> bool:
        if connection.broken or is_doubtful(error):
            return False
        if row_is_at_fault(error.sqlstate):
            raise RolledBack("a deferred constraint or trigger of the table refused the batch") from error
        return True
