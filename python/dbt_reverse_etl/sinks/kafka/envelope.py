"""The events of mode `changelog`: the envelope of Debezium, so that its consumers read them.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-change-events-value

Nothing in it depends on the clock: the same change is the same bytes whenever it is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.base import BEFORE, CAPTURED_AT, OPERATION, SNAPSHOT, SinkTask

CONNECTOR = "dbt-reverse-etl"
OPS = {"insert": "c", "update": "u", "delete": "d"}
PREVIOUS = "before"  # the field
ALIKE = {"after": PREVIOUS}  # one record, as in Debezium
_CAPTURED = pa.timestamp("us", "UTC")


def envelope(schema: pa.Schema) -> pa.Schema:
    """The fields of an event whose rows have this schema."""
    row = pa.struct(list(schema))
    source = [
        pa.field("connector", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("captured_at", _CAPTURED, nullable=False),
    ]
    return pa.schema(
        [
            pa.field(PREVIOUS, row),
            pa.field("after", row),
            pa.field("op", pa.string(), nullable=False),
            pa.field("ts_ms", pa.int64(), nullable=False),
            pa.field("source", pa.struct(source), nullable=False),
        ]
    )


def enveloped(rows: pa.Table, task: SinkTask) -> pa.Table:
    """The events of a batch: a column for each field of `envelope`."""
    schema, count = envelope(task.schema), rows.num_rows
    operations = rows.column(OPERATION).combine_chunks()
    images = [rows.column(name).combine_chunks() for name in task.schema.names]
    captured = rows.column(CAPTURED_AT).combine_chunks().cast(_CAPTURED)
    source = [
        pa.repeat(pa.scalar(CONNECTOR, pa.string()), count),
        pa.repeat(pa.scalar(task.sync, pa.string()), count),
        rows.column(SNAPSHOT).combine_chunks(),
        captured,
    ]
    columns = [
        rows.column(BEFORE).combine_chunks().cast(schema.field("before").type),
        _struct(images, schema.field("after").type, nowhere=pc.equal(operations, "delete")),
        _ops(operations),
        captured.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()),
        _struct(source, schema.field("source").type),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _struct(columns: Sequence[Any], kind: pa.DataType, nowhere: Any = None) -> Any:
    """A column of structs, NULL where `nowhere` is true."""
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=nowhere)


def _ops(operations: Any) -> Any:
    words = pa.array(list(OPS), pa.string())
    return pa.array(list(OPS.values()), pa.string()).take(pc.index_in(operations.cast(pa.string()), words))
