"""The rows of a table as Arrow tables: one COPY in CSV, parsed by Arrow, no Python object per value."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
from psycopg import Connection
from pyarrow import csv

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.reading import rows_of

BLOCK = 8 * 2**20  # bytes of CSV in one table


def read_copy(connection: Connection[Any], query: str, task: SinkTask, arrays: Collection[str]) -> Iterator[pa.Table]:
    """The fields of a task, whose texts the query gives; `arrays` as in `rows_of`."""
    # Behind a constant, because Arrow drops a BOM with which the first value begins, and a line of one NULL, which is empty.
    constant, *names = map(str, range(len(task.schema) + 1))
    parse = csv.ParseOptions(newlines_in_values=True)
    read = csv.ReadOptions(column_names=[constant, *names], block_size=BLOCK)
    # COPY writes NULL without quotes, and an empty text with them.
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        include_columns=names,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with connection.cursor().copy(f"COPY (SELECT 0, one.* FROM ({query}) one) TO STDOUT (FORMAT csv)".encode()) as copy:
        stream = io.BufferedReader(_Stream(copy), BLOCK)
        if not stream.peek(1):
            return
        try:
            for batch in csv.open_csv(stream, read, parse, convert):
                yield rows_of(dict(zip(task.schema.names, batch.columns, strict=True)), task.schema, arrays)
        except pa.ArrowInvalid as error:
            if "straddling object" not in str(error):
                raise
            found, expected = f"a row of more than {BLOCK // 2**20} MiB as text", "smaller rows, to compare them"
            next_step = "reconcile other syncs; this one can be pushed, and a resync sends every row"
            raise DestinationError(Problem(task.object, found, expected, next_step)) from None


class _Stream(io.RawIOBase):
    """The blocks of a COPY as a file."""

    def __init__(self, copy: Any) -> None:
        self._blocks, self._rest = iter(copy), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        wanted = memoryview(target)
        taken = min(len(wanted), len(self._rest))
        wanted[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken
