"""The rows of a table as Arrow tables, from a cursor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of

READ_AT_ONCE = 100_000  # rows in one table


def rows_in_parts(cursor: Any, task: SinkTask) -> Iterator[pa.Table]:
    """The fields of a task, whose texts, or their bytes, the cursor gives."""
    while rows := cursor.fetchmany(READ_AT_ONCE):
        texts = map(pa.array, zip(*rows, strict=True))
        yield rows_of(dict(zip(task.schema.names, texts, strict=True)), task.schema)
