"""Where a feed comes from: new files, Debezium's events, a Kafka topic."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from openpyxl import Workbook
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.dbt.debezium_events import COMPARED, MYSQL, POSTGRES, Event, SourceTable, compacted
from tests.support.dbt.project import Project
from tests.support.servers.kafka_from_spark import PASSWORD as KAFKA_PASSWORD
from tests.support.servers.kafka_from_spark import USER, Broker, Message

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
FEED = {"strategy": "feed", "operation": "_op", "sequence": "_sequence"}


@pytest.fixture(scope="session")
def broker(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker for this process."""
    started = Broker(tmp_path_factory.mktemp("kafka"), spark)
    yield started
    started.stop()


def literal(value: Any) -> str:
    """A value as an argument in a model."""
    return json.dumps(value)


def positions(project: Project, name: str) -> dict[str, str]:
    """Those of the newest header."""
    (row,) = project.rows(
        f"select max_by(_header.positions, _snapshot_id) from {{s}}.{name} where _change = 'snapshot'"
    )
    return dict(row[0])


# --- Kafka -----------------------------------------------------------------------------------------------------------


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


def assert_nothing_left(project: Project, changelog: str) -> None:
    """No table of its captures, and no temporary view."""
    names = [row.tableName for row in project.rows("show tables in {s}")]
    assert not [name for name in names if name.startswith(f"{changelog}__")], names


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


# --- files -----------------------------------------------------------------------------------------------------------


FORMATS = {
    "csv": "csv",
    "json": "json",
    "parquet": "parquet",
    "excel": "excel",  # the data source of examples/excel
}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_only_files_that_are_new_are_read_from_csv_json_parquet_and_excel(project: Project) -> None:
    landing = project.folder / "landing"
    schema = "id bigint, value string, op string, number bigint"
    sources = []
    for name, form in FORMATS.items():
        (landing / name).mkdir(parents=True)
        source = f"reverse_etl.new_files('{landing / name}', format='{form}', schema='{schema}', overlap='0 seconds')"
        sources.append(f"select concat('{name}', id) as id, value, op, number from {{{{ {source} }}}}")
    (landing / "kept").mkdir()
    kept = f"reverse_etl.new_files('{landing / 'kept'}', schema='{schema}', options={{'nullValue': '\\\\N'}})"
    kept = f"select concat('kept', id) as id, value, op, number from {{{{ {kept} }}}}"
    settings = {"capture": {"strategy": "feed", "operation": "op", "sequence": "number"}}
    project.changelog("all_changelog", " union all ".join([*sources, kept]), settings=settings)
    project.changelog("csv_changelog", sources[0], settings=settings)

    first = project.dbt("run", "--select", "all_changelog")
    assert first.success, first.text  # no file yet
    assert not project.image("all_changelog", "id")

    deliver(project, 1, 1_700_000_000, "(1, 'a', 'I', 1), (2, 'b', 'I', 2)")
    deliver(project, 2, 1_700_000_010, "(1, 'c', 'U', 3), (3, null, 'I', 4)")
    deliver(project, 9, 4_000_000_000, "(9, 'by a clock that is wrong', 'I', 4)")
    for name in ("csv", "kept"):  # nothing between two commas, and two quotes
        texts = landing / name / "texts.csv"
        texts.write_text('id,value,op,number\n5,,I,1\n6,"",I,1\n')
        os.utime(texts, (1_700_000_010, 1_700_000_010))
    second = project.dbt("run", "--select", "all_changelog")
    assert second.success, second.text
    values = (("1", "c"), ("2", "b"), ("3", None), ("9", "by a clock that is wrong"))
    rows = [(name + key, value) for name in FORMATS for key, value in values]
    rows += [("csv5", None), ("csv6", None), ("kept5", None), ("kept6", "")]
    assert project.image("all_changelog", "id, value") == sorted(rows)
    folders = (*FORMATS, "kept")
    assert positions(project, "all_changelog") == {f"files/{landing / name}": "1700000010000000" for name in folders}

    (landing / "kept" / "texts.csv").unlink()
    deliver(project, 3, 1_700_000_020, "(2, 'b', 'D', 5), (1, 'z', 'U', 1)")
    for name in FORMATS:
        (old,) = (landing / name).glob("1.*")
        old.write_text("id,value,op,number\ncanary,a,I,1\n")  # stops whoever reads it
        os.utime(old, (1_700_000_000, 1_700_000_000))
    third = project.run()
    assert third.statuses["all_changelog"] == "success", third.text
    assert project.image("all_changelog", "id, value") == sorted(row for row in rows if not row[0].endswith("2"))
    message = third.messages["csv_changelog"]  # which has read nothing yet
    assert "found 1 rows in 1 files that are no csv of the schema; expected" in message
    assert "canary" not in third.text
    assert_nothing_left(project, "all_changelog")


