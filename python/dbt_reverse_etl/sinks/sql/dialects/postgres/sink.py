"""Postgres: rows are copied into a temporary table, in binary, then deleted and upserted from there, all in one transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.refusals import Refusal
from dbt_reverse_etl.sinks.sql.dialect import Dialect, Fault, OpenMode, RolledBack
from dbt_reverse_etl.sinks.sql.dialects.postgres import session
from dbt_reverse_etl.sinks.sql.dialects.postgres.kinds import KINDS
from dbt_reverse_etl.sinks.sql.dialects.postgres.reading import read_copy
from dbt_reverse_etl.sinks.sql.dialects.postgres.rights import lacks
from dbt_reverse_etl.sinks.sql.dialects.postgres.rows import PostgresWriter
from dbt_reverse_etl.sinks.sql.dialects.postgres.table import IN_OTHER_CASE, PostgresColumn, found, read_table
from dbt_reverse_etl.sinks.sql.settings import LONGEST_POSTGRES_NAME, PostgresSettings, SoftDeleteOptions
from dbt_reverse_etl.sinks.sql.sink import SqlSink
from dbt_reverse_etl.sinks.sql.table import Name, Table, Wrong
from dbt_reverse_etl.values.arrow import is_bytes, is_text

OLDEST_SERVER = 12
# What was told as delivered outlives a crash of the server; `remote_apply` and the like stay.
_DURABLE = """pg_catalog.set_config('synchronous_commit',
    CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'on'
    ELSE pg_catalog.current_setting('synchronous_commit') END, true)"""
LOCKS = 0x6462745F72657472  # any number that nobody else uses
Connection = psycopg.Connection[Any]


class PostgresDialect(Dialect):
    """One database of a Postgres server."""

    name = "Postgres"
    page = "docs/postgres.md"
    failure_type = psycopg.Error
    # Large batches, for each passes over the whole index once, and few connections; more only compete for its pages.
    limits = Limits(rows=500_000, bytes=64 * 2**20, concurrency=4)
    mark = "%s"
    object_form = 'table, schema.table or "quoted".name of at most 63 bytes a part'
    name_form = "different names of 1 to 63 bytes"
    key_form = ", that holds for all rows and is not deferrable"
    moment_types = frozenset({"timestamptz", "timestamp"})
    lock_fence = " FOR SHARE"
    hides_commits = True
    default_schema = "public"
    kinds = KINDS

    settings: PostgresSettings

    failure = staticmethod(session.failure)
    next_step = staticmethod(session.login_step)
    lacks = staticmethod(lacks)
    read_table = staticmethod(read_table)

    def unfit_server(self, connection: Connection) -> Wrong | None:
        """From what the server sends with each new connection; a pooler may leave some of it out."""
        version = connection.info.server_version // 10_000
        encoding = connection.info.parameter_status("server_encoding")
        if 0 < version < OLDEST_SERVER:
            return f"Postgres {version}", f"{OLDEST_SERVER} or newer", "upgrade the server"
        if encoding not in (None, "UTF8"):
            found, expected = f"a database with the encoding {encoding}", "UTF8, which has every character"
            return found, expected, "name another database"
        return None

    def server_problem(self, connection: Connection) -> Wrong | None:
        if connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() != (True,):
            return None
        return "a standby, which takes no writes", "the primary", "name the primary as host"

    def connect(self, mode: OpenMode) -> Connection:
        return session.connect(self.settings)

    def is_open(self, connection: Connection) -> bool:
        return not connection.closed

    def run(self, connection: Connection, statement: str, values: Sequence[Any] = ()) -> Any:
        return connection.execute(statement.encode(), values or None)

    def begin(self, connection: Connection, *, read_only: bool = False) -> None:
        """What is set ends with the transaction, so that a pooler may be between; TimeZone is that of the session."""
        # Never READ WRITE: on a standby that is another error than the one of a write.
        self.run(connection, f"BEGIN ISOLATION LEVEL READ COMMITTED{' READ ONLY' if read_only else ''}")
        wanted = {
            "lock_timeout": f"{round(self.settings.lock_timeout * 1000)}ms",
            "statement_timeout": f"{round(self.settings.statement_timeout * 1000)}ms",
            "DateStyle": "ISO, YMD",
            "extra_float_digits": "1",
        }
        # Defaults and triggers write local time as for anybody else; libpq sends PGTZ, which hides the zone of the role.
        if read_only or "PGTZ" in os.environ:
            wanted["TimeZone"] = "UTC"
        calls = [f"pg_catalog.set_config('{name}', '{value}', true)" for name, value in wanted.items()]
        self.run(connection, f"SELECT {', '.join([*calls, _DURABLE])}")

    def fault(self, connection: Connection, error: psycopg.Error) -> Fault | None:
        state = error.sqlstate
        is_of_row = state == session.INTERNAL or session.row_is_at_fault(state) or session.is_raised(error)
        return (state,) if is_of_row else None

    def is_rolled_back(self, connection: Connection, error: psycopg.Error) -> bool:
        if connection.broken or session.is_doubtful(error):
            return False
        if session.row_is_at_fault(error.sqlstate):
            raise RolledBack("a deferred constraint or trigger of the table refused the batch") from error
        return True

    def serialize(self, connection: Connection, word: str) -> None:
        query = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, %s))"
        self.run(connection, query, (word, LOCKS))

    def operator(self, sign: str) -> str:
        return f"OPERATOR(pg_catalog.{sign})"

    def fold(self, name: str) -> str:
        return name

    def is_name(self, name: str) -> bool:
        return 0 < len(name.encode()) <= LONGEST_POSTGRES_NAME and "\0" not in name

    def exists(self, connection: Connection, name: Name) -> bool:
        return found(connection, name) is not None

    def name_in_other_case(self, connection: Connection, name: Name) -> str | None:
        row = connection.execute(IN_OTHER_CASE, (name.schema, name.name)).fetchone()
        return row[0] if row else None

    def read_rows(self, connection: Connection, name: Name, table: Table, task: SinkTask) -> Iterator[pa.Table]:
        arrays = {field.name for field in task.schema if _is_array(field, table.columns[field.name])}
        return read_copy(connection, self.every_row(name, table, task), task, arrays)

    def text_of(self, field: pa.Field, column: PostgresColumn) -> str:
        quoted = self.quoted(field.name)
        if is_bytes(field.type):
            return f"pg_catalog.encode({quoted}, 'hex')"
        if _is_array(field, column):
            return f"pg_catalog.to_json({quoted}::pg_catalog.text[])::pg_catalog.text"
        return f"{quoted}::pg_catalog.text"

    def unfit(self, array: Any, written: Any, column: PostgresColumn) -> list[Refusal]:
        most = column.most_characters
        texts = pc.list_flatten(array) if pa.types.is_list(array.type) else array
        if most is None or not is_text(texts.type):
            return []
        longer = pc.fill_null(pc.greater(pc.utf8_length(texts.cast(pa.large_string())), most), False)
        if pa.types.is_list(array.type):
            rows = pc.list_parent_indices(array).filter(longer)
            longer = pc.is_in(pa.array(range(len(array)), rows.type), rows)
        return [(longer, f"longer than the {most} characters of its column")]


class PostgresSink(SqlSink):
    """Keeps one table of a Postgres database equal to a model."""

    type = "postgres"
    settings_model = PostgresSettings
    options_model = SoftDeleteOptions
    distributable = True
    dialect_type = PostgresDialect
    writer_type = PostgresWriter


def _is_array(field: pa.Field, column: Any) -> bool:
    return bool(column.category == "A" and pa.types.is_list(field.type))
