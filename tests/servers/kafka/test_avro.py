"""Values as Avro with a schema registry: on a real broker, decoded by fastavro with the schema that the registry has."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.avro_types import avro_schema, nullable
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing import CAPTURED, PEOPLE, Change, deliver, opened, outcomes, person
from tests.support import ROOT
from tests.support.outcomes import DELIVERED, REJECTED
from tests.support.servers.kafka import Read, a_batch, a_task, produce, read, sink
from tests.support.servers.schema_registry import SchemaRegistry, a_registry
from tests.support.sinks.registry import registry_sink, rows_of_every_type

AVRO = KafkaOptions(partitions=1, value_format="avro")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with a_registry() as started:
        yield started


def avro_task(**more: Any) -> SinkTask:
    return a_task(**{"options": AVRO, **more})


def decoded(registry: SchemaRegistry, message: Read) -> Any:
    """By the wire format that is documented: a zero, four bytes of the schema's id, the value."""
    assert message.value is not None
    magic, number = struct.unpack(">bI", message.value[:5])
    assert magic == 0
    return fastavro.schemaless_reader(io.BytesIO(message.value[5:]), json.loads(registry.ids[number]))


@pytest.mark.guarantee("Kafka")
def test_every_type_arrives_exactly_in_its_logical_type_under_the_schema_of_the_topics_subject(
    registry: SchemaRegistry,
) -> None:
    schema, rows = rows_of_every_type()
    task = avro_task(schema=schema)
    with opened(registry_sink(registry), task) as kafka:
        assert set(deliver(kafka, task, [("insert", row) for row in rows])) == {DELIVERED}
    assert list(registry.subjects) == [f"{task.object}-value"]
    found = [decoded(registry, message) for message in read(task.object)]
    expected = [{name: row.get(name) for name in schema.names} for row in rows]
    for row in expected:
        row["map"] = None if row["map"] is None else dict(row["map"])
    assert found == expected
    fields = {field["name"]: field["type"][1] for field in json.loads(registry.ids[1])["fields"]}
    logical = {name: kind["logicalType"] for name, kind in fields.items() if "logicalType" in kind}
    assert logical == {
        "decimal": "decimal",
        "date": "date",
        "instant": "timestamp-micros",
        "local": "local-timestamp-micros",
    }


@pytest.mark.guarantee("Kafka")
def test_what_was_written_as_avro_is_read_for_a_reconcile_and_what_others_wrote_is_marked(
    registry: SchemaRegistry,
) -> None:
    schema, rows = rows_of_every_type()
    task = avro_task(schema=schema)
    with opened(registry_sink(registry), task) as kafka:
        deliver(kafka, task, [("insert", row) for row in rows])
    found = pa.concat_tables(registry_sink(registry).read(task)).sort_by("id")
    assert found.select(schema.names).equals(pa.Table.from_pylist(rows, schema)), found.to_pylist()
    produce(task.object, b'{"id":0}', b"\x00\x00\x00\x00\x01\xff")
    produce(task.object, b'{"id":1}', b'{"id":1}')
    produce(task.object, b'{"id":2}', b"\x00\x00\x00\x03\xe7ab")  # a schema of another registry
    again = pa.concat_tables(registry_sink(registry).read(task)).sort_by("id")
    marked = [row["id"] for row in again.to_pylist() if row[UNREADABLE]]
    assert marked == [0, 1, 2]


@pytest.mark.guarantee("Kafka")
def test_events_are_avro_records_with_both_images(registry: SchemaRegistry) -> None:
    task = avro_task(mode=Mode.CHANGELOG)
    changes: list[Change] = [("update", person(1, "Grace")), ("delete", {"id": 2})]
    with opened(registry_sink(registry), task) as kafka:
        batch = a_batch(task, changes, [person(1), person(2)])
        assert outcomes(kafka.deliver(batch), 2) == [DELIVERED] * 2
    *events, tombstone = read(task.object)
    assert tombstone.value is None
    update, delete = (decoded(registry, event) for event in events)
    assert (update["before"], update["after"], update["op"]) == (person(1), person(1, "Grace"), "u")
    assert (delete["before"], delete["after"], delete["op"]) == (person(2), None, "d")
    assert update["source"]["captured_at"] == CAPTURED
    tables = list(registry_sink(registry).read(task))
    assert [row["name"] for row in pa.concat_tables(tables).to_pylist()] == ["Grace"]


