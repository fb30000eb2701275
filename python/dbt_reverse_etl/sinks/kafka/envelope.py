"""The events of mode `changelog`: the envelope of Debezium, so that its consumers read them.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-change-events-value

Nothing in it depends on the clock: the same change is the same bytes whenever it is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.base import BEFORE, CAPTURED_AT, OPERATION, SNAPSHOT, SinkTask

CONNECTOR = "dbt-reverse-etl"
OPS = {"insert": "c", "update": "u", "delete": "d"}
PREVIOUS = "before"  # the field
ALIKE = {"after": PREVIOUS}  # one record, as in Debezium
COLUMNS = (SNAPSHOT, CAPTURED_AT, BEFORE)  # that an event needs beside the fields
_CAPTURED = pa.timestamp("us", "UTC")


def envelope(schema: pa.Schema) -> pa.Schema:
    """The fields of an event whose rows have this schema."""
    row, text, number = pa.struct(list(schema)), pa.string(), pa.int64()
    source = {"connector": text, "name": text, "snapshot_id": number, "captured_at": _CAPTURED}
    about = {"op": text, "ts_ms": number, "source": pa.struct(_required(source))}
    return pa.schema([pa.field(PREVIOUS, row), pa.field("after", row), *_required(about)])


def _required(kinds: Mapping[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]


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
    row, is_gone = schema.field("after").type, pc.equal(operations, "delete")
    words, letters = pa.array(list(OPS), pa.string()), pa.array(list(OPS.values()), pa.string())
    columns = [
        rows.column(BEFORE).combine_chunks().cast(row),
        pa.StructArray.from_arrays(images, fields=list(row), mask=is_gone),
        letters.take(pc.index_in(operations.cast(pa.string()), words)),
        captured.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()),
        pa.StructArray.from_arrays(source, fields=list(schema.field("source").type)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
