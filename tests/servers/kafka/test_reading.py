"""A topic as the table that it stands for, as `reconcile` reads it; on a real broker."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing import PEOPLE, Row, changes_to, deliver, opened, person
from tests.support.servers.kafka import a_task, broker, make_topic, produce, sink


def held(task: SinkTask) -> list[Row]:
    return [row for row in found(task) if not row.pop(UNREADABLE)]


def found(task: SinkTask) -> list[Row]:
    tables = list(sink().read(task))
    rows: list[Row] = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=lambda row: (row["id"] is None, row["id"]))


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.CHANGELOG])
def test_a_topic_of_many_updates_deletes_and_returns_reads_as_the_table(mode: Mode) -> None:
    task, chance, model = a_task(mode=mode), random.Random(5), dict[int, Row]()
    with opened(sink(), task) as kafka:
        for _ in range(12):
            state: dict[int, Row | None] = {
                key: None if chance.random() < 0.4 else {"name": str(chance.random()), "score": None}
                for key in chance.sample(range(60), 30)
            }
            assert set(deliver(kafka, task, changes_to(model, state, deletes=True))) == {Outcome.DELIVERED}
    assert held(task) == [model[key] for key in sorted(model)]


@pytest.mark.guarantee("Kafka")
def test_more_rows_than_one_table_holds_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.reading.ROWS", 30)
    task = a_task()
    with opened(sink(), task) as kafka:
        deliver(kafka, task, [("insert", person(number)) for number in range(200)])
    tables = list(sink().read(task))
    assert max(table.num_rows for table in tables) == 30
    assert held(task) == [person(number) for number in range(200)]


@pytest.mark.guarantee("Kafka")
def test_messages_that_others_wrote_are_marked_and_those_without_a_key_are_no_rows() -> None:
    task = a_task(options=KafkaOptions(partitions=3, compacted=False))
    make_topic(task.object, cleanup_policy="delete")  # a compacted one takes no message without a key
    with opened(sink(), task) as kafka:
        deliver(kafka, task, [("insert", person(number)) for number in range(3)])
    produce(task.object, b'{"id":1}', b"no JSON")
    produce(task.object, b'{"id":2}', b'{"id":2,"name":7,"score":"x"}')
    produce(task.object, b"\xff", b"[1]")
    produce(task.object, None, b'{"id":9,"name":"keyless","score":null}')
    marked = {row["id"] for row in found(task) if row[UNREADABLE]}
    assert marked == {1, 2, None}
    assert held(task) == [person(0)]


def test_an_empty_topic_has_no_rows_and_neither_has_one_that_is_gone() -> None:
    task = a_task()
    assert found(task) == []
    make_topic(task.object, cleanup_policy="compact")
    assert found(task) == []


@pytest.mark.guarantee("Kafka")
def test_a_value_that_is_written_while_it_reads_does_not_keep_it_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_task(options=KafkaOptions(partitions=1))

    class Overtaken(Consumer):
        def get_watermark_offsets(self, *asked: Any, **more: Any) -> Any:
            found = super().get_watermark_offsets(*asked, **more)
            deliver(kafka, task, [("update", person(number, "later")) for number in range(500)])
            return found

    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.reading.Consumer", Overtaken)
    with opened(sink(), task) as kafka:
        deliver(kafka, task, [("insert", person(number)) for number in range(500)])
        assert held(task) == [person(number) for number in range(500)]


@pytest.mark.guarantee("Kafka")
def test_a_topic_without_the_right_to_read_is_said_so() -> None:
    make_topic("salaries", cleanup_policy="compact")
    with pytest.raises(DestinationError, match="a right on the topic is missing"):
        list(sink().read(a_task(object="salaries")))


@pytest.mark.guarantee("Kafka")
def test_reading_needs_no_group(capfd: pytest.CaptureFixture[str]) -> None:
    """The login has no right on any group."""
    task = a_task(schema=PEOPLE)
    with opened(sink(), task) as kafka:
        deliver(kafka, task, [("insert", person(1))])
    assert held(task) == [person(1)]
    assert capfd.readouterr() == ("", "")


def test_a_cluster_that_is_gone_is_said_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.topic.PATIENCE", 0.5)
    nowhere: Any = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(DestinationError, match="no connection"):
        list(KafkaSink(nowhere).read(a_task()))
    assert broker()