@pytest.mark.full
def test_sheets_without_a_schema_are_read_by_the_names_of_their_columns(project: Project) -> None:
    landing = project.folder / "landing"
    landing.mkdir()
    columns = "ID, first, last, 'I' as op, ID as number"

    def lands(name: str, sheet: str) -> None:
        frame = project.spark.sql(sheet)
        write_sheet(project.folder / "written" / name, frame).rename(landing / f"{name}.xlsx")

    lands("a", f"select {columns} from values ('1', 'Ann', 'Lee') as v(ID, first, last)")
    lands("b", "select last, 'I' as op, id as number, first, id from values ('2', 'Kim', 'Bob') as v(id, last, first)")
    (landing / "~$a.xlsx").write_bytes(b"")  # somebody has it open

    def changelog(*formats: str) -> None:
        feeds = [
            f"reverse_etl.new_files('{landing}', format='{form}', options={{'pathGlobFilter': '*.{name}', 'mode': 'FAILFAST'}})"
            for form, name in (one.split() for one in formats)
        ]
        rows = " union all ".join(f"select id, first, last, op, number from {{{{ {feed} }}}}" for feed in feeds)
        capture = {"strategy": "feed", "operation": "op", "sequence": "number"}
        project.changelog("people_changelog", rows, settings={"capture": capture})

    changelog("excel xlsx")
    first = project.run()
    assert first.success, first.text
    assert project.image("people_changelog", "id, first, last") == [("1", "Ann", "Lee"), ("2", "Bob", "Kim")]

    lands(
        "c",
        f"select {columns.replace('last', 'last as surname')} from values ('3', 'Eve', 'Fox') as v(ID, first, last)",
    )
    message = project.run().messages["people_changelog"]
    assert "found a file with the columns " in message
    assert "surname" in message

    (landing / "c.xlsx").unlink()
    (landing / "old.csv").write_text("id,first,last,op,number\n4,Ada,Ray,I,4\n")
    os.utime(landing / "old.csv", (1_700_000_000, 1_700_000_000))
    changelog("excel xlsx", "csv csv")
    second = project.run()
    assert second.success, second.text
    assert project.image("people_changelog", "id, first, last") == [
        ("1", "Ann", "Lee"),
        ("2", "Bob", "Kim"),
        ("4", "Ada", "Ray"),
    ]


def deliver(project: Project, number: int, at: int, rows: str) -> None:
    """One more file in each folder: written elsewhere, then renamed, with the time at which it was written."""
    frame = project.spark.sql(f"select * from values {rows} as v(id, value, op, number)").coalesce(1)
    for name in FORMATS:
        written = project.folder / "written" / name / str(number)
        if name == "excel":
            part = write_sheet(written, frame)
        else:
            frame.write.format(name).option("header", "true").save(str(written))
            (part,) = written.glob("part-*")
        os.utime(part, (at, at))
        part.rename(project.folder / "landing" / name / f"{number}.{'xlsx' if name == 'excel' else name}")


def write_sheet(folder: Path, frame: DataFrame) -> Path:
    """The rows in an Excel file."""
    workbook = Workbook()
    for row in (frame.columns, *frame.collect()):
        workbook.worksheets[0].append([*row])
    folder.mkdir(parents=True)
    workbook.save(folder / "part.xlsx")
    return folder / "part.xlsx"


# --- Debezium --------------------------------------------------------------------------------------------------------


def test_debezium_events_of_postgres_with_their_schema_lead_to_the_table_whatever_its_types(project: Project) -> None:
    relation = f"{project.schema}.events"
    project.changelog(
        "orders_changelog",
        f"select * from {{{{ reverse_etl.debezium('{relation}', columns={literal(POSTGRES)}, key=['id'], tombstones='ignore') }}}}",
        settings={"capture": FEED},
    )
    source = SourceTable(random.Random(SEED), "postgresql", wrapped=True)
    source.change(60, keys=30)
    source.log.clear()
    events = source.snapshot() + source.change(200, keys=40) + source.read_meanwhile(40, keys=40)
    source.rng.shuffle(events)  # the sequence alone tells their order
    project.spark.createDataFrame(events, "key string, value string").createOrReplaceTempView("events")
    project.table("events", "select * from events")
    result = project.run()
    assert result.success, result.text
    assert project.image("orders_changelog", COMPARED) == source.expected(), SEED

    sql = (project.folder / "target/compiled/shop/models/orders_changelog.sql").read_text()
    for change, message in REFUSED:
        with pytest.raises(PySparkException, match=re.escape(message)) as raised:
            refused(project, sql.replace(relation, "refused"), change)
        assert "canary" not in str(raised.value).split("SQLSTATE")[0], message


