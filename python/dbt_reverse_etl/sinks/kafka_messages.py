"""Rows as messages: key and value for an insert or update, a key without a value (a tombstone) for a delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.encoding import Nan, encode_rows, texts
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Mode, SinkTask
from dbt_reverse_etl.sinks.database import NEVER_DELETES, null_keys, one_array, positions, reasons_of
from dbt_reverse_etl.sinks.kafka_settings import KafkaOptions

NO_TEXT = "a value without an exact form as text"
Headers = list[tuple[str, str | bytes | None]]  # the client's type
Message = tuple[bytes | None, bytes | None, Headers]  # key, value


@dataclass(frozen=True)
class Messages:
    """The messages of one batch, by row.

    Attributes:
        keys, values: None: a refused row; in `values` also a tombstone.
        events, operations: the headers.
        refused: row -> reason, without the value.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    events: Sequence[str]
    operations: Sequence[str]
    refused: dict[int, str]

    def __iter__(self) -> Iterator[Message]:
        for key, value, event, operation in zip(self.keys, self.values, self.events, self.operations, strict=True):
            yield key, value, [("event_id", event), ("operation", operation)]


def messages_of(rows: pa.Table, task: SinkTask, options: KafkaOptions) -> Messages:
    """The messages of a batch's rows."""
    deleted = positions(pc.equal(one_array(rows.column(OPERATION)), "delete"))
    keys, refused = _keys(rows, task.key, options)
    values, unwritable = _values(rows.select(task.schema.names), deleted, options.nan)
    never = {} if task.mode is Mode.MIRROR else dict.fromkeys(deleted, NEVER_DELETES)
    return Messages(
        keys,
        values,
        rows.column(EVENT_ID).to_pylist(),
        rows.column(OPERATION).to_pylist(),
        unwritable | refused | null_keys(rows, task.key) | never,
    )


def _keys(rows: pa.Table, key: Sequence[str], options: KafkaOptions) -> tuple[Sequence[bytes | None], dict[int, str]]:
    if options.key == "json":
        encoded = encode_rows(rows.select(key))
        return encoded.rows, encoded.rejected
    written = pa.array(texts(rows.column(key[0])), pa.large_string())
    return written.cast(pa.large_binary()).to_pylist(), reasons_of(key[0], [(written.is_null(), NO_TEXT)])


def _values(rows: pa.Table, deleted: Sequence[int], nan: Nan) -> tuple[Sequence[bytes | None], dict[int, str]]:
    encoded = encode_rows(rows, nan=nan)
    for row in deleted:
        encoded.rows[row] = None
    return encoded.rows, encoded.rejected