@pytest.mark.guarantee("Kafka")
def test_nan_is_a_value_of_avro_and_what_has_no_exact_form_refuses_its_row(registry: SchemaRegistry) -> None:
    task = avro_task(schema=pa.schema([("id", pa.int64()), ("score", pa.float64()), ("at", pa.timestamp("us"))]))
    rows = [{"id": 1, "score": math.nan}, {"id": 2, "at": 253_402_300_800_000_000}, {"id": 3, "at": 1}]
    with opened(registry_sink(registry), task) as kafka:
        assert deliver(kafka, task, [("insert", row) for row in rows]) == [DELIVERED, REJECTED, DELIVERED]
    first, second = (decoded(registry, message) for message in read(task.object))
    assert math.isnan(first["score"])
    assert second["at"].microsecond == 1


@pytest.mark.guarantee("Kafka")
def test_a_schema_that_the_registry_refuses_stops_the_push_before_its_first_message(registry: SchemaRegistry) -> None:
    task = avro_task()
    with opened(registry_sink(registry), task) as kafka:
        assert deliver(kafka, task, [("insert", person(1))]) == [DELIVERED]
    wider = replace(task, schema=PEOPLE.append(pa.field("plan", pa.string())))
    with opened(registry_sink(registry), wider) as kafka:
        assert deliver(kafka, wider, [("insert", {**person(2), "plan": "trial"})]) == [DELIVERED]
    changed = replace(task, schema=pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.string())]))
    with pytest.raises(
        DestinationError, match=r"incompatible.*compatibility allows.*cast the changed column"
    ) as caught:
        registry_sink(registry).open(changed)
    assert "canary" not in str(caught.value)
    assert len(read(task.object)) == 2


@pytest.mark.guarantee("Kafka")
def test_a_struct_goes_and_the_registry_takes_another_one_of_its_type_as_it_was(registry: SchemaRegistry) -> None:
    point = pa.struct([("x", pa.int64())])
    task = avro_task(schema=pa.schema([("id", pa.int64()), ("billing", point), ("shipping", pa.list_(point))]))
    fewer = replace(task, schema=task.schema.remove(1))
    for number, one in enumerate((task, fewer), 1):
        row = {"id": number, "billing": {"x": 1}, "shipping": [{"x": 2}]}
        with opened(registry_sink(registry), one) as kafka:
            assert deliver(kafka, one, [("insert", {name: row[name] for name in one.schema.names})]) == [DELIVERED]
    assert [decoded(registry, message)["shipping"] for message in read(task.object)] == [[{"x": 2}]] * 2
    assert len(registry.ids) == 2


@pytest.mark.guarantee("Kafka")
def test_a_registry_that_refuses_the_login_or_is_gone_is_said_without_the_secret(registry: SchemaRegistry) -> None:
    for more, words in (
        ({"schema_registry_password": "canary-wrong"}, "refused the login"),
        ({"schema_registry_url": "http://127.0.0.1:1"}, "no answer"),
    ):
        with pytest.raises(DestinationError, match=words) as caught:
            registry_sink(registry, **more).open(avro_task())
        assert "canary" not in f"{caught.value} {caught.value!r}"


@pytest.mark.guarantee("Kafka", "A schema does not change with what Spark infers about NULL")
def test_the_schema_depends_not_on_what_may_be_null_and_names_each_record_once() -> None:
    inner = pa.struct([pa.field("Value", pa.struct([("a", pa.int64())])), pa.field("at", pa.timestamp("us", "UTC"))])
    strict = pa.schema([pa.field("Value", inner, nullable=False), pa.field("other", pa.list_(inner))])
    loose = nullable(strict)
    text = json.dumps(avro_schema(nullable(strict), "Value"))
    assert text == json.dumps(avro_schema(nullable(loose), "Value"))
    fastavro.parse_schema(json.loads(text))


def test_nested_times_keep_their_values() -> None:
    kind = pa.map_(pa.string(), pa.timestamp("us", "UTC"))
    rows = [[("a", CAPTURED), ("b", None)], None, [], [("c", CAPTURED)]]
    table = pa.table({"times": pa.array(rows, kind)}).slice(1)
    assert table.cast(nullable(table.schema)).column("times").to_pylist() == rows[1:]


def test_loading_it_writes_nothing_to_the_terminal() -> None:
    code = "import dbt_reverse_etl.sinks.kafka.avro"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "python")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.guarantee("Kafka")
def test_what_avro_cannot_hold_is_refused_before_anything_is_sent(registry: SchemaRegistry) -> None:
    schema = pa.schema([("id", pa.int64()), ("two words", pa.string()), ("deep", pa.struct([("x-y", pa.int64())]))])
    options = KafkaOptions(partitions=1, value_format="avro", nan="null")
    with pytest.raises(ConfigurationError) as caught:
        sink().validate(avro_task(schema=schema, options=options))
    assert len(caught.value.problems) == 4  # no registry, nan, two names


def test_avro_without_its_packages_is_refused_with_the_command_that_installs_them(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.topic.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dbt-reverse-etl\[kafka-avro\]'"):
        registry_sink(registry).validate(avro_task())