ROW = {
    "id": 1,
    "name": "canary",
    "price": "1.50",
    "paid": True,
    "day": 1,
    "changed_at": "2024-01-01T00:00:00Z",
    "raw": "AP8=",
}
PLACEHOLDER = "__debezium_unavailable_value"
REFUSED = [
    ({"op": "t"}, "op t: the table was truncated"),
    ({"op": "x"}, "a message that is no change event"),
    ({"op": None}, "a message that is no change event"),
    ({"source": {"file": None}}, "an event without its place in the log"),
    ({"after": {**ROW, "id": None}}, "an event without the key column id"),
    ({"after": {"id": 1}}, "an event without column name"),
    ({"op": "u", "before": {**ROW, "id": 2}}, "an update that changes the key column id"),
    *(
        ({"after": {**ROW, "name": placeholder}}, "column name without its value")
        for placeholder in (
            PLACEHOLDER,
            base64.b64encode(PLACEHOLDER.encode()).decode(),
            PLACEHOLDER.encode().hex(),
            [PLACEHOLDER],
            {PLACEHOLDER: PLACEHOLDER},
            [*PLACEHOLDER.encode()],
        )
    ),
    (
        {"after": {**ROW, "price": "Z2FuYXJ5"}},
        "column price with a value that is no decimal(10,2)",
    ),  # base64: decimal.handling.mode precise
    ({"after": {**ROW, "price": 1.505}}, "column price with a value that is no decimal(10,2)"),
    ({"after": {**ROW, "changed_at": 1704067200000}}, "column changed_at with a value that is no timestamp"),
    ({"after": {**ROW, "changed_at": "2024-01-01T00:00:00"}}, "column changed_at with a value that is no timestamp"),
    ({"after": {**ROW, "day": "canary"}}, "column day with a value that is no date"),
    ({"after": {**ROW, "paid": "canary"}}, "column paid with a value that is no boolean"),
    ({"after": {**ROW, "raw": "%canary"}}, "column raw with a value that is no binary"),
]


def refused(project: Project, sql: str, change: dict[str, Any]) -> None:
    """The compiled query over one event."""
    event = {"op": "c", "before": None, "after": ROW, "source": {"lsn": 7}} | change
    values = [(json.dumps({"id": None}), json.dumps(event))]
    project.spark.createDataFrame(values, "key string, value string").createOrReplaceTempView("refused")
    project.spark.sql(sql).collect()


# --- what is refused before anything is read -------------------------------------------------------------------------


def test_what_a_feed_may_not_say_is_refused_with_what_to_do_and_without_the_secret(project: Project) -> None:
    servers = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    jaas = 'PlainLoginModule required username="a" password="canary-31415926";'
    models = {
        "no_servers": ("kafka_topic('t')", "no kafka.bootstrap.servers"),
        "several": (f"kafka_topic('a,b', {literal(servers)})", "found the topic 'a,b'"),
        "own_start": (f"kafka_topic('t', {literal({**servers, 'startingOffsets': 'latest'})})", "found startingOffsets"),
        "plain": (f"kafka_topic('t', {literal({**servers, 'kafka.ssl.key.password': 'canary-31415926'})})", "kafka.ssl.key.password with a secret in plain text"),
        "in_jaas": (f"kafka_topic('t', {literal({**servers, 'kafka.sasl.jaas.config': jaas})})", "kafka.sasl.jaas.config with a secret in plain text"),
        "by_spark": (f"kafka_topic('t', {literal({**servers, 'kafka.ssl.key.password': '${env:KAFKA}'})})", "a reference that Spark itself would replace"),
        "type": ("debezium('t', {'id': 'array<int>'}, ['id'])", "column id: found the type 'array<int>'"),
        "no_key": ("debezium('t', {'id': 'int'}, ['di'])", "found 'di'; expected one of columns: id"),
        "collision": ("debezium('t', {'_op': 'int'}, ['_op'])", "found a column '_op'"),
        "tombstones": ("debezium('t', {'id': 'int'}, ['id'], message_key=none)", "tombstones='delete' without a message_key"),
        "places": (f"debezium('{project.schema}.messages', {{'id': 'int'}}, ['id'])", "found a relation with the columns key, value; expected Kafka's _partition and _offset"),
    }  # fmt: skip
    project.table("messages", "select '' as key, '' as value")
    for name, (call, _) in models.items():
        project.changelog(name, f"select * from {{{{ reverse_etl.{call} }}}}", settings={"capture": FEED})
    project.model("outside", "select * from {{ reverse_etl.new_files('/nowhere') }}", {"materialized": "table"})
    result = project.run()
    for name, (_, message) in models.items():
        assert result.statuses[name] == "error"
        assert message in result.messages[name], (name, result.messages[name])
        assert "Next: " in result.messages[name]
    assert "found it outside a changelog with the strategy feed" in result.messages["outside"]
    assert "canary" not in result.text
