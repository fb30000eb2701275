"""The Kafka sink on a real broker: what stands in the topic, what is refused, and what the engine makes of it."""

from __future__ import annotations

import random
import re
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.ports import Job, Status
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import Batch
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.sinks.kafka.topic import Cluster
from dbt_reverse_etl.testing import SNAPSHOT_ID, Change, deliver, next_run, opened, outcomes, person
from tests.support.delivery.desk import Desk
from tests.support.outcomes import DELIVERED, FATAL, REJECTED, UNKNOWN
from tests.support.servers.kafka import (
    CA,
    a_batch,
    a_task,
    a_topic,
    add_partitions,
    alter_topic,
    broker,
    delete_topic,
    grant,
    make_topic,
    read,
    settings,
    sink,
    table,
)
from tests.support.servers.kafka_broker import PASSWORD, SCRAM, VIEWER, tool

ONE = KafkaOptions(partitions=1)


def people(*rows: dict[str, Any]) -> list[Change]:
    return [("insert", row) for row in rows]


# --- what stands in the topic


@pytest.mark.guarantee("Kafka")
def test_an_insert_and_an_update_are_key_and_value_and_a_delete_is_a_tombstone() -> None:
    task = a_task(options=ONE)
    changes: list[Change] = [("insert", person(1)), ("update", person(2, "Grace")), ("delete", {"id": 3})]
    events = a_batch(task, changes).rows["_event_id"].to_pylist()
    with opened(sink(), task) as kafka:
        assert deliver(kafka, task, changes) == [DELIVERED] * 3
    found = read(task.object)
    assert [(message.key, message.value) for message in found] == [
        (b'{"id":1}', b'{"id":1,"name":"Ada","score":1.5}'),
        (b'{"id":2}', b'{"id":2,"name":"Grace","score":1.5}'),
        (b'{"id":3}', None),
    ]
    words = [b"insert", b"update", b"delete"]
    assert [message.headers for message in found] == [
        (("event_id", event.encode()), ("operation", word), ("snapshot_id", str(SNAPSHOT_ID).encode()))
        for event, word in zip(events, words, strict=True)
    ]


def test_a_raw_key_is_the_text_of_the_only_key_field_and_the_key_of_several_is_an_object_in_their_order() -> None:
    raw = a_task(key=("name",), options=KafkaOptions(key="raw", partitions=1))
    with opened(sink(), raw) as kafka:
        assert deliver(kafka, raw, people(person(1, 'a "b" ü'), person(2, ""))) == [DELIVERED] * 2
    assert [message.key for message in read(raw.object)] == ['a "b" ü'.encode(), b""]
    several = a_task(key=("name", "id"), options=ONE)
    with opened(sink(), several) as kafka:
        deliver(kafka, several, people(person(1)))
    assert [message.key for message in read(several.object)] == [b'{"name":"Ada","id":1}']


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("key", ["json", "raw"])
def test_a_row_without_a_key_is_refused_and_is_never_a_message_without_one(key: Any) -> None:
    task = a_task(key=("score",), options=KafkaOptions(key=key, nan="null", partitions=1))
    scores = [None, float("nan"), 1.5]
    with opened(sink(), task) as kafka:
        answer = deliver(kafka, task, people(*({"id": 1, "score": score} for score in scores)))
        assert deliver(kafka, task, [("delete", {"score": None})]) == [REJECTED]
    assert answer == [REJECTED, REJECTED, DELIVERED]
    assert len(read(task.object)) == 1


@pytest.mark.guarantee("Kafka")
def test_a_value_without_a_json_form_is_refused_and_is_never_a_tombstone() -> None:
    strict, lenient = a_task(options=ONE), a_task(options=KafkaOptions(nan="null", partitions=1))
    for task, outcome, rows in ((strict, REJECTED, 0), (lenient, DELIVERED, 1)):
        with opened(sink(), task) as kafka:
            assert deliver(kafka, task, people(person(1, score=float("nan")))) == [outcome]
        assert len(table(read(task.object))) == len(read(task.object)) == rows


