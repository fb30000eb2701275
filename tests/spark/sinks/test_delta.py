"""A Delta table as a destination: the contract, and whole pushes as one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import SparkSession
from pyspark.sql.classic import dataframe as classic

from dbt_reverse_etl.app import reconcile
from dbt_reverse_etl.base.errors import DestinationError, ExitCode
from dbt_reverse_etl.sinks import delta
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.delta import DeltaSettings, DeltaSink
from dbt_reverse_etl.sinks.delta_log import properties_of, sized_as
from dbt_reverse_etl.testing import ReadBack, SinkContract
from tests.support.dbt.command import call, found_by
from tests.support.dbt.project import Project


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (({"schema": "lake"}, "people"), ({"schema": "Lake"}, "People")),
        (({"schema": "lake"}, "people"), ({"schema": "spark_catalog.lake"}, "people")),
        (({"path": "s3://a/lake"}, "people"), ({"path": "s3://a/lake/"}, "./people/")),
    ],
)
def test_two_names_of_one_table_are_one_place(one: tuple[Any, str], other: tuple[Any, str]) -> None:
    places = {DeltaSink(DeltaSettings.model_validate(given)).place_of(name) for given, name in (one, other)}
    assert len(places) == 1
    assert DeltaSink(DeltaSettings.model_validate(one[0])).place_of("pets") not in places


@pytest.mark.full
def test_a_table_with_a_column_that_delta_numbers_and_with_capital_letters_is_a_destination(shop: Project) -> None:
    made = DeltaTable.create(shop.spark).tableName(f"{shop.schema}_lake.people")
    numbered = made.addColumn("sk", "bigint", generatedAlwaysAs=IdentityGenerator())
    numbered.addColumn("ID", "bigint").addColumn("Name", "string").addColumn("amount", "double").execute()
    first = shop.run()
    assert first.success, first.text
    assert lake(shop) == shop.rows("select id, name, amount from {s}.source order by id")
    assert shop.rows("select count(distinct sk) from {s}_lake.people") == [(2000,)]


def test_the_session_of_a_table_is_sized_as_that_of_the_push(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert sized_as(spark).conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_a_schema_that_is_not_there_is_said_with_the_statement_that_makes_it(spark: SparkSession) -> None:
    task = SinkTask("s", "sync", 1, "people", Mode.UPSERT, ("id",), pa.schema([("id", pa.string())]), first=True)
    with pytest.raises(DestinationError, match=r"found no schema `nowhere`; .* Next: run: CREATE SCHEMA `nowhere`"):
        DeltaSink(DeltaSettings(schema="nowhere")).open(task)


@pytest.mark.full
def test_a_table_that_takes_no_changes_is_said_at_once(shop: Project) -> None:
    assert shop.run().success
    shop.spark.sql(f"alter table {shop.schema}_lake.people set tblproperties (delta.appendOnly = true)")
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id = 5")
    refused = shop.run()
    assert not refused.success
    assert "DELTA_CANNOT_MODIFY_APPEND_ONLY" in refused.text


@pytest.mark.full
class TestDelta(SinkContract):
    sink_class = DeltaSink
    histories = 2

    @pytest.fixture
    def settings(self, spark: SparkSession, tmp_path: Path) -> Iterator[dict[str, Any]]:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        yield {"path": str(tmp_path / "lake")}
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    @pytest.fixture
    def read_back(self, spark: SparkSession, settings: dict[str, Any]) -> ReadBack:
        def read(task: SinkTask) -> list[dict[str, Any]]:
            table = spark.read.format("delta").load(f"{settings['path']}/{task.object}").toArrow()
            rows: list[dict[str, Any]] = table.cast(task.schema).to_pylist()
            return rows

        return read


@pytest.fixture
def shop(project: Project) -> Project:
    project.spark.sql(f"create schema {project.schema}_lake")
    project.destinations = {"lake": {"type": "delta", "schema": f"{project.schema}_lake"}}
    project.table("source", "select id, concat('name ', id) as name, id * 1.5d as amount from range(2000)")
    project.changelog("people", f"select * from {project.schema}.source")
    project.sync("lake_people", "people", destination="lake", mode="mirror", object="people")
    return project


def lake(shop: Project) -> list[Any]:
    return shop.rows("select id, name, amount from {s}_lake.people order by id")


def merges(shop: Project) -> int:
    return shop.rows("describe history {s}_lake.people").__str__().count("operation='MERGE'")


@pytest.mark.full
@pytest.mark.guarantee("Files")
def test_a_push_is_one_commit_and_a_crash_after_it_sends_nothing_twice(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shop.run()
    assert first.success, first.text
    assert first.sync("lake_people") == "+2000 ~0 -0"
    source = "select id, name, amount from {s}.source order by id"
    assert lake(shop) == shop.rows(source)
    assert merges(shop) == 1

    shop.spark.sql(f"delete from {shop.schema}.source where id < 10")
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id % 100 = 50")
    real = DeltaSink.push

    def lost(self: DeltaSink, *arguments: Any, **more: Any) -> Any:
        real(self, *arguments, **more)
        raise KeyboardInterrupt  # the process ends between the commit and the ledger

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "push", lost)
        with suppress(KeyboardInterrupt):
            shop.run()
    assert lake(shop) == shop.rows(source)
    again = shop.run()
    assert again.success, again.text
    assert lake(shop) == shop.rows(source)
    assert merges(shop) == 2, "the record of the commit settled the claim"


@pytest.mark.full
@pytest.mark.guarantee("Files")
def test_a_row_that_a_constraint_refuses_is_listed_and_the_others_arrive(shop: Project) -> None:
    assert shop.run().success
    shop.spark.sql(f"alter table {shop.schema}_lake.people add constraint short check (length(name) < 20)")
    shop.spark.sql(f"update {shop.schema}.source set name = repeat('x', 30) where id = 77")
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id in (78, 79, 1500)")
    second = shop.run()
    assert not second.success
    assert second.sync("lake_people") == "+0 ~3 -0, 1 rejected"
    names = dict(shop.rows("select id, name from {s}_lake.people where id in (77, 78, 1500)"))
    assert names == {77: "name 77", 78: "new", 1500: "new"}
    assert "xxx" not in second.text


@pytest.mark.full
def test_a_row_that_a_cast_of_a_constraint_cannot_take_is_listed_and_the_others_arrive(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_by_default(known: SparkSession) -> SparkSession:
        made = sized_as(known)
        made.conf.set("spark.sql.ansi.enabled", "true")  # the sessions of tests have it off
        return made

    monkeypatch.setattr(delta, "sized_as", as_by_default)
    assert shop.run().success
    number = "check (cast(substr(name, 6) as int) >= 0)"
    shop.spark.sql(f"alter table {shop.schema}_lake.people add constraint number {number}")
    shop.spark.sql(f"update {shop.schema}.source set name = if(id = 77, 'name x', 'name 0') where id in (77, 78, 1500)")
    second = shop.run()
    assert second.sync("lake_people") == "+0 ~2 -0, 1 rejected"
    assert "CAST_INVALID_INPUT" in second.text
    names = dict(shop.rows("select id, name from {s}_lake.people where id in (77, 78, 1500)"))
    assert names == {77: "name 77", 78: "name 0", 1500: "name 0"}


@pytest.mark.full
def test_a_key_that_delta_numbers_by_default_is_left_alone_by_an_update(shop: Project) -> None:
    made = DeltaTable.create(shop.spark).tableName(f"{shop.schema}_lake.people")
    made = made.addColumn("id", "bigint", generatedByDefaultAs=IdentityGenerator())
    made.addColumn("name", "string").addColumn("amount", "double").execute()
    assert shop.run().success
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id = 5")
    assert shop.run().sync("lake_people") == "+0 ~1 -0"
    assert lake(shop) == shop.rows("select id, name, amount from {s}.source order by id")


@pytest.mark.full
def test_a_key_that_delta_always_numbers_is_named(shop: Project) -> None:
    made = DeltaTable.create(shop.spark).tableName(f"{shop.schema}_lake.people")
    made = made.addColumn("id", "bigint", generatedAlwaysAs=IdentityGenerator())
    made.addColumn("name", "string").addColumn("amount", "double").execute()
    refused = shop.run()
    assert not refused.success
    assert "column id, GENERATED AS IDENTITY" in refused.text


@pytest.mark.full
@pytest.mark.guarantee("Refusals and outages")
def test_a_sync_that_owns_its_table_replaces_it_in_one_commit_when_most_rows_changed(shop: Project) -> None:
    shop.sync("lake_people", "people", destination="lake", mode="mirror", object="people", owns_object=True)
    assert shop.run().success
    shop.spark.sql(f"insert into {shop.schema}_lake.people values (-1, 'foreign', 0)")
    shop.spark.sql(f"update {shop.schema}.source set name = 'few' where id % 100 = 0")
    assert shop.run().sync("lake_people") == "+0 ~20 -0"
    assert operations(shop) == ["WRITE", "MERGE"], "the first load, and a fiftieth of the rows"
    assert lake(shop)[0].id == -1

    shop.spark.sql(f"update {shop.schema}.source set name = 'many' where id % 2 = 0")
    shop.spark.sql(f"delete from {shop.schema}.source where id > 1900")
    third = shop.run()
    assert third.sync("lake_people") == "+1901 ~0 -0", "every row of the head, as an insert"
    assert operations(shop) == ["WRITE", "MERGE", "WRITE"]
    assert lake(shop) == shop.rows("select id, name, amount from {s}.source order by id"), "the foreign row went"
    assert shop.run().sync("lake_people") == "nothing to send"


@pytest.mark.full
@pytest.mark.guarantee("Every destination")
def test_a_row_that_stands_twice_is_found_by_reconcile_and_hides_no_other_difference(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.run().success
    shop.spark.sql(f"insert into {shop.schema}_lake.people select * from {shop.schema}_lake.people where id = 77")
    shop.spark.sql(f"delete from {shop.schema}_lake.people where id = 78")
    monkeypatch.setattr(reconcile, "MOST_REPAIRED", 1)
    for arguments in ((), ("--repair",)):
        found = found_by(shop, *arguments)["lake_people"]
        assert (found["missing"], found["duplicate"], found["exit_code"]) == (1, 1, ExitCode.FAILED)
        assert [kind for kind, _ in found["sample"]] == ["missing", "duplicate"]
        assert "lake_people: found keys that several rows have: 1; expected one row for each key." in found["message"]
    shop.spark.sql(f"delete from {shop.schema}_lake.people where id = 77")
    monkeypatch.undo()
    assert call(shop, "reconcile", "--repair").return_value == ExitCode.OK
    assert found_by(shop)["lake_people"]["exit_code"] == ExitCode.OK
    assert lake(shop) == shop.rows("select id, name, amount from {s}.source order by id")


@pytest.mark.full
@pytest.mark.guarantee("Every destination")
def test_no_row_of_a_table_comes_to_the_driver_in_a_reconcile(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.run().success
    shop.spark.sql(f"update {shop.schema}_lake.people set name = 'else' where id = 77")
    monkeypatch.setattr(classic.DataFrame, "toArrow", None)
    found = found_by(shop)["lake_people"]
    assert (found["rows"], found["different"], found["missing"], found["extra"]) == (2000, 1, 0, 0), found


@pytest.mark.full
@pytest.mark.guarantee("Refusals and outages")
def test_a_full_load_that_a_constraint_refuses_is_given_up_for_the_changes(shop: Project) -> None:
    shop.sync("lake_people", "people", destination="lake", mode="mirror", object="people", owns_object=True)
    assert shop.run().success
    shop.spark.sql(f"alter table {shop.schema}_lake.people add constraint short check (length(name) < 20)")
    shop.spark.sql(f"update {shop.schema}.source set name = if(id = 77, repeat('x', 30), 'new') where id < 1000")
    second = shop.run()
    assert not second.success
    assert second.sync("lake_people") == "+0 ~999 -0, 1 rejected"
    assert "the full load was given up" in second.text
    assert [row.name for row in lake(shop)[76:79]] == ["new", "name 77", "new"]


@pytest.mark.full
@pytest.mark.guarantee("Files")
def test_a_column_that_changes_values_is_refused_by_a_push_and_by_reconcile(project: Project) -> None:
    lake = f"{project.schema}_lake"
    project.spark.sql(f"create schema {lake}")
    project.destinations = {"lake": {"type": "delta", "schema": lake}}
    columns = "'a' as name, timestamp_ntz'2024-03-10 02:30:00' as met, array('a') as tags, 1 as n"
    project.table("source", f"select 1 as id, {columns}")
    project.changelog("people", f"select * from {project.schema}.source")
    project.sync("lake_people", "people", destination="lake", object="people")
    assert project.run().success
    # As earlier versions made it, and as a user might.
    changed = "id int, name char(20), met timestamp, tags array<char(3)>, n bigint"
    project.spark.sql(f"create or replace table {lake}.people ({changed}) using delta")
    project.spark.sql(f"insert into {project.schema}.source select 2, {columns}")
    wrong = {
        "name of type char(20)": "string",
        "met of type timestamp": "timestamp_ntz",
        "tags of type array<char(3)>": "array<string>",
        "n of type bigint": "int",
    }
    reconciled = found_by(project)["lake_people"]["message"]
    pushed = project.run()
    assert not pushed.success
    for text in (reconciled, pushed.text):
        for found, expected in wrong.items():
            assert f"found column {found}; expected the type of the field, {expected}." in text
    assert project.rows("select count(*) from {s}_lake.people")[0][0] == 0


def operations(shop: Project) -> list[str]:
    """Of the sync, the oldest first, without those that only move the fence."""
    history = shop.spark.sql(f"describe history {shop.schema}_lake.people")
    written = history.where("userMetadata like '%closed'").orderBy("version").collect()
    return [row.operation for row in written]


@pytest.mark.full
def test_a_table_with_names_that_delta_takes_only_mapped_is_made_and_widened(shop: Project) -> None:
    shop.destinations["lake"]["on_new_column"] = "add"
    shop.sync("named", "people", destination="lake", object="named", mode="mirror", fields={"id": "order id"})
    for fields in ({"id": "id"}, {"id": "id", "name": "a, b"}):
        shop.sync("widened", "people", destination="lake", object="widened", mode="mirror", fields=fields)
        done = shop.run()
        assert done.success, done.text
    assert shop.rows("select `order id` from {s}_lake.named order by 1") == shop.rows(
        "select id from {s}.source order by id"
    )
    found = shop.rows("select id, `a, b` from {s}_lake.widened order by 1")
    assert found == shop.rows("select id, name from {s}.source order by id")


@pytest.mark.full
def test_a_table_that_is_mapped_by_id_is_widened_and_stays_so(shop: Project) -> None:
    shop.destinations["lake"]["on_new_column"] = "add"
    table = f"{shop.schema}_lake.by_id"
    mapped = "tblproperties ('delta.columnMapping.mode' = 'id')"
    shop.spark.sql(f"create table {table} (id bigint) using delta {mapped}")
    fields = {"id": "id", "name": "a, b"}
    shop.sync("by_id", "people", destination="lake", object="by_id", mode="mirror", fields=fields)
    done = shop.run()
    assert done.success, done.text
    found = shop.rows("select id, `a, b` from {s}_lake.by_id order by 1")
    assert found == shop.rows("select id, name from {s}.source order by id")
    (detail,) = shop.spark.sql(f"describe detail {table}").collect()
    assert detail.properties["delta.columnMapping.mode"] == "id"


@pytest.mark.full
def test_a_table_without_times_that_have_no_zone_is_widened_by_some(shop: Project) -> None:
    """Delta turns the feature on by itself only where it makes a table."""
    shop.destinations["lake"]["on_new_column"] = "add"
    query = "select id, timestamp_ntz'2024-01-01 10:00:00' as at, array(timestamp_ntz'2024-01-01 11:00:00') as more from range(2)"
    shop.changelog("visits", query)
    for fields in ("id", "id at more"):
        shop.sync("visited", "visits", destination="lake", object="visited", mode="mirror", fields=fields.split())
        done = shop.run()
        assert done.success, done.text
    assert shop.rows("select * from {s}_lake.visited order by id") == shop.rows(f"{query} order by id")
    assert properties_of(shop.spark, f"{shop.schema}_lake.visited")["delta.feature.timestampNtz"] == "supported"
