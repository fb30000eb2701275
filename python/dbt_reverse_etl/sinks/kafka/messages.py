"""Rows as messages: key, value and headers.

| mode | insert, update | delete |
|---|---|---|
| `upsert`, `mirror` | the fields | no value (a tombstone) |
| `changelog` | an event: `envelope` | an event, and a tombstone behind it |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, SNAPSHOT, Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.envelope import PREVIOUS, enveloped
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.sinks.refusals import deleted_rows, null_keys, reasons_of, refused_deletes
from dbt_reverse_etl.values.encoding import Encoded, encode_rows, texts

NO_TEXT = "a value without an exact form as text"
Header = tuple[str, str | bytes | None]  # the client's type
# Key, value, event id, and the two headers that many rows share. A list of headers is made only when it is sent: kept for
# thousands of rows it would be work for the garbage collector.
Message = tuple[bytes | None, bytes | None, bytes, Header, Header]


Entry = Message | str  # of one row; or why it is none, without its value
Encode = Callable[[pa.Table], Encoded]  # rows or events as values


def json_of(options: KafkaOptions, mode: Mode) -> Encode:
    """Values as JSON. An image before was sent already: NaN in it was null by an earlier `nan`, and its row must not be stuck."""
    sent = (PREVIOUS,) if mode is Mode.CHANGELOG else ()
    return lambda rows: encode_rows(rows, nan=options.nan, nan_is_null=sent)


def entries_of(rows: pa.Table, task: SinkTask, options: KafkaOptions, encode: Encode) -> list[Entry]:
    """One entry for each row of a batch."""
    deleted = deleted_rows(rows)
    keys, values = _keys(rows, task.key, options), _values(rows, deleted, task, encode)
    entries: list[Entry] = list(zip(keys.rows, values.rows, *_headers(rows), strict=True))
    refused = values.rejected | keys.rejected | null_keys(rows, task.key) | refused_deletes(rows, task.mode)
    for row, reason in refused.items():
        entries[row] = reason
    return entries


def tombstone(event: Message) -> Message:
    """What follows the event of a delete, so that a compacted topic forgets the key."""
    key, _value, event_id, operation, snapshot = event
    return key, None, event_id, operation, snapshot


def _headers(rows: pa.Table) -> tuple[list[bytes], Iterable[Header], Iterable[Header]]:
    events = rows.column(EVENT_ID).cast(pa.binary()).to_pylist()
    return events, _shared("operation", rows.column(OPERATION)), _shared("snapshot_id", rows.column(SNAPSHOT))


def _shared(name: str, column: pa.ChunkedArray) -> Iterable[Header]:
    """A header for each row: one object for those that are equal."""
    texts: list[str] = column.cast(pa.string()).to_pylist()
    headers: Mapping[str, Header] = {text: (name, text.encode()) for text in set(texts)}
    return map(headers.__getitem__, texts)


def _keys(rows: pa.Table, key: Sequence[str], options: KafkaOptions) -> Encoded:
    if options.key == "json":
        return encode_rows(rows.select(key))
    written = pa.array(texts(rows.column(key[0])), pa.large_string())
    return Encoded(written.cast(pa.large_binary()).to_pylist(), reasons_of(key[0], [(written.is_null(), NO_TEXT)]))


def _values(rows: pa.Table, deleted: Sequence[int], task: SinkTask, encode: Encode) -> Encoded:
    if task.mode is Mode.CHANGELOG:
        return encode(enveloped(rows, task))
    encoded = encode(rows.select(task.schema.names))
    for row in deleted:
        encoded.rows[row] = None
    return encoded