@pytest.mark.guarantee("Kafka")
def test_every_key_lands_in_the_partition_of_the_java_producer() -> None:
    """By Kafka's console producer, on a topic with as many partitions."""
    ours, theirs = a_task(key=("name",), options=KafkaOptions(key="raw", partitions=7)), a_topic()
    letters = random.Random(7)
    names = ["", *{"".join(letters.choices("abcxyz0189 äß漢😀{}:", k=letters.randint(1, 40))) for _ in range(1100)}][
        :1000
    ]
    with opened(sink(), ours) as kafka:
        assert set(deliver(kafka, ours, people(*(person(1, name) for name in names)))) == {DELIVERED}
    make_topic(theirs, 7)
    keyed = ["--property", "parse.key=true", "--property", "key.separator=\t"]
    subprocess.run(
        [*tool("ConsoleProducer"), "--bootstrap-server", broker().servers, "--topic", theirs, *keyed],
        input="".join(f"{name}\tx\n" for name in names), encoding="utf-8", check=True, capture_output=True,
    )  # fmt: skip
    places = [{message.key: message.partition for message in read(topic)} for topic in (ours.object, theirs)]
    assert len(places[0]) == 1000
    assert places[0] == places[1]
    assert set(places[0].values()) == set(range(7))


@pytest.mark.guarantee("Kafka")
def test_the_values_of_a_key_stand_in_the_order_in_which_they_were_delivered() -> None:
    task, rounds, keys = a_task(), 30, 40
    with opened(sink(), task) as kafka, ThreadPoolExecutor(kafka.limits(task).concurrency) as pool:
        for score in range(rounds):  # as the engine: the keys of the batches that are under way differ
            halves = [[person(number, score=score) for number in range(part, keys, 2)] for part in range(2)]
            for answer in pool.map(lambda half: deliver(kafka, task, people(*half)), halves):
                assert set(answer) == {DELIVERED}
    scores: dict[bytes, list[float]] = defaultdict(list)
    for message in read(task.object):
        scores[message.key or b""].append(table([message])[message.key or b""]["score"])
    assert list(scores.values()) == [list(range(rounds))] * keys


@pytest.mark.guarantee("Kafka")
def test_a_full_queue_is_waited_for_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KafkaSettings.producer
    small = {"queue.buffering.max.messages": 5, "linger.ms": 50}
    monkeypatch.setattr(KafkaSettings, "producer", lambda self, limit: whole(self, limit) | small)
    task = a_task()
    with opened(sink(), task) as kafka:
        assert deliver(kafka, task, people(*map(person, range(100)))) == [DELIVERED] * 100
    assert len(table(read(task.object))) == 100


def test_sinks_in_several_processes_share_a_claim_and_the_driver_closes_it_with_no_rows() -> None:
    task = a_task()
    assert KafkaSink.distributable
    with opened(sink(), task) as driver:
        for part in range(2):
            with opened(sink(), task) as worker:
                assert deliver(worker, task, people(person(part))) == [DELIVERED]
        assert driver.deliver(Batch(a_batch(task, []).rows, "claim-1", last=True)).results == ()
    assert len(table(read(task.object))) == 2


# --- rows that the broker refuses


@pytest.mark.guarantee("Kafka")
def test_a_message_that_is_larger_than_the_topic_allows_is_the_refusal_of_its_row_alone() -> None:
    task = a_task(object=a_topic())
    make_topic(task.object, cleanup_policy="compact", max_message_bytes="5000")
    rows = [person(1), person(2, "x" * 5000), person(3), person(4, "y" * 4000)]
    with opened(sink(compression="none"), task) as kafka:
        delivery = kafka.deliver(a_batch(task, people(*rows)))
        assert outcomes(delivery, 4) == [DELIVERED, REJECTED, DELIVERED, DELIVERED]
        many = [person(number, "z" * 4000) for number in range(10, 60)]  # together far more than one batch may hold
        assert set(deliver(kafka, task, people(*many))) == {DELIVERED}
    assert "max.message.bytes" in delivery.results[0].reason
    assert len(table(read(task.object))) == 53


