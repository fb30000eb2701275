"""A topic as a table: the last value of each key, without the keys whose last message deletes them.

One partition after the other, each up to the end that it has when its turn comes: the rows of one partition are held in memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import Consumer  # as the Producer of the sink

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.settings import CLIENT, KafkaSettings
from dbt_reverse_etl.sinks.kafka.topic import PATIENCE, NoAnswer, name_of
from dbt_reverse_etl.sinks.reading import Parse, from_json, rows_of_objects

ROWS = 10_000  # of one table
_AT_ONCE, _POLL = 2_000, 0.5
_NO_GROUP = "GROUP_AUTHORIZATION_FAILED"  # the client looks for a group's coordinator, and needs none


class Format(NamedTuple):
    """How values are read: `decode` gives the fields of one, None where it is none of this format; `parse` reads each of them."""

    decode: Callable[[bytes], dict[str, Any] | None]
    parse: Parse


def read_rows(settings: KafkaSettings, task: SinkTask, partitions: int, form: Format) -> Iterator[pa.Table]:
    """The rows of the topic, as `reading.rows_of_objects` gives them. Raises NoAnswer."""
    consumer = Consumer(settings.connection() | _CONFIG)
    try:
        for number in range(partitions):
            values = iter(_last_values(consumer, task.object, number).items())
            while some := list(itertools.islice(values, ROWS)):
                yield rows_of_messages(some, task, form)
    except KafkaException as error:
        raise NoAnswer(name_of(error)) from None
    finally:
        consumer.close()


_CONFIG: dict[str, Any] = {
    "group.id": CLIENT,  # required; nothing is committed, and no member joins
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


def rows_of_messages(messages: Sequence[tuple[bytes, bytes]], task: SinkTask, form: Format) -> pa.Table:
    """The rows of keys and their last values."""
    found = [_row(key, value, task, form) for key, value in messages]
    unreadable = [not readable for _, readable in found]
    return rows_of_objects([row or {} for row, _ in found], unreadable, task.schema, form.parse)


def _row(key: bytes, value: bytes, task: SinkTask, form: Format) -> tuple[dict[str, Any] | None, bool]:
    """The fields, and whether it is we who wrote them; of a foreign value the key fields, if the key tells them."""
    row = form.decode(value)
    if row is not None and task.mode is Mode.CHANGELOG:
        row = row.get("after")  # a tombstone stands behind the event of a delete
    # A field that a column added later is NULL: rows that it did not change are not sent again.
    if isinstance(row, dict) and row.keys() >= set(task.key):
        return row, True
    return _object(key), False


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


JSON = Format(_object, from_json)


def _last_values(consumer: Consumer, topic: str, number: int) -> dict[bytes, bytes]:
    """Of one partition, by key. A message without a key is no row of a table, and is left out."""
    place = TopicPartition(topic, number, OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(place, PATIENCE)
    last: dict[bytes, bytes] = {}
    consumer.assign([place])
    for message in _messages(consumer, end):
        key, value = message.key(), message.value()
        if key is not None:
            last.pop(bytes(key), None)
            if value is not None:
                last[bytes(key)] = bytes(value)
    return last


def _messages(consumer: Consumer, end: int) -> Iterator[Message]:
    """Those of the assigned partition that stand before `end`; the last of them may have been compacted away."""
    heard = time.monotonic()
    while time.monotonic() < heard + PATIENCE:
        for message in consumer.consume(_AT_ONCE, _POLL):
            heard, error = time.monotonic(), message.error()
            if error is None:
                if (offset := message.offset() or 0) < end:
                    yield message
                if offset >= end - 1:
                    return
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.name() != _NO_GROUP:
                raise NoAnswer(error.name())
    raise NoAnswer("_TIMED_OUT")
