"""A feed from a Kafka topic: what a broker can do to it."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.support.dbt.debezium_events import COMPARED, MYSQL, Event, SourceTable, compacted
from tests.support.dbt.feeds import FEED, assert_nothing_left, literal, positions
from tests.support.dbt.project import Project
from tests.support.servers.kafka_from_spark import PASSWORD as KAFKA_PASSWORD
from tests.support.servers.kafka_from_spark import USER, Broker, Message

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))


@pytest.fixture(scope="session")
def broker(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker for this process."""
    started = Broker(tmp_path_factory.mktemp("kafka"), spark)
    yield started
    started.stop()


def by_key(events: list[Event], partitions: int) -> list[Message]:
    """As a connector spreads them: all of a key in one partition, in their order."""
    return [(int(re.sub(r"\D", "", key) or 0) % partitions, key, value) for key, value in events]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_mysql_binlog_over_a_kafka_topic_becomes_the_table_with_duplicates_tombstones_and_an_added_partition(
    project: Project, broker: Broker
) -> None:
    secrets = project.folder / "kafka.properties"
    secrets.write_text(f"password={KAFKA_PASSWORD}\n")
    options = {
        "kafka.bootstrap.servers": broker.sasl_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{USER}" password="${{file:{secrets}:password}}";',
    }
    topic = f"reverse_etl.kafka_topic('shop.orders', options={literal(options)})"
    query = f"select * from {{{{ reverse_etl.debezium({topic}, columns={literal(MYSQL)}, key=['id']) }}}}"
    project.changelog("binlog_changelog", query, settings={"capture": FEED})
    source = SourceTable(random.Random(SEED), "mysql")

    broker.topic("shop.orders", 2)
    source.change(60, keys=30)
    source.log.clear()  # what the connector's snapshot reads instead
    events = source.snapshot() + source.change(80, keys=30)
    deleted, tombstone = source.delete()
    broker.send("shop.orders", by_key([*events, deleted], 2))
    first = project.run()
    assert first.success, first.text
    assert project.image("binlog_changelog", COMPARED) == source.expected(), SEED

    broker.send("shop.orders", by_key([tombstone, *compacted(source.change(80, keys=30))], 2))
    broker.topic("shop.orders", 3)
    broker.send("shop.orders", by_key(source.again(20) + source.change(30, keys=40), 3))
    second = project.run()
    assert second.success, second.text
    assert project.image("binlog_changelog", COMPARED) == source.expected(), SEED
    assert {name for name in positions(project, "binlog_changelog") if name[-1].isdigit()} == {
        f"kafka/shop.orders/{partition}" for partition in range(3)
    }

    assert_absent(KAFKA_PASSWORD, project, first.text + second.text)
    assert_nothing_left(project, "binlog_changelog")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_topic_that_a_sync_keeps_becomes_the_table_again_with_every_change(project: Project, broker: Broker) -> None:
    project.destinations = {"bus": {"type": "kafka", "bootstrap_servers": broker.servers, "create_object": True}}
    project.table("source", "select id, concat('name ', id) as name, id * 1.5d as amount from range(40)")
    project.changelog("people", f"select * from {project.schema}.source")
    project.sync("bus_people", "people", destination="bus", mode="mirror", object="people", options={"partitions": 3})
    topic = f"reverse_etl.kafka_topic('people', options={literal({'kafka.bootstrap.servers': broker.servers})})"
    row = "from_json(cast({} as string), 'id bigint, name string, amount double')"
    messages = f"select {row.format('key')}.id as id, {row.format('value')} as v, value is null as gone, _offset from {{{{ {topic} }}}}"
    query = f"select id, v.name, v.amount, _offset, if(gone, 'd', 'u') as op from ({messages})"
    feed = {"strategy": "feed", "operation": "op", "sequence": "_offset"}
    project.changelog("people_again", query, settings={"capture": feed})

    def once(*statements: str) -> None:
        for statement in statements:
            project.spark.sql(statement.replace("{s}", project.schema))
        assert (result := project.dbt("run", "--select", "people")).success, result.text
        assert (result := project.dbt("run", "--select", "people_again")).success, result.text
        assert project.image("people_again", "id, name, amount") == project.image("people", "id, name, amount")

    once()
    once("update {s}.source set name = null where id % 7 = 0", "delete from {s}.source where id % 5 = 0")
    once("insert into {s}.source values (5, 'again', 0.1)", "update {s}.source set amount = -0.0 where id = 6")
    steps = "select id, _snapshot_id, _change from {s}.{name} where _change in ('insert', 'update_preimage', 'update_postimage', 'delete') order by all"
    kept, rebuilt = (project.rows(steps.replace("{name}", name)) for name in ("people", "people_again"))
    assert rebuilt == kept, "+I, -U, +U and -D of every step"


