"""Where a feed comes from: new files, and Debezium's events."""

from __future__ import annotations

import base64
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.support.dbt.debezium_events import COMPARED, POSTGRES, SourceTable
from tests.support.dbt.feeds import FEED, assert_nothing_left, literal, positions
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))


# --- Kafka -----------------------------------------------------------------------------------------------------------


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


def test_a_file_whose_name_looks_like_a_pattern_is_read_by_any_data_source(project: Project) -> None:
    landing = project.folder / "landing"
    form = "org.apache.spark.sql.execution.datasources.csv.CSVFileFormat"  # none of those that a table is made over
    options = "options={'header': 'true'}, schema='id bigint, op string, number bigint'"
    source = f"reverse_etl.new_files('{landing}', format='{form}', {options})"
    settings = {"capture": {"strategy": "feed", "operation": "op", "sequence": "number"}}
    project.changelog("orders", f"select * from {{{{ {source} }}}}", settings=settings)
    landing.mkdir()
    without = project.run()
    assert without.messages["orders"] == "+0 ~0 -0, snapshot 1"
    assert f"new_files {landing}: found no row, now or before" in without.text
    (landing / "a[1]{x}*.csv").write_text("id,op,number\n1,I,1\n")
    for message in ("+1 ~0 -0, snapshot 2", "+0 ~0 -0, snapshot 2"):
        run = project.run()
        assert run.messages["orders"] == message
        assert "found no row" not in run.text


@pytest.mark.full
def test_sheets_without_a_schema_are_read_by_the_names_of_their_columns(project: Project) -> None:
    landing = project.folder / "landing"
    landing.mkdir()
    columns = "ID, first, last, 'I' as op, ID as number"

    def lands(name: str, sheet: str) -> None:
        frame = project.spark.sql(sheet)
        write_sheet(project.folder / "written" / name, frame).rename(landing / f"{name}.xlsx")

    lands("a", f"select {columns} from values ('1', 'Ann', 'Lee') as v(ID, first, last)")
    lands(
        "b [1]", "select last, 'I' as op, id as number, first, id from values ('2', 'Kim', 'Bob') as v(id, last, first)"
    )
    (landing / "~$a.xlsx").write_bytes(b"")  # somebody has it open

    def changelog(*formats: str) -> None:
        feeds = [
            f"reverse_etl.new_files('{landing}', format='{form}', options={{'pathGlobFilter': '*.{name}'}})"
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


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_folders_named_by_a_partition_are_read_without_a_schema_and_so_are_columns_of_newer_files(
    project: Project,
) -> None:
    landing = project.folder / "landing"
    feeds = []
    for form in ("csv", "json", "parquet"):
        options = {"pathGlobFilter": "part-*"}
        feed = f"reverse_etl.new_files('{landing / form}', format='{form}', options={literal(options)})"
        feeds.append(
            f"select concat('{form}', id) as id, string(day) as day, 'I' as op, 1 as number from {{{{ {feed} }}}}"
        )
    wider = f"reverse_etl.new_files('{landing / 'wider'}', format='parquet')"
    feeds.append(f"select concat('wider', id) as id, more as day, 'I' as op, 1 as number from {{{{ {wider} }}}}")
    settings = {"capture": {"strategy": "feed", "operation": "op", "sequence": "number"}}
    project.changelog("days_changelog", " union all ".join(feeds), settings=settings)
    for form in ("csv", "json", "parquet"):
        for id, day in ((1, "2026-11-01"), (2, "2026-11-02")):  # noqa: A001
            frame = project.spark.sql(f"select {id} as id").coalesce(1)
            frame.write.format(form).option("header", "true").save(str(landing / form / f"day={day}"))
            (landing / form / f"day={day}" / "notes").write_text("none of the files")
    for id, more in ((1, ""), (2, ", 'x' as more")):  # noqa: A001
        project.spark.sql(f"select {id} as id{more}").coalesce(1).write.mode("append").parquet(str(landing / "wider"))
    result = project.run()
    assert result.success, result.text
    rows = [(f"{form}{id}", f"2026-11-0{id}") for form in ("csv", "json", "parquet") for id in (1, 2)]  # noqa: A001
    assert project.image("days_changelog", "id, day") == sorted([*rows, ("wider1", None), ("wider2", "x")])
    assert_nothing_left(project, "days_changelog")


GOOD = {
    "csv": "id,value,op,number\n1,a,I,1\n",
    "json": '{"id": 1, "value": "a", "op": "I", "number": 1, "deep": {"a b": 1}}\n',
}
BAD = {"csv": "id,value,op,number\n2,canary,I,2,more\n", "json": '{"id": 2, "value": "canary\n'}


@pytest.mark.full
@pytest.mark.guarantee("Secrets and row values")
def test_a_malformed_line_shows_no_value_where_the_schema_is_inferred_and_a_mode_that_would_show_it_is_refused(
    project: Project,
) -> None:
    landing = project.folder / "landing"
    calls = {
        "csv_changelog": ("csv", "format='csv'"),
        "json_changelog": ("json", "format='JSON'"),
        "dropping": ("json", "format='json', options={'mode': 'DROPMALFORMED'}"),
        "fast": ("csv", "schema='id string', options={'mode': 'failfast'}"),
        "named": ("csv", "options={'columnNameOfCorruptRecord': '_bad'}"),
        "nothing": ("none", "format='json'"),
    }
    for name, (folder, arguments) in calls.items():
        feed = f"reverse_etl.new_files('{landing / folder}', {arguments})"
        rows = f"select id, value, op, cast(number as bigint) as number from {{{{ {feed} }}}}"
        project.changelog(
            name, rows, settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "number"}}
        )
    for folder in ("csv", "json", "none"):
        (landing / folder).mkdir(parents=True)
        (landing / folder / "1.txt").write_text(GOOD.get(folder, BAD["json"]))
    read, refused = ("csv_changelog", "json_changelog", "dropping"), ("fast", "named", "nothing")
    first = project.run()
    assert [first.statuses[name] for name in (*read, *refused)] == ["success"] * 3 + ["error"] * 3, first.text
    assert "found the mode FAILFAST, whose errors show rows; expected no mode, " in first.messages["fast"]
    assert "found columnNameOfCorruptRecord without a mode; expected no mode, " in first.messages["named"]
    assert "found no row that is json; expected one row a line" in first.messages["nothing"]
    for folder, line in BAD.items():
        (landing / folder / "2.txt").write_text(line)
    second = project.dbt("run", "--select", *read)
    assert [second.statuses[name] for name in read] == ["error", "error", "success"], second.text
    for name, form in (("csv_changelog", "csv"), ("json_changelog", "JSON")):
        assert f"found 1 rows in 1 files that are no {form} of the schema; expected" in second.messages[name]
        assert len(project.image(name, "id, value")) == 1, "of the first capture"
        assert_nothing_left(project, name)
    written = [first.text, second.text, *(path.read_text() for path in project.folder.glob("logs/*.log"))]
    assert "canary" not in "".join([*written, (project.folder / "target/run_results.json").read_text()])


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_files_that_were_read_before_another_run_captured_are_refused_and_read_again_by_the_next(
    project: Project,
) -> None:
    landing = project.folder / "landing"
    landing.mkdir()
    (landing / "1.csv").write_text("id,value,op,number\n1,old,U,\n")
    source = f"reverse_etl.new_files('{landing}', schema='id bigint, value string, op string, number bigint')"
    # Between the read, when the model is compiled, and its capture the head becomes another one.
    moved = (
        "{% if execute and var('meanwhile', false) %}{% do reverse_etl.savepoint('orders', name='noon') %}{% endif %}"
    )
    (project.folder / "macros").mkdir()
    (project.folder / "macros" / "meanwhile.sql").write_text(f"{{% macro meanwhile() %}}{moved}{{% endmacro %}}")
    project.changelog(
        "orders",
        f"{{{{ config(pre_hook='{{{{ meanwhile() }}}}') }}}} select * from {{{{ {source} }}}}",
        settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "number"}},
    )
    assert project.run().messages["orders"] == "+1 ~0 -0, snapshot 1"
    (landing / "2.csv").write_text("id,value,op,number\n2,new,U,\n")
    refused = project.dbt("run", "--select", "orders", "--vars", "{meanwhile: true}")
    assert not refused.success
    assert "found snapshot 2 as its newest, while this run read what is new after snapshot 1" in refused.text
    assert "nothing of this run was captured. Next: run it again" in refused.text
    assert_nothing_left(project, "orders")
    assert project.run().messages["orders"] == "+1 ~0 -0, snapshot 3"


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


