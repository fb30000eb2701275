"""Mode `changelog` of the Kafka sink, on a real broker: every change as an event with the images before and after."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.testing import CAPTURED, SNAPSHOT_ID, Change, deliver, opened, outcomes, person
from tests.support.outcomes import DELIVERED, REJECTED, UNKNOWN
from tests.support.servers.kafka import a_batch, a_task, a_topic, broker, make_topic, read, sink, topic_config

SOURCE = {
    "connector": "dbt-reverse-etl",
    "name": "people",
    "snapshot_id": SNAPSHOT_ID,
    "captured_at": "2024-02-29T12:30:00.123456Z",
}


def a_feed(**more: Any) -> SinkTask:
    return a_task(**{"mode": Mode.CHANGELOG, "options": KafkaOptions(partitions=1), **more})


def event(before: Any, after: Any, op: str) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "ts_ms": int(CAPTURED.timestamp() * 1000), "source": SOURCE}


def values(topic: str) -> list[Any]:
    return [message.value and orjson.loads(message.value) for message in read(topic)]


@pytest.mark.guarantee("Kafka")
def test_each_change_is_an_event_with_both_images_and_a_tombstone_stands_right_behind_a_delete() -> None:
    task = a_feed()
    changes: list[Change] = [("insert", person(1)), ("delete", {"id": 2}), ("update", person(3, "Grace"))]
    batch = a_batch(task, changes, [None, person(2), person(3)])
    with opened(sink(), task) as kafka:
        assert outcomes(kafka.deliver(batch), 3) == [DELIVERED] * 3
    assert values(task.object) == [
        event(None, person(1), "c"),
        event(person(2), None, "d"),
        None,
        event(person(3), person(3, "Grace"), "u"),
    ]
    found = read(task.object)
    assert [message.key for message in found] == [b'{"id":1}', b'{"id":2}', b'{"id":2}', b'{"id":3}']
    ids = batch.rows["_event_id"].to_pylist()
    assert [dict(message.headers) for message in found] == [
        {"event_id": ids[row].encode(), "operation": changes[row][0].encode(), "snapshot_id": b"7"}
        for row in (0, 1, 1, 2)
    ]


@pytest.mark.guarantee("Kafka")
def test_an_image_before_that_is_not_known_is_null() -> None:
    task = a_feed()
    with opened(sink(), task) as kafka:
        assert deliver(kafka, task, [("update", person(1)), ("delete", {"id": 2})]) == [DELIVERED] * 2
    assert values(task.object) == [event(None, person(1), "u"), event(None, None, "d"), None]


@pytest.mark.guarantee("Kafka")
def test_a_change_that_is_sent_again_is_the_same_bytes() -> None:
    task = a_feed()
    for _ in range(2):
        with opened(sink(), task) as kafka:
            kafka.deliver(a_batch(task, [("update", person(1, "Grace"))], [person(1)]))
    first, second = read(task.object)
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)


@pytest.mark.guarantee("Kafka")
def test_the_events_of_a_key_stand_in_the_order_of_its_changes_on_any_number_of_partitions() -> None:
    task = a_feed(options=KafkaOptions(partitions=5))
    with opened(sink(), task) as kafka:
        for _ in range(3):
            for operation in ("insert", "update", "delete"):
                assert set(deliver(kafka, task, [(operation, person(number)) for number in range(40)])) == {DELIVERED}
    seen: dict[bytes | None, list[str]] = {}
    for message in read(task.object):
        seen.setdefault(message.key, []).append(orjson.loads(message.value)["op"] if message.value else "-")
    assert len(seen) == 40
    assert {"".join(ops) for ops in seen.values()} == {"cud-" * 3}


@pytest.mark.guarantee("Kafka")
def test_an_image_after_without_a_json_form_refuses_its_row_and_sends_no_event() -> None:
    task, nan = a_feed(), person(1, score=float("nan"))
    with opened(sink(), task) as kafka:
        (refused,) = kafka.deliver(a_batch(task, [("update", nan)], [person(1)])).results
    assert (refused.outcome, refused.reason) == (REJECTED, "field after.score: NaN or Infinity has no JSON form")
    assert read(task.object) == []


class FrozenBetween:
    """A producer; the broker freezes when the event of a delete is in the topic and its tombstone is not."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def produce(self, topic: str, value: bytes | None, key: bytes, **more: Any) -> None:
        if value is None:
            assert self._producer.flush(20) == 0
            broker().freeze()
        self._producer.produce(topic, value, key, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.guarantee("Kafka")
def test_a_delete_whose_tombstone_got_no_answer_is_unknown_and_is_sent_again_whole() -> None:
    task, delete = a_feed(), [("delete", {"id": 1})]
    with opened(sink(timeout=2), task) as kafka:
        assert kafka._producer is not None
        whole, kafka._producer = kafka._producer, FrozenBetween(kafka._producer)  # type: ignore[assignment]
        try:
            delivery = kafka.deliver(a_batch(task, delete, [person(1)]))
        finally:
            broker().thaw()
        assert outcomes(delivery, 1) == [UNKNOWN]
        kafka._producer = whole
        assert outcomes(kafka.deliver(a_batch(task, delete, [person(1)])), 1) == [DELIVERED]
    found = [value and value["op"] for value in values(task.object)]
    assert found[0] == "d"
    assert found[-2:] == ["d", None]


class TakesNoTombstone(FrozenBetween):
    """A producer that takes no more after the event of a delete."""

    def produce(self, topic: str, value: bytes | None, key: bytes, **more: Any) -> None:
        if value is None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._producer.produce(topic, value, key, **more)


@pytest.mark.guarantee("Kafka")
def test_a_delete_whose_tombstone_was_not_taken_is_unknown() -> None:
    task = a_feed()
    with opened(sink(), task) as kafka:
        assert kafka._producer is not None
        kafka._producer = TakesNoTombstone(kafka._producer)  # type: ignore[assignment]
        assert deliver(kafka, task, [("delete", {"id": 1}), ("insert", person(2))]) == [UNKNOWN, DELIVERED]


@pytest.mark.guarantee("Kafka")
def test_a_topic_that_is_made_for_events_keeps_them_all_and_one_that_is_there_keeps_them_as_its_owner_says() -> None:
    made = a_feed(options=KafkaOptions(partitions=2))
    with pytest.raises(
        DestinationError, match=r"cleanup.policy=delete --config retention.ms=-1 --config retention.bytes=-1"
    ):
        sink(create_object=False).open(made)
    with opened(sink(), made):
        assert topic_config(made.object, "cleanup.policy") == "delete"
        assert topic_config(made.object, "retention.ms") == topic_config(made.object, "retention.bytes") == "-1"
    for policy in ("delete", "compact", "compact,delete"):
        task = a_feed(object=a_topic())
        make_topic(task.object, 1, cleanup_policy=policy)
        with opened(sink(), task) as kafka:
            assert deliver(kafka, task, [("insert", person(1))]) == [DELIVERED]


def test_an_option_that_would_have_no_effect_on_events_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"options.compacted.*mode changelog"):
        sink().validate(a_feed(options=KafkaOptions(partitions=1, compacted=False)))
