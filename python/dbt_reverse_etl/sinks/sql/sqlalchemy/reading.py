"""The rows of a table as Arrow tables, streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dbt_reverse_etl.sinks.reading import rows_of
from dbt_reverse_etl.values.arrow import plain_type

READ_AT_ONCE = 20_000  # rows in one table


def read_rows(connection: Connection, table: sa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """The fields of a schema in every row, as `reading.rows_of` gives them; the columns of `table` are in its order."""
    cells = [sa.cast(column, sa.Text()) if isinstance(column.type, sa.JSON) else column for column in table.c]
    with connection.execution_options(yield_per=READ_AT_ONCE).execute(sa.select(*cells)) as result:
        for rows in result.partitions():
            columns = zip(*rows, strict=True)
            texts = {
                field.name: _texts(column, plain_type(field.type))
                for field, column in zip(schema, columns, strict=True)
            }
            yield rows_of(texts, schema)


def _texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else _text(value, kind) for value in values], pa.string())


def _text(value: Any, kind: pa.DataType) -> str:
    if pt.is_boolean(kind):
        return str(int(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime) and pt.is_date(kind):
        value = value.date()
    if isinstance(value, datetime):
        in_utc = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return in_utc.isoformat(" ", "microseconds")
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, date) else str(value)
