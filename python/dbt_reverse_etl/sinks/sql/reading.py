"""The rows of a table as Arrow tables, from a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of

READ_AT_ONCE = 100_000  # rows in one table


def rows_in_parts(
    cursor: Any, task: SinkTask, text_of: Callable[[Any], Any] = lambda value: value
) -> Iterator[pa.Table]:
    """The fields of a task; `text_of` makes texts, or their bytes, of what the cursor gives."""
    while rows := cursor.fetchmany(READ_AT_ONCE):
        texts = (pa.array(map(text_of, column)) for column in zip(*rows, strict=True))
        yield rows_of(dict(zip(task.schema.names, texts, strict=True)), task.schema)
