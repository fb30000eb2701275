"""The rows of a table as Arrow tables: one COPY in CSV, parsed by Arrow, no Python object per value."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from psycopg import Connection, sql
from pyarrow import csv

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of
from dbt_reverse_etl.sinks.sql.postgres.catalog import Name, Table
from dbt_reverse_etl.sinks.sql.postgres.table import soft_delete
from dbt_reverse_etl.values.arrow import is_bytes, plain_type

BLOCK = 8 * 2**20  # bytes of CSV in one table


def read_rows(connection: Connection[Any], name: Name, table: Table, task: SinkTask) -> Iterator[pa.Table]:
    """The fields of a task in every row, as `reading.rows_of` gives them; in the transaction that is open."""
    names = task.schema.names
    parse = csv.ParseOptions(newlines_in_values=True)
    read = csv.ReadOptions(column_names=names, block_size=BLOCK)
    # COPY writes NULL without quotes, and an empty text with them.
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with connection.cursor().copy(_query(name, table, task)) as copy:
        stream = io.BufferedReader(_Stream(copy), BLOCK)
        if not stream.peek(1):
            return
        for batch in csv.open_csv(stream, read, parse, convert):
            yield rows_of({field: batch.column(field) for field in names}, task.schema)


def _query(name: Name, table: Table, task: SinkTask) -> sql.Composed:
    texts = [_text(field, table) for field in task.schema]
    soft = soft_delete(task)
    kept = sql.SQL(" WHERE {} IS NULL").format(sql.Identifier(soft)) if soft else sql.SQL("")
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(texts), name.sql, kept
    )


def _text(field: pa.Field, table: Table) -> sql.Composed:
    column = sql.Identifier(field.name)
    if is_bytes(plain_type(field.type)):
        return sql.SQL("pg_catalog.encode({}, 'hex')").format(column)
    if table.columns[field.name].category == "A":
        return sql.SQL("pg_catalog.to_json({})::pg_catalog.text").format(column)
    return sql.SQL("{}::pg_catalog.text").format(column)


class _Stream(io.RawIOBase):
    """The blocks of a COPY as a file."""

    def __init__(self, copy: Any) -> None:
        self._blocks, self._rest = iter(copy), memoryview(b"")

    def readable(self) -> bool:
        """As a file."""
        return True

    def readinto(self, target: Any) -> int:
        """As a file."""
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        wanted = memoryview(target)
        taken = min(len(wanted), len(self._rest))
        wanted[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken
