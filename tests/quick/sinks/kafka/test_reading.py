"""Last values of a topic as rows, as `reconcile` compares them. Without a broker."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.reading import JSON, Format, rows_of_messages
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.sinks.reading import UNREADABLE

AVRO = Format(lambda value: orjson.loads(value[5:]), lambda value, _: value)  # which gives values in their types
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("plan", pa.string())])
ADA: dict[str, Any] = {"id": 1, "name": "Ada"}  # of before `plan` was added


def rows(mode: Mode, key: bytes, value: bytes, form: Format = JSON) -> list[dict[str, Any]]:
    options = KafkaOptions(partitions=1, key="json" if key.startswith(b"{") else "raw")
    task = SinkTask("5c", "people", 1, "people", mode, ("id",), SCHEMA, options=options)
    return rows_of_messages([(key, value)], task, form).to_pylist()


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("key", [b'{"id":1}', b"1"])
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.CHANGELOG])
@pytest.mark.parametrize(("form", "head"), [(JSON, b""), (AVRO, b"\x00\x00\x00\x00\x01")])
def test_in_a_message_from_before_a_column_was_added_the_column_is_null(
    key: bytes, mode: Mode, form: Format, head: bytes
) -> None:
    value = ADA if mode is Mode.MIRROR else {"before": None, "after": ADA, "op": "c"}
    assert rows(mode, key, head + orjson.dumps(value), form) == [ADA | {"plan": None, UNREADABLE: False}]


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("mode", "value"),
    [
        (Mode.MIRROR, {"name": "Ada", "plan": "trial"}),
        (Mode.MIRROR, {"before": None, "after": ADA, "op": "c"}),
        (Mode.MIRROR, {"id": 1, "name": 7}),
        (Mode.CHANGELOG, ADA),
        (Mode.CHANGELOG, {"after": {"name": "Ada"}}),
        (Mode.CHANGELOG, {"after": [1]}),
    ],
)
def test_a_value_without_the_key_or_with_another_type_is_marked_as_not_ours(mode: Mode, value: Any) -> None:
    assert [(row["id"], row[UNREADABLE]) for row in rows(mode, b'{"id":1}', orjson.dumps(value))] == [(1, True)]
