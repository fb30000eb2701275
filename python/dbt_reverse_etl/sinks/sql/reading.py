"""The rows of a table as Arrow tables, from a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of

READ_AT_ONCE = 100_000  # rows in one table


def rows_in_parts(
    cursor: Any, task: SinkTask, text_of: Callable[[Any], Any] = lambda value: value, kind: pa.DataType | None = None
) -> Iterator[pa.Table]:
    """The fields of a task; `text_of` makes texts of this kind of the values, where the database has not."""
    while rows := cursor.fetchmany(READ_AT_ONCE):
        columns = zip(*rows, strict=True)
        texts = {
            name: pa.array(map(text_of, column), kind or pa.string())
            for name, column in zip(task.schema.names, columns, strict=True)
        }
        yield rows_of(texts, task.schema)
