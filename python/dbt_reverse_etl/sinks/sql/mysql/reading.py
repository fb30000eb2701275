"""The rows of a table as Arrow tables, streamed: the server writes every value as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of
from dbt_reverse_etl.sinks.sql.mysql.catalog import Name, Table, quoted
from dbt_reverse_etl.sinks.sql.mysql.table import soft_delete
from dbt_reverse_etl.values.arrow import is_bytes, plain_type

READ_AT_ONCE = 100_000  # rows in one table


def read_rows(connection: Connection[Any], name: Name, _table: Table, task: SinkTask) -> Iterator[pa.Table]:
    """The fields of a task in every row, as `reading.rows_of` gives them; in the transaction that is open."""
    soft = soft_delete(task)
    kept = f" WHERE {quoted(soft)} IS NULL" if soft else ""
    fields = ", ".join(f"CAST({_text(field)} AS CHAR)" for field in task.schema)
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(f"SELECT {fields} FROM {name.sql}{kept}")  # noqa: S608  (identifiers are quoted)
        while rows := cursor.fetchmany(READ_AT_ONCE):
            columns = zip(*rows, strict=True)
            yield rows_of(
                {field.name: pa.array(column, pa.string()) for field, column in zip(task.schema, columns, strict=True)},
                task.schema,
            )


def _text(field: pa.Field) -> str:
    kind, column = plain_type(field.type), quoted(field.name)
    if is_bytes(kind):
        return f"HEX({column})"
    return f"({column} + 0e0)" if pt.is_floating(kind) else column  # a FLOAT is written with six digits
