"""Values as Protobuf with a schema registry: on a real broker, decoded with the message types that the registry has."""

from __future__ import annotations

import base64
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.duration_pb2 import DESCRIPTOR as DURATION
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.type import date_pb2, datetime_pb2, timeofday_pb2

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing import CAPTURED, PEOPLE, Change, deliver, opened, outcomes, person
from tests.support import ROOT
from tests.support.servers.kafka import Read, a_batch, a_task, produce, read, sink
from tests.support.servers.schema_registry import SchemaRegistry, a_registry
from tests.support.sinks.registry import registry_sink, rows_of_every_type

PROTOBUF = KafkaOptions(partitions=1, value_format="protobuf")
DELIVERED, REJECTED = Outcome.DELIVERED, Outcome.REJECTED
WIDER = PEOPLE.append(pa.field("plan", pa.string()))


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with a_registry() as started:
        yield started


def protobuf_task(**more: Any) -> SinkTask:
    return a_task(**{"options": PROTOBUF, **more})


def decoded(registry: SchemaRegistry, message: Read, latest: int = 0) -> Any:
    """By the wire format that is documented: a zero, four bytes of the schema's id, a zero for its first message type, the value.

    Args:
        latest: read with this schema instead, as a consumer does that knows a newer one.
    """
    assert message.value is not None
    assert (message.value[0], message.value[5]) == (0, 0)
    file = descriptor(registry, latest or int.from_bytes(message.value[1:5], "big"))
    pool = DescriptorPool()
    types = (date_pb2.DESCRIPTOR, timeofday_pb2.DESCRIPTOR, datetime_pb2.DESCRIPTOR)
    for known in (TIMESTAMP, DURATION, *types):
        pool.AddSerializedFile(known.serialized_pb)
    pool.Add(file)
    kind = pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}")
    return GetMessageClass(kind).FromString(message.value[6:])


def descriptor(registry: SchemaRegistry, number: int) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(base64.b64decode(registry.ids[number]))


def numbers(registry: SchemaRegistry, version: int) -> dict[str, int]:
    return {field.name: field.number for field in descriptor(registry, version).message_type[0].field}


