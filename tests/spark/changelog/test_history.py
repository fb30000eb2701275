"""The operations on a changelog's history: savepoint, rollback, release, checkpoint, prune, maintain."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from pyarrow import parquet
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from dbt_reverse_etl.cli import cli
from tests.support.dbt.operations import Account, Operations, killed_after, random_script, random_states, store_states
from tests.support.dbt.project import Project
from tests.support.effort import scaled

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
PARTS = 1 + scaled(1)


@pytest.fixture(autouse=True)
def quick_vacuum(spark: SparkSession) -> Iterator[None]:
    """VACUUM lists a table in ten thousand tasks."""
    names = (
        "spark.sql.sources.parallelPartitionDiscovery.parallelism",
        "spark.databricks.delta.retentionDurationCheck.enabled",
    )
    for name, value in zip(names, ("2", "false"), strict=True):
        spark.conf.set(name, value)
    yield
    for name in names:
        spark.conf.unset(name)


@pytest.fixture
def operations(project: Project, monkeypatch: pytest.MonkeyPatch) -> Operations:
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    return Operations(project)


def assert_history_is(operations: Operations, account: Account, told: str) -> None:
    """Every snapshot that is kept answers as it did; every other one with an error."""
    project, table = operations.project, operations.table
    asked = " union all ".join(
        f"select {n} as n, * from {render('as_of', table, snapshot=n, key='id')}" for n in account.kept
    )
    found: dict[int, dict[int, str | None]] = {n: {} for n in account.kept}
    for row in project.rows(asked):
        assert row.id not in found[row.n], f"{told}: a key stands twice"
        found[row.n][row.id] = row.v
    for n in account.kept:
        assert found[n] == account.images[n], f"{told}: snapshot {n}"
    assert operations.image() == {*account.images[-1].items()}, f"{told}: current"
    assert operations.kinds().keys() == {*account.kept}, told
    columns = "id, v, valid_from_snapshot, valid_to_snapshot"
    versions = [tuple(row) for row in project.rows(f"select {columns} from {render('scd2', table, key='id')}")]
    assert len(versions) == len(set(versions)), told
    assert set(versions) == account.scd2(), f"{told}: scd2"
    start = account.kept_from
    view = render("net_changes", table, start, key="id")
    net = {row.id: (row._change, row.v) for row in project.rows(f"select * from {view}")}
    old, new = account.images[start], account.images[-1]
    assert net.keys() == {
        key for key in old.keys() | new.keys() if (key in old, old.get(key)) != (key in new, new.get(key))
    }
    for n in sorted(account.pruned)[-2:]:
        with pytest.raises(Exception, match=f"snapshot {n} was pruned"):
            operations.image(n)
        if n + 1 in account.pruned:
            with pytest.raises(Exception, match="was pruned"):
                project.rows(f"select * from {render('changes', table, n)}")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_after_any_operations_each_kept_snapshot_shows_what_it_showed_and_each_pruned_one_is_an_error(
    operations: Operations, spark: SparkSession
) -> None:
    project, rng = operations.project, random.Random(SEED)
    states = random_states(rng, 8)
    store_states(spark, f"{project.schema}.states", states)
    project.table("source", f"select id, v from {project.schema}.states where state = 0")
    assert project.run().success
    for steps, account in random_script(rng, states, parts=PARTS, number=6):
        for step in steps:
            step["rows"] = step.get("rows", "").format(states=f"{project.schema}.states")
        result = operations.run("play", model="things", steps=steps)
        told = f"seed {SEED}: {steps}"
        assert result.success, f"{told}\n{result.text}"
        spark.sql(f"vacuum {operations.table} retain 0 hours")
        assert_history_is(operations, account, told)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.full)], ids=["some", "all"])
def test_an_operation_that_is_killed_at_any_step_is_completed_by_its_repeat_once(
    operations: Operations, spark: SparkSession, everywhere: bool
) -> None:
    project, account = operations.project, Account()
    states = [
        dict.fromkeys(range(40), "a"),
        {n: "b" if n < 6 else "a" for n in range(2, 41)},
        dict.fromkeys(range(41), "c"),
    ]
    store_states(spark, f"{project.schema}.states", states)
    project.table("source", f"select id, v from {project.schema}.states where state = 0")
    assert project.run().success
    account.capture(states[0])

    def capture(state: int) -> None:
        rows = f"(select id, v from {project.schema}.states where state = {state})"
        assert operations.run("capture_rows", model="things", rows=rows).success
        account.capture(states[state])

    def killed(operation: str, *writes: int, **arguments: object) -> None:
        for number in writes:
            with killed_after(number):
                operations.run(operation, model="things", **arguments)
        said = operations.done(operation, **arguments)
        assert "nothing to do" in said, "the last kill came after the commit"
        getattr(account, operation)(**arguments)

    capture(1)
    # The stage, the commit; a rollback has the old images between them.
    killed("savepoint", *((1, 2) if everywhere else (2,)), name="before")
    killed("rollback", *((1, 2, 3) if everywhere else (3,)), to=1)
    killed("release", 1)
    capture(1)
    if everywhere:
        killed("checkpoint", 2)
    capture(2)
    killed("prune", 1, keep=1)
    assert account.pruned
    assert_history_is(operations, account, "after the kills")
    assert list(operations.kinds().values()).count("savepoint") == 1
    assert "another name" in operations.refused("savepoint", name="before")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_bad_data_that_was_pushed_is_rolled_back_planned_pushed_and_released_and_prune_keeps_every_sync_right(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = Operations(project)
    good = {1: "Ann", 2: "Bob", 3: "Cem", 4: "Dan", 5: "Eve", 6: "Flo"}
    monkeypatch.chdir(project.folder)  # the command line changes it

    def source(rows: dict[int, str]) -> None:
        project.table("source", f"select * from values {', '.join(map(str, rows.items()))} as t (id, v)")

    source(good)
    project.sync("crm_contacts", "things", mode="mirror")
    assert project.run().sync("crm_contacts") == "+6 ~0 -0"
    source({1: "?", 2: "Bob", 3: "Cem", 4: "Dan", 7: "?"})
    assert project.run().sync("crm_contacts") == "+1 ~1 -2"
    assert project.crm() == [(1, "?"), (2, "Bob"), (3, "Cem"), (4, "Dan"), (7, "?")]

    said = operations.done("rollback", to=1)
    assert "back to snapshot 1 (+2 ~1 -1, snapshot 3)" in said
    assert "dbt run-operation release" in said
    place = ["--project-dir", str(project.folder), "--profiles-dir", str(project.folder)]
    [plan] = json.loads(CliRunner().invoke(cli, ["plan", "--json", *place]).stdout)
    assert plan["planned"] == {"insert": 2, "update": 1, "delete": 1}
    assert (plan["position"], plan["head"]) == (2, 3)
    assert len(project.crm()) == 5, "a plan sends nothing"

    project.changelog("things", "select * from a_table_that_is_gone")
    frozen = project.run()
    assert frozen.success, frozen.text
    assert frozen.messages["things"].startswith(
        "frozen since a rollback, nothing captured, snapshot 3; to capture again: dbt run-operation release"
    )
    assert frozen.sync("crm_contacts") == "+2 ~1 -1"
    assert project.crm() == [*good.items()]

    operations.done("release")
    operations.done("prune", keep=1)
    project.spark.sql(f"vacuum {operations.table} retain 0 hours")
    assert {*operations.kinds()} == {3, 4}, "the rollback is a full image: the position stands there"
    project.changelog("things", f"select * from {project.schema}.source")
    project.sync("crm_people", "things", mode="mirror", object="people")
    source({**good, 6: "Fay", 8: "Hal"})
    again = project.run()
    assert again.success, again.text
    assert again.messages["things"] == "+1 ~1 -0, snapshot 5"
    assert again.sync("crm_contacts") == "+1 ~1 -0"
    assert again.sync("crm_people") == "+7 ~0 -0"
    assert project.crm() == project.crm("select * from people order by 1") == [*{**good, 6: "Fay", 8: "Hal"}.items()]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_person_is_erased_once_each_sync_was_pushed_to_the_full_image_after_the_delete(project: Project) -> None:
    operations = Operations(project)
    project.sync("crm_contacts", "things", mode="mirror")
    for last in (9, 8):
        project.table("source", f"select id, concat('person ', id) as v from range({last})")
        assert project.run().success
    operations.done("checkpoint")
    kept = operations.done("prune", keep=1)
    assert (
        "push the sync crm_contacts first, or leave out with without_syncs what is gone: snapshot 3 holds a full image"
        in kept
    )
    gone = f"select * from {operations.table} where v = 'person 8'"
    assert project.rows(gone)
    assert project.run().success
    assert "removed 2 snapshots" in operations.done("prune", keep=1)
    assert not project.rows(gone)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_prune_keeps_all_history_while_the_ledger_of_a_sync_is_not_the_one_of_this_target(project: Project) -> None:
    operations = Operations(project)
    project.sync("crm_contacts", "things", mode="mirror")
    project.table("source", "select id, concat('person ', id) as v from range(9)")
    assert project.run().success
    project.spark.sql(f"drop table {project.schema}.reverse_etl_ledger")
    project.table("source", "select id, concat('person ', id) as v from range(8)")
    assert operations.run("capture_rows", model="things", rows=f"{project.schema}.source").success
    operations.done("checkpoint")
    [mark] = project.rows(f"select _header.label from {operations.table} where _change = 'ledger'")
    kept = operations.done("prune", keep=1)
    assert f"nothing to do: the sync with the id {mark.label}, whose runs are in another ledger" in kept
    assert "removed 2 snapshots" in operations.done("prune", keep=1, without_syncs=[mark.label])


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_prune_keeps_the_snapshot_at_which_an_adopt_was_asked_for_until_a_push_carries_it_out(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = operations.project
    project.table("source", "select * from values (1, 'Ann'), (2, 'Bob') as t (id, v)")
    project.sync("crm_contacts", "things", mode="mirror")
    assert project.dbt("run", "--select", "things", "reverse_etl_ledger").success
    with closing(sqlite3.connect(project.folder / "crm.db", isolation_level=None)) as loaded_by_hand:
        loaded_by_hand.execute("create table contacts (id integer primary key, v text)")
        loaded_by_hand.execute("insert into contacts values (1, 'Ann'), (2, 'Bob')")
    assert operations.run("adopt", sync="crm_contacts").success
    project.table("source", "select * from values (1, 'Ann'), (2, 'Bea') as t (id, v)")
    assert operations.run("capture_rows", model="things", rows=f"{project.schema}.source").success

    kept = operations.done("prune", keep=1)
    assert "nothing to do: an adopt that was asked for of the sync crm_contacts (" in kept
    assert ") needs snapshot 1" in kept
    given_up = operations.done("prune", keep=1, dry_run=True, without_syncs=["crm_contacts"])
    assert "would remove 1 snapshots" in given_up
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    assert project.run().sync("crm_contacts") == "+0 ~1 -0"
    assert project.crm() == [(1, "Ann"), (2, "Bea")]
    assert "removed 1 snapshots" in operations.done("prune", keep=1)


@pytest.mark.full
def test_a_rollback_over_columns_that_came_and_went_shows_them_as_then_and_refuses_what_it_cannot_do(
    operations: Operations,
) -> None:
    project = operations.project

    def model(columns: str) -> None:
        project.table("source", f"select {columns} from range(1, 4)")
        project.changelog(
            "things", f"select * from {project.schema}.source", settings={"on_column_change": "sync_all_columns"}
        )
        assert project.run().success

    model("id, cast(id as string) as v, id * 10 as went")
    model("id, cast(id as string) as v, id * 100 as came")
    assert "back to snapshot 1 (+0 ~3 -0, snapshot 3)" in operations.done("rollback", to=1)
    rows = project.rows(f"select id, v, went, came from {render('current', operations.table, key='id')} order by id")
    assert [tuple(row) for row in rows] == [(n, str(n), n * 10, None) for n in (1, 2, 3)]
    header = project.rows(f"select _header.* from {operations.table} where _snapshot_id = 3 and _change = 'snapshot'")[
        0
    ]
    assert [column.name for column in header.columns] == ["id", "v", "came", "went"]
    hashes = f"select distinct id, _row_hash from {operations.table} where _snapshot_id in (1, 3) and _change in ('insert', 'update_postimage')"
    assert len(project.rows(hashes)) == 3, "a row that came back has the hash that it had"

    assert "a snapshot id from 1 to 3" in operations.refused("rollback", to=9)
    assert "exactly one" in operations.refused("rollback", to=1, savepoint="x")
    assert "(there is none)" in operations.refused("rollback", savepoint="x")
    assert "at or before 2001" in operations.refused("rollback", timestamp="2001-01-01")
    assert "with the label 'monday'" in operations.refused("rollback", label="monday")
    assert "how much to keep" in operations.refused("prune")
    assert "a whole number from 1" in operations.refused("prune", keep=0)
    assert "there is none" in operations.refused("prune", keep=1, without_syncs="nobody")


@pytest.mark.full
def test_maintain_compacts_keeps_a_changelog_clustered_by_snapshot_and_lays_out_other_tables_as_asked(
    operations: Operations,
) -> None:
    project, table = operations.project, operations.table
    project.table("source", "select id, cast(id % 3 as string) as v from range(30)")
    project.model("wide", f"select * from {project.schema}.source", {"materialized": "table"})
    assert project.run().success
    for name in ("a", "b"):
        operations.done("savepoint", name=name)

    def detail(name: str) -> tuple[int, list[str]]:
        found = project.rows(f"describe detail {project.schema}.{name}")[0]
        return found.numFiles, found.clusteringColumns

    assert detail("things")[0] > 1
    statistics = "delta.dataSkippingStatsColumns"
    project.spark.sql(f"alter table {table} cluster by none")
    project.spark.sql(f"alter table {table} set tblproperties ('{statistics}' = 'v')")
    operations.done("maintain")
    assert detail("things") == (1, ["_snapshot_id"])
    properties = {row.key: row.value for row in project.rows(f"show tblproperties {table}")}
    assert properties[statistics] == "_snapshot_id,_change,`id`"
    assert "it stays clustered by _snapshot_id" in operations.refused("maintain", zorder_by=["id"])

    project.spark.sql(f"alter table {table} set tblproperties ('delta.deletedFileRetentionDuration' = '30 Days')")
    assert "no VACUUM" not in operations.done("maintain"), "Delta takes it without the word interval, too"
    project.spark.sql(
        f"alter table {table} set tblproperties ('delta.deletedFileRetentionDuration' = 'interval 1 hours')"
    )
    assert "no VACUUM: its delta.deletedFileRetentionDuration is 'interval 1 hours'" in operations.done("maintain")

    laid_out = [row.operation for row in project.rows(f"describe history {table}")].count("CLUSTER BY")
    assert laid_out == 2, "what is laid out well is not laid out anew"

    assert operations.run("maintain", model="wide", zorder_by=["v"], vacuum=False).success
    done = project.rows(f"describe history {project.schema}.wide limit 1")[0]
    assert json.loads(done.operationParameters["zOrderBy"]) == ["v"]
    assert operations.run("maintain", model="wide", cluster_by="v", vacuum=False).success
    assert detail("wide")[1] == ["v"]
    both = operations.run("maintain", model="wide", zorder_by=["v"])
    assert "one without liquid clustering" in both.text


@pytest.mark.guarantee("Capture")
@pytest.mark.full
def test_what_prune_removed_is_in_no_file_of_a_table_with_deletion_vectors_after_maintain(
    operations: Operations,
) -> None:
    project, table = operations.project, operations.table
    project.table("source", "select id, concat('person ', id) as v from range(30)")
    assert project.run().success
    properties = {row.key: row.value for row in project.rows(f"show tblproperties {table}")}
    assert properties["delta.enableDeletionVectors"] == "false"
    project.spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    project.table("source", "select id, concat('person ', id) as v from range(29)")
    assert project.run().success
    operations.done("checkpoint")
    operations.done("maintain", vacuum=False)  # REORG leaves out files that are clustered
    operations.done("prune", keep=1)
    operations.done("maintain", vacuum=False)
    files = [unquote(urlsplit(file).path) for file in project.spark.table(table).inputFiles()]
    values = [value for file in files for value in parquet.read_table(file, columns=["v"])["v"].to_pylist()]
    assert "person 28" in values
    assert "person 29" not in values
    assert "REORG" in [row.operation for row in project.rows(f"describe history {table}")]