@pytest.mark.full
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


@pytest.mark.full
def test_tables_that_share_a_topic_are_told_apart_by_a_column_in_the_key_of_the_message(project: Project) -> None:
    relation = f"{project.schema}.events"
    columns = {"shard": "string", "id": "bigint", "name": "string"}
    call = f"reverse_etl.debezium('{relation}', columns={literal(columns)}, key=['shard', 'id'], tombstones='ignore')"
    project.changelog(
        "orders_changelog", f"select * from {{{{ {call} }}}}", settings={"capture": FEED}, key=["shard", "id"]
    )
    events = []
    for lsn, (shard, op) in enumerate((("a", "c"), ("b", "c"), ("a", "u"), ("b", "d")), 1):
        row = {"id": 1, "name": f"{shard}{op}"}
        event = {"op": op, "before": {"id": 1} if op == "d" else None, "after": None if op == "d" else row}
        events.append((json.dumps({"shard": shard, "id": 1}), json.dumps(event | {"source": {"lsn": lsn}})))
    project.spark.createDataFrame(events, "key string, value string").createOrReplaceTempView("events")
    project.table("events", "select * from events")
    result = project.run()
    assert result.success, result.text
    assert project.image("orders_changelog", "shard, id, name") == [("a", 1, "au")]


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
    ({"after": {**ROW, "day": 99_999_999_999}}, "column day with a value that is no date"),
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
        "by_spark": (f"kafka_topic('t', {literal({**servers, 'kafka.ssl.key.password': '${env:KAFKA}'})})", "a reference that Kafka's client does not know"),
        "type": ("debezium('t', {'id': 'array<int>'}, ['id'])", "column id: found the type 'array<int>'"),
        "relative": ("new_files('landing', schema='id int')", "new_files landing: found a relative path"),
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