def plain(message: Any) -> dict[str, Any]:
    """The fields that are set; a list or a map as such."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    name = getattr(getattr(value, "DESCRIPTOR", None), "full_name", "")
    if name == "google.protobuf.Timestamp":
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(0, value.seconds, value.nanos / 1000)
    if name == "google.type.Date":
        return date(value.year, value.month, value.day)
    if name in ("google.type.TimeOfDay", "google.type.DateTime"):
        clock = time(value.hours, value.minutes, value.seconds, value.nanos // 1000)
        return datetime.combine(date(value.year, value.month, value.day), clock) if name.endswith("DateTime") else clock
    if name.endswith(".List"):
        return [plain(item).get("value") for item in value.items]
    if name.endswith(".Map"):
        return [(entry.key, plain(entry).get("value")) for entry in value.entries]
    return plain(value) if name else value


@pytest.mark.guarantee("Kafka")
def test_every_type_arrives_exactly_and_null_is_told_from_zero_and_from_empty(registry: SchemaRegistry) -> None:
    schema, rows = rows_of_every_type()
    task = protobuf_task(schema=schema)
    with opened(registry_sink(registry), task) as kafka:
        assert set(deliver(kafka, task, [("insert", row) for row in rows])) == {DELIVERED}
    assert list(registry.subjects) == [f"{task.object}-value"]
    found = [plain(decoded(registry, message)) for message in read(task.object)]
    for row in rows:
        if "decimal" in row:
            row["decimal"] = f"{row['decimal']:.10f}"
        if "struct" in row:
            row["struct"] = {name: value for name, value in row["struct"].items() if value is not None}
    assert found == rows


@pytest.mark.guarantee("Kafka")
def test_a_message_is_the_bytes_that_the_encoding_of_protobuf_says(registry: SchemaRegistry) -> None:
    task = protobuf_task()
    with opened(registry_sink(registry), task) as kafka:
        deliver(kafka, task, [("insert", person(1)), ("insert", {"id": 300, "name": ""})])
    frame = b"\0\0\0\0\1\0"
    assert [message.value for message in read(task.object)] == [
        frame + b"\x08\x01" + b"\x12\x03Ada" + b"\x19\0\0\0\0\0\0\xf8\x3f",
        frame + b"\x08\xac\x02" + b"\x12\x00",
    ]


@pytest.mark.guarantee("Kafka")
def test_what_was_written_as_protobuf_is_read_for_a_reconcile_and_what_others_wrote_is_marked(
    registry: SchemaRegistry,
) -> None:
    schema, rows = rows_of_every_type()
    task, other = protobuf_task(schema=schema), protobuf_task()
    for written, changes in ((other, [person(1)]), (task, rows)):
        with opened(registry_sink(registry), written) as kafka:
            deliver(kafka, written, [("insert", row) for row in changes])
    found = pa.concat_tables(registry_sink(registry).read(task)).sort_by("id")
    assert found.select(schema.names).equals(pa.Table.from_pylist(rows, schema)), found.to_pylist()
    produce(task.object, b'{"id":0}', b"\0\0\0\0\2\0\xff")  # cut short
    produce(task.object, b'{"id":1}', b'{"id":1}')
    produce(task.object, b'{"id":2}', b"\0\0\0\0\1\0\x08\x01")  # of another topic's schema
    again = pa.concat_tables(registry_sink(registry).read(task)).sort_by("id")
    assert [row["id"] for row in again.to_pylist() if row[UNREADABLE]] == [0, 1, 2]


@pytest.mark.guarantee("Kafka")
def test_events_are_messages_with_both_images(registry: SchemaRegistry) -> None:
    task = protobuf_task(mode=Mode.CHANGELOG)
    changes: list[Change] = [("update", person(1, "Grace")), ("delete", {"id": 2})]
    with opened(registry_sink(registry), task) as kafka:
        batch = a_batch(task, changes, [person(1), person(2)])
        assert outcomes(kafka.deliver(batch), 2) == [DELIVERED] * 2
    *events, tombstone = read(task.object)
    assert tombstone.value is None
    update, delete = (plain(decoded(registry, event)) for event in events)
    assert (update["before"], update["after"], update["op"]) == (person(1), person(1, "Grace"), "u")
    assert (delete["before"], delete.get("after"), delete["op"]) == (person(2), None, "d")
    assert update["source"]["captured_at"] == CAPTURED
    assert [kind.name for kind in descriptor(registry, 1).message_type] == ["Envelope", "Value"]
    tables = list(registry_sink(registry).read(task))
    assert [row["name"] for row in pa.concat_tables(tables).to_pylist()] == ["Grace"]


@pytest.mark.guarantee("Kafka")
def test_a_column_keeps_its_number_when_others_come_go_and_come_back(registry: SchemaRegistry) -> None:
    task = protobuf_task()
    narrower = pa.schema([("plan", pa.string()), ("id", pa.int64())])
    later = narrower.append(pa.field("age", pa.int32()))
    for number, schema in enumerate([PEOPLE, WIDER, narrower, later, WIDER]):
        run = replace(task, schema=schema)
        with opened(registry_sink(registry), run) as kafka:
            row = {**person(number), "plan": "trial", "age": 7}
            assert deliver(kafka, run, [("insert", {name: row[name] for name in schema.names})]) == [DELIVERED]
    last = {"id": 1, "name": 2, "score": 3, "plan": 4, "age": 5}
    found = [numbers(registry, version) for version in registry.ids]
    assert found[0] == {"id": 1, "name": 2, "score": 3}
    assert found[-1] == last
    messages = read(task.object)
    newest = [plain(decoded(registry, message, latest=len(registry.ids))) for message in messages]
    assert newest == [plain(decoded(registry, message)) for message in messages]
    assert newest[2] == {"id": 2, "plan": "trial"}
    assert newest[4] == {**person(4), "plan": "trial"}
    deprecated = {field.name for field in descriptor(registry, 3).message_type[0].field if field.options.deprecated}
    assert deprecated == {"name", "score"}


def test_the_same_columns_in_another_order_are_the_same_schema(registry: SchemaRegistry) -> None:
    task = protobuf_task()
    for names in (PEOPLE.names, PEOPLE.names[::-1]):
        run = replace(task, schema=pa.schema([PEOPLE.field(name) for name in names]))
        with opened(registry_sink(registry), run) as kafka:
            assert deliver(kafka, run, [("insert", person(1))]) == [DELIVERED]
    first, second = read(task.object)
    assert first.value == second.value


@pytest.mark.guarantee("Kafka")
def test_a_column_of_another_type_is_refused_before_the_first_message_also_when_it_comes_back(
    registry: SchemaRegistry,
) -> None:
    task = protobuf_task()
    for schema in (PEOPLE, PEOPLE.remove(2)):
        run = replace(task, schema=schema)
        with opened(registry_sink(registry), run) as kafka:
            assert deliver(kafka, run, [("insert", {"id": 1})]) == [DELIVERED]
    changed = replace(task, schema=PEOPLE.remove(2).append(pa.field("score", pa.string())))
    for ask in (registry_sink(registry).open, lambda task: list(registry_sink(registry).read(task))):
        with pytest.raises(DestinationError, match=r"another type for .*Value\.score.*cast the changed column"):
            ask(changed)
    assert len(read(task.object)) == 2


@pytest.mark.guarantee("Kafka")
def test_a_schema_that_the_registry_refuses_stops_the_push_before_its_first_message(registry: SchemaRegistry) -> None:
    task = protobuf_task(object="people-foreign")
    foreign = FileDescriptorProto(name="x", package="crm", syntax="proto3")
    foreign.message_type.add(name="Value").field.add(name="id", number=1, label=1, type=9)
    registry.post(
        ["subjects", f"{task.object}-value", "versions"],
        {"schemaType": "PROTOBUF", "schema": base64.b64encode(foreign.SerializeToString()).decode()},
    )
    with pytest.raises(DestinationError, match=r"incompatible.*compatibility allows") as caught:
        registry_sink(registry).open(task)
    assert "canary" not in str(caught.value)
    assert read(task.object) == []


def test_a_registry_that_refuses_the_login_or_is_gone_is_said_without_the_secret(registry: SchemaRegistry) -> None:
    for more, words in (
        ({"schema_registry_password": "canary-wrong"}, "refused the login"),
        ({"schema_registry_url": "http://127.0.0.1:1"}, "no answer"),
    ):
        with pytest.raises(DestinationError, match=words) as caught:
            registry_sink(registry, **more).open(protobuf_task())
        assert "canary" not in f"{caught.value} {caught.value!r}"


@pytest.mark.guarantee("Kafka")
def test_nan_is_a_value_of_protobuf_and_what_has_no_exact_form_refuses_its_row(registry: SchemaRegistry) -> None:
    task = protobuf_task(schema=pa.schema([("id", pa.int64()), ("score", pa.float64()), ("at", pa.timestamp("ns"))]))
    rows = [{"id": 1, "score": math.nan}, {"id": 2, "at": 1}, {"id": 3, "at": 1000}]
    with opened(registry_sink(registry), task) as kafka:
        assert deliver(kafka, task, [("insert", row) for row in rows]) == [DELIVERED, REJECTED, DELIVERED]
    first, second = (decoded(registry, message) for message in read(task.object))
    assert math.isnan(first.score)
    assert second.at.nanos == 1000


@pytest.mark.guarantee("Kafka")
def test_what_protobuf_cannot_hold_is_refused_before_anything_is_sent() -> None:
    fields = [("id", pa.int64()), ("two words", pa.string()), ("_hidden", pa.int64()), ("nothing", pa.null())]
    alike = [("plan_name", pa.string()), ("planName", pa.string())]
    options = KafkaOptions(partitions=1, value_format="protobuf", nan="null")
    with pytest.raises(ConfigurationError) as caught:
        sink().validate(protobuf_task(schema=pa.schema(fields + alike), options=options))
    wheres = [problem.where.rpartition(" ")[2] for problem in caught.value.problems]
    assert wheres == ["options", "options", "words", "_hidden", "nothing", "plan_name", "planName"]


def test_protobuf_without_its_packages_is_refused_with_the_command_that_installs_them(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.formats.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dbt-reverse-etl\[kafka-protobuf\]'"):
        registry_sink(registry).validate(protobuf_task())


def test_loading_it_writes_nothing_to_the_terminal() -> None:
    code = "import dbt_reverse_etl.sinks.kafka.protobuf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "python")
    assert (done.stdout, done.stderr) == ("", "")