@pytest.mark.guarantee("Kafka")
def test_the_engine_finds_the_row_for_which_the_broker_refuses_its_neighbours() -> None:
    """The limit is lowered after the sink has read it, so that the broker refuses whole batches."""
    task = a_task()
    rows = [person(number, "x" * 3000 if number == 5 else "x") for number in range(30)]
    with opened(sink(compression="none"), task) as kafka:
        alter_topic(task.object, "max.message.bytes", "2000")
        engine = Engine(kafka, task, Policy(retries=Retries(first=0.01, cap=0.05)), Clock(), lambda: True)
        result = engine.deliver_wave(WavePart("claim-1", a_batch(task, people(*rows)).rows))
    assert {row: failure.outcome for row, failure in result.failures.items()} == {5: REJECTED}
    assert sorted(row["id"] for row in table(read(task.object)).values()) == [*range(5), *range(6, 30)]


# --- before the first message


@pytest.mark.guarantee("Kafka")
def test_a_missing_topic_is_made_compacted_with_the_partitions_of_the_sync_where_that_is_wanted() -> None:
    task = a_task(options=KafkaOptions(partitions=4))
    with pytest.raises(DestinationError, match=rf"no topic {task.object}; .*--partitions 4 .*cleanup.policy=compact"):
        sink(create_object=False).open(task)
    for run in (task, next_run(task)):  # the second one looks at what the first one made
        with opened(sink(replication_factor=1), run) as kafka:
            deliver(kafka, run, people(*map(person, range(100))))
    assert {message.partition for message in read(task.object)} == set(range(4))