def assert_absent(secret: str, project: Project, text: str) -> None:
    """Neither in dbt's artifacts and logs, nor in what was shown."""
    assert secret not in text
    read = [path for folder in ("target", "logs") for path in (project.folder / folder).rglob("*") if path.is_file()]
    assert any(path.name == "dbt.log" for path in read)
    for path in read:
        assert secret.encode() not in path.read_bytes(), path


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_messages_that_expired_before_they_were_captured_are_an_error_and_never_a_silent_gap(
    project: Project, broker: Broker
) -> None:
    def changelog(**more: Any) -> None:
        options = {"kafka.bootstrap.servers": broker.servers, **more}
        project.changelog(
            "expired_changelog",
            "select cast(cast(key as string) as int) as id, cast(value as string) as value, 'u' as op, _offset as seen "
            f"from {{{{ reverse_etl.kafka_topic('expired', {literal(options)}) }}}}",
            settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "seen"}},
        )

    broker.topic("expired", 2)
    broker.send("expired", [(0, "0", "a"), (0, "1", "a"), (1, "2", "a"), (1, "3", "a")])
    changelog()
    assert project.run().success

    broker.send("expired", [(0, "0", "b"), (0, "4", "b"), (1, "2", "b"), (1, "3", "b"), (1, "5", "b")])
    broker.expire("expired", 0, before=2)  # what was captured, and no more
    broker.expire("expired", 1, before=4)
    message = project.run().messages["expired_changelog"]
    assert "partition 1: found offset 4 as the oldest" in message
    assert "expected offset 2; nothing was captured" in message
    assert "'failOnDataLoss': 'false'" in message
    assert project.image("expired_changelog", "value") == [("a",)] * 4

    changelog(failOnDataLoss="false")
    assert project.run().success
    assert project.image("expired_changelog", "value") == [("b",), ("a",), ("a",), ("a",), ("b",), ("b",)]


@pytest.mark.full
def test_a_model_that_reads_one_topic_name_from_two_clusters_is_refused_by_its_first_run(
    project: Project, broker: Broker
) -> None:
    broker.topic("twice", 1)
    broker.send("twice", [(0, "0", "a")])
    reads = [
        f"select cast(cast(key as string) as int) as id, 'u' as op, _offset from {{{{ reverse_etl.kafka_topic('twice', {literal(options)}) }}}}"
        for options in ({"kafka.bootstrap.servers": broker.servers}, {"kafka.bootstrap.servers": f"{broker.servers},"})
    ]
    feed = {"strategy": "feed", "operation": "op", "sequence": "_offset"}
    project.changelog("twice_changelog", " union all ".join(reads), settings={"capture": feed})
    message = project.run().messages["twice_changelog"]
    assert "found it read with several options, such as from two clusters" in message, message


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_what_a_writer_aborted_or_has_not_committed_yet_is_no_change(project: Project, broker: Broker) -> None:
    options = literal({"kafka.bootstrap.servers": broker.servers})
    project.changelog(
        "paid_changelog",
        "select cast(cast(key as string) as int) as id, cast(value as string) as value, 'u' as op, _offset as seen "
        f"from {{{{ reverse_etl.kafka_topic('paid', {options}, gaps=true) }}}}",
        settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "seen"}},
    )
    broker.topic("paid", 1)
    writer = Producer({"bootstrap.servers": broker.servers, "transactional.id": "shop"})
    writer.init_transactions()

    def write(key: str, value: str) -> None:
        writer.begin_transaction()
        writer.produce("paid", key=key, value=value)
        assert writer.flush(20) == 0

    def captured() -> list[tuple[Any, ...]]:
        result = project.run()
        assert result.success, result.text
        return project.image("paid_changelog", "id, value")

    write("1", "open")
    writer.commit_transaction()
    write("1", "paid")
    writer.abort_transaction()
    assert captured() == [(1, "open")]
    write("1", "paid")
    assert captured() == [(1, "open")], "it is under way"
    writer.commit_transaction()
    assert captured() == [(1, "paid")]


@pytest.mark.full
def test_a_topic_that_was_created_again_stops_the_capture_until_reset_also_where_offsets_have_gaps(
    project: Project, broker: Broker
) -> None:
    options = literal({"kafka.bootstrap.servers": broker.servers})
    for name, more in {"whole_changelog": "", "gaps_changelog": ", gaps=true"}.items():
        project.changelog(
            name,
            "select cast(cast(key as string) as int) as id, cast(value as string) as value, 'u' as op, _offset as seen "
            f"from {{{{ reverse_etl.kafka_topic('anew', {options}{more}) }}}}",
            settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "seen"}},
        )
    broker.topic("anew", 2)
    broker.send("anew", [(0, str(key), "old") for key in range(5)])
    assert project.run().success
    broker.remove("anew")
    broker.topic("anew", 2)
    later = int(time.time() * 1000) + 20 * 60_000
    writer = Producer({"bootstrap.servers": broker.servers})
    writer.produce("anew", key="7", value="new", partition=0, timestamp=later)
    assert writer.flush(20) == 0
    result = project.run()
    assert "not offset 4, which was the last one that was captured" in result.messages["whole_changelog"]
    assert "failOnDataLoss" not in result.messages["whole_changelog"]
    message = result.messages["gaps_changelog"]
    assert "found messages that are newer than the last capture, and offset 0 as their last one" in message
    assert "expected offset 5 or a later one; nothing was captured" in message
    assert project.dbt("run-operation", "reset", "--args", "{model: gaps_changelog}").success
    assert project.dbt("run", "--select", "gaps_changelog").success
    assert project.image("gaps_changelog", "id, value") == [(7, "new")]
