"""Mode `changelog` from a model to a Kafka topic: each change with what was before it, also over a crash."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest

from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from tests.support.dbt.project import Project
from tests.support.servers.kafka import a_topic, read, settings


@pytest.fixture
def shop(project: Project) -> Project:
    project.destinations = {"bus": {"type": "kafka", **settings(create_object=True)}}
    project.table("source", "select id, concat('name ', id) as name, id as secret from range(4)")
    project.changelog("people", f"select * from {project.schema}.source")
    return project


def sync(shop: Project, topic: str, **more: Any) -> None:
    columns = {"id": "key", "name": "title"}
    shop.sync(
        "events",
        "people",
        destination="bus",
        mode="changelog",
        object=topic,
        fields=columns,
        options={"partitions": 1},
        **more,
    )


def events(topic: str) -> list[tuple[Any, ...]]:
    """Operation, image before, image after, snapshot; a tombstone as its key."""
    found: list[tuple[Any, ...]] = []
    for message in read(topic):
        if message.value is None:
            found.append(("tombstone", orjson.loads(message.key)["key"]))
        else:
            value = orjson.loads(message.value)
            found.append((value["op"], value["before"], value["after"], value["source"]["snapshot_id"]))
    return found


def row(key: int, title: str) -> dict[str, Any]:
    return {"key": key, "title": title}


@pytest.mark.full
def test_events_carry_what_was_before_and_what_no_destination_sees_makes_none(shop: Project) -> None:
    topic = a_topic()
    sync(shop, topic)
    assert (first := shop.run()).success, first.text
    assert sorted(events(topic), key=str) == [("c", None, row(key, f"name {key}"), 1) for key in range(4)]
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id = 1")
    shop.spark.sql(f"update {shop.schema}.source set secret = 9 where id = 2")
    shop.spark.sql(f"delete from {shop.schema}.source where id = 3")
    shop.spark.sql(f"insert into {shop.schema}.source values (7, 'seven', 0)")
    assert (second := shop.run()).success, second.text
    assert second.sync("events") == "+1 ~1 -1"
    assert sorted(events(topic)[4:], key=str) == [
        ("c", None, row(7, "seven"), 2),
        ("d", row(3, "name 3"), None, 2),
        ("tombstone", 3),
        ("u", row(1, "name 1"), row(1, "new"), 2),
    ]


@pytest.mark.full
@pytest.mark.guarantee("Refusals and outages")
def test_events_of_a_crashed_run_are_sent_again_as_they_were_before_newer_ones(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = a_topic()
    sync(shop, topic)
    assert shop.run().success
    shop.spark.sql(f"update {shop.schema}.source set name = 'first' where id = 1")
    real = KafkaSink.deliver

    def lost(self: KafkaSink, *arguments: Any) -> Any:
        real(self, *arguments)
        raise KeyboardInterrupt  # the process ends between the broker's answer and the ledger

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "deliver", lost)
        with suppress(KeyboardInterrupt):
            shop.run()
    sent = read(topic)[4:]
    assert len(sent) == 1
    shop.spark.sql(f"update {shop.schema}.source set name = 'second' where id = 1")
    assert (again := shop.run()).success, again.text
    repeated, newer = read(topic)[5:]
    assert (repeated.key, repeated.value, repeated.headers) == (sent[0].key, sent[0].value, sent[0].headers)
    assert events(topic)[4:] == [
        ("u", row(1, "name 1"), row(1, "first"), 2),
        ("u", row(1, "name 1"), row(1, "first"), 2),
        ("u", row(1, "first"), row(1, "second"), 3),
    ]
    assert newer.headers != repeated.headers