@pytest.mark.guarantee("Kafka")
def test_a_topic_that_has_vanished_is_missing_and_is_not_made_again_behind_the_users_back() -> None:
    task = a_task()
    with opened(sink(), task) as kafka:
        deliver(kafka, task, people(person(1)))
    delete_topic(task.object)
    assert sink().missing(task) is None
    assert task.object in (sink().missing(next_run(task)) or "")
    with pytest.raises(DestinationError, match=r"vanished.*resync"):
        sink().open(next_run(task))


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_loses_old_rows_is_refused_unless_that_is_meant(policy: str) -> None:
    task = a_task(object=a_topic())
    make_topic(task.object, cleanup_policy=policy)
    with pytest.raises(DestinationError, match=f"cleanup.policy={policy}.*compacted: false"):
        sink().open(task)
    with pytest.raises(DestinationError, match=f"cleanup.policy={policy}.*reconcile --select people --repair"):
        sink().missing(next_run(task))
    with opened(sink(), replace(task, options=KafkaOptions(partitions=3, compacted=False))) as kafka:
        assert deliver(kafka, task, people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("Kafka")
def test_a_topic_with_another_number_of_partitions_is_refused_until_the_user_says_so() -> None:
    task = a_task(options=KafkaOptions(partitions=2))
    with opened(sink(), task) as kafka:
        assert deliver(kafka, task, people(*map(person, range(50)))) == [DELIVERED] * 50
    add_partitions(task.object, 5)
    with pytest.raises(
        DestinationError, match=r"5 partitions; expected 2.*partitions: 5: the next push sends every row again"
    ):
        sink().open(next_run(task))
    assert len(read(task.object)) == 50
    said = replace(next_run(task), options=KafkaOptions(partitions=5))
    with opened(sink(), said) as kafka:  # the engine sends every row again
        assert deliver(kafka, said, people(*map(person, range(50)))) == [DELIVERED] * 50
    again = {message.partition for message in read(task.object) if message.partition > 1}
    assert again == {2, 3, 4}


@pytest.mark.guarantee("Kafka")
def test_a_sync_must_say_how_many_partitions_its_topic_has() -> None:
    with pytest.raises(
        ConfigurationError, match=r"options.partitions: found nothing; expected the number of partitions"
    ):
        sink().validate(a_task(options=KafkaOptions()))


def test_everything_that_can_never_work_is_refused_at_once_without_a_cluster() -> None:
    schema = pa.schema([("id", pa.list_(pa.int64())), ("_operation", pa.string())])
    task = a_task(object="no/topic", schema=schema, options=KafkaOptions(key="raw"))
    nowhere = KafkaSink(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(ConfigurationError) as caught:
        nowhere.validate(task)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigurationError, match="key"):
        nowhere.validate(a_task(key=("nobody",)))


# --- logins, rights, TLS


def tls(**more: Any) -> dict[str, Any]:
    return settings(bootstrap_servers=broker().tls_servers, security_protocol="sasl_ssl", **more)


@pytest.mark.guarantee("Kafka")
def test_scram_over_tls_delivers_and_a_server_that_cannot_be_trusted_gets_no_login(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    CA.cert_pem.write_to_path(str(trusted))
    type(CA)().cert_pem.write_to_path(str(other))
    task = a_task()
    given = tls(sasl_mechanism=SCRAM, ssl_ca_location=str(trusted))
    with opened(KafkaSink(KafkaSettings.model_validate(given)), task) as kafka:
        assert deliver(kafka, task, people(person(1))) == [DELIVERED]
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.topic.PATIENCE", 3)
    for wrong in (given | {"ssl_ca_location": str(other)}, tls()):  # another CA, and those of the system
        with pytest.raises(DestinationError, match="TLS failed"):
            KafkaSink(KafkaSettings.model_validate(wrong)).check()
    by_name = given | {"bootstrap_servers": broker().tls_servers.replace("127.0.0.1", "localhost")}
    with pytest.raises(DestinationError, match="TLS failed"):  # its certificate is for another name
        KafkaSink(KafkaSettings.model_validate(by_name)).check()
    with pytest.raises(DestinationError, match="files for TLS"):
        KafkaSink(KafkaSettings.model_validate(given | {"ssl_ca_location": str(tmp_path / "none")})).check()


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("wrong", "words", "patience"),
    [
        ({"sasl_password": "canary-wrong-31415926"}, "login was refused", 3),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "login was refused", 3),
        ({"bootstrap_servers": "127.0.0.1:1"}, "no connection", 0.5),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_said_in_our_words_and_nothing_is_written_to_the_terminal(
    wrong: dict[str, Any],
    words: str,
    patience: float,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("dbt_reverse_etl.sinks.kafka.topic.PATIENCE", patience)
    kafka, task = sink(**wrong), a_task()
    for ask in (kafka.check, lambda: kafka.open(task), lambda: kafka.missing(next_run(task))):
        with pytest.raises(DestinationError, match=words) as caught:
            ask()
        assert not [canary for canary in (PASSWORD, "canary") if canary in f"{caught.value!r}"]
    kafka.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.guarantee("Kafka")
def test_a_topic_without_rights_is_refused_before_the_first_message_and_one_that_loses_them_stops_the_sync() -> None:
    forbidden = a_task(object="payroll")
    make_topic("payroll", cleanup_policy="compact")
    with pytest.raises(DestinationError, match="a right on the topic is missing"):
        sink().open(forbidden)
    task = a_task()
    with opened(sink(), task) as kafka:
        kafka._task = replace(task, object="payroll")  # as if it had rights when it was opened
        answer = kafka.deliver(a_batch(task, people(person(1))))
    sent = "the right Write on the topic is missing (TOPIC_AUTHORIZATION_FAILED)"
    not_taken = (
        "a right on the topic is missing (TOPIC_AUTHORIZATION_FAILED)"  # the client may have asked before it sends
    )
    [result] = answer.results
    assert (result.outcome, result.reason, answer.stop) in {(UNKNOWN, sent, sent), (FATAL, not_taken, None)}
    assert read("payroll") == []


@pytest.mark.guarantee("Kafka", "`check` names the right on a topic that is missing, and writes nothing")
@pytest.mark.parametrize(
    ("granted", "absent"),
    [
        ((), "Describe on topic"),
        (("DESCRIBE",), "DescribeConfigs and Write on topic"),
        (("DESCRIBE", "DESCRIBE_CONFIGS"), "Write on topic"),
        (("DESCRIBE", "DESCRIBE_CONFIGS", "WRITE"), ""),
    ],
)
def test_the_right_that_is_missing_is_named_without_a_write(granted: tuple[str, ...], absent: str) -> None:
    name = f"watched-{len(granted)}"
    make_topic(name, cleanup_policy="compact")
    grant(name, *granted)
    found = sink().rights(a_task(object=name))
    assert [str(problem).partition("found no right ")[2].partition(" watched")[0] for problem in found.missing] == (
        [absent] if absent else []
    )
    assert read(name) == []


def test_a_topic_that_is_missing_or_unfit_is_said_by_check_and_not_made() -> None:
    task = a_task()
    assert "it is not there yet" in sink().rights(task).untried[0]
    [problem] = sink(create_object=False).rights(task).missing
    assert f"kafka-topics --create --topic {task.object} --partitions 3" in str(problem)
    with pytest.raises(DestinationError, match="has vanished"):
        sink().open(next_run(task))  # nobody has made it
    make_topic(task.object, partitions=2, cleanup_policy="delete")
    assert len(sink().rights(task).missing) == 2, "its policy, its partitions"


@pytest.mark.guarantee("Kafka")
def test_a_login_without_any_right_to_write_is_told_the_right_and_leaves_nothing_in_doubt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    task = a_task()
    make_topic(task.object, cleanup_policy="compact")
    with pytest.raises(DestinationError, match=r"found no right Write on topic .*Next: kafka-acls --add"):
        sink(sasl_username=VIEWER).open(task)
    described = Cluster._described

    def untold(self: Cluster, name: str) -> Any:
        found = described(self, name)
        found.authorized_operations = None
        return found

    monkeypatch.setattr(Cluster, "_described", untold)  # an older cluster
    assert sink(sasl_username=VIEWER).rights(task).missing == ()
    with opened(sink(sasl_username=VIEWER), task) as kafka:
        for _ in range(2):
            answer = kafka.deliver(a_batch(task, people(person(1), person(2))))
            assert [result.outcome for result in answer.results] == [FATAL] * 2
            assert re.search(r"no right Write on a topic|the producer cannot go on", answer.results[0].reason)
    assert read(task.object) == []
    assert capfd.readouterr() == ("", "")


# --- the whole run


_IMAGES: list[tuple[dict[str, int], int]] = [
    ({"k1": 1, "k2": 2, "k3": 3}, 3),
    ({"k1": 1, "k2": 5, "k4": 4}, 3),  # an update, a delete and an insert
    ({"k1": 1, "k2": 5, "k4": 4}, 0),
]


class KafkaDesk(Desk):
    """A run of the real engine, ledger facts included, into a topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.sink, self._topic = sink(), topic  # type: ignore[assignment]

    def _job(self) -> Job:
        job = super()._job()
        return replace(job, task=replace(job.task, object=self._topic, options=KafkaOptions(partitions=3)))


@pytest.mark.guarantee("Kafka")
def test_the_topic_equals_the_model_after_every_run_and_only_net_changes_are_sent() -> None:
    desk, sent = KafkaDesk(a_topic()), 0
    for image, changes in _IMAGES:
        result = desk.push(image)
        assert (result.status, result.counts.delivered.total) == (Status.SUCCEEDED, changes)
        found = read(desk._topic)
        assert {row["key"]: row["value"] for row in table(found).values()} == image
        assert len(found) - sent == changes
        sent = len(found)
    events = [dict(message.headers)["event_id"] for message in found]
    assert len(set(events)) == sent
