"""Syncs that change, or whose destination or model does, in ways that leave nothing for the changes themselves to say."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call, counts, found_by
from tests.support.dbt.project import Project, Result
from tests.support.servers.http import http_server
from tests.support.servers.people_api import PeopleApi

pytestmark = pytest.mark.full


@pytest.fixture
def api(project: Project) -> Iterator[PeopleApi]:
    here, api = Path.cwd(), PeopleApi()
    with http_server(api) as server:
        project.spark.sql(f"create schema {project.schema}_lake")
        project.destinations |= {
            "api": {"type": "http", "url": server.url},
            "lake": {"type": "delta", "schema": f"{project.schema}_lake"},
        }
        yield api
    os.chdir(here)


def by_hand(project: Project, *statements: str) -> None:
    with closing(sqlite3.connect(project.folder / "crm.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def write(project: Project, mode: str, columns: str = "") -> None:
    """The syncs of one changelog: of the API, a Delta table that is its own, and SQLite."""
    project.changelog("people", f"select id, name{columns} from {project.schema}.source")
    fields = ["id", "name", *(["segment"] if columns else [])]
    project.sync(
        "api_people", "people", destination="api", object="people", mode=mode, on_unknown="park", fields=["id", "name"]
    )
    project.sync(
        "lake_people",
        "people",
        destination="lake",
        object="people",
        mode="mirror",
        owns_object=True,
        fields=["id", "name"],
    )
    project.sync("once", "people", object="once", mode="insert_only", fields=["id", "name"])
    project.sync("wide", "people", object="wide", mode="mirror", fields=fields)


@pytest.mark.guarantee("What is sent")
def test_what_a_change_of_a_sync_or_of_its_destination_asks_for_is_sent_though_no_row_changed(
    project: Project, api: PeopleApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.table("source", "select * from values (1, 'Ada'), (2, 'Bob'), (3, 'Cyd') as t (id, name)")
    write(project, "upsert")
    assert project.run().success
    project.table("source", "select * from values (1, 'Ada') as t (id, name)")
    assert project.run().success
    assert (api.rows, api.deleted) == ({1: "Ada", 2: "Bob", 3: "Cyd"}, [])

    write(project, "mirror", ", cast(null as string) as segment")
    by_hand(project, "alter table wide add column segment text")
    third = project.run()
    assert third.success, third.text
    assert third.sync("api_people") == "+0 ~0 -2", "no request for these was ever made, so nothing parks them"
    assert api.rows == {1: "Ada"}
    again = call(project, "push")
    assert (again.exception, again.return_value) == (None, ExitCode.OK), (
        "nor does the header of an empty column stop it"
    )

    by_hand(project, "delete from once", "insert into once values (1, 'by hand')")
    project.table("source", "select * from values (1, 'Ada'), (4, 'Dan') as t (id, name)")
    assert project.dbt("run-operation", "resync", "--args", "{sync: once}").success
    for switch in ("plan", "off"):
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", switch)
        for words in (("test", "once", "--key", '{"id": 4}'), ("reconcile", "--repair")):
            refused = call(project, *words)
            assert "expected on: this command sends rows" in str(refused.exception)
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    assert project.crm("select count(*) from once") == [(1,)]
    fourth = project.run()
    assert fourth.success, fourth.text
    assert project.crm("select id, name from once order by id") == [(1, "by hand"), (4, "Dan")]


@pytest.mark.guarantee("What is sent")
def test_a_resync_of_rows_that_are_only_inserted_sends_those_that_the_destination_lost(
    project: Project, api: PeopleApi
) -> None:
    project.table("source", "select * from values (1, 'Ada'), (2, 'Bob') as t (id, name)")
    write(project, "upsert")
    assert project.run().success
    by_hand(project, "delete from once where id = 2", "update once set name = 'by hand' where id = 1")
    assert project.dbt("run-operation", "resync", "--args", "{sync: once}").success
    again = project.run()
    assert again.success, again.text
    assert project.crm("select id, name from once order by id") == [(1, "by hand"), (2, "Bob")]


@pytest.mark.guarantee("What is sent")
def test_a_full_load_of_a_model_that_became_empty_empties_the_table_that_is_its_own(
    project: Project, api: PeopleApi
) -> None:
    project.table("source", "select * from values (1, 'Ada'), (2, 'Bob') as t (id, name)")
    write(project, "mirror")
    assert project.run().success
    project.table("source", "select * from values (1, 'Ada') as t (id, name) where false")
    guarded = project.run()
    asked = next(line for line in guarded.lines if "lake_people@" in line)
    override = asked.split("--override ")[1].split("'")[1]
    pushed = call(project, "push", "--select", "lake_people", "--override", override)
    assert (pushed.exception, pushed.return_value) == (None, ExitCode.OK), pushed.output
    assert project.rows("select * from {s}_lake.people") == []


@pytest.mark.guarantee("What is sent")
def test_a_key_under_another_name_is_refused_before_the_destination_has_each_row_twice_and_another_case_is_sent(
    project: Project, api: PeopleApi
) -> None:
    project.changelog("people", "select id, name from values (1, 'Ada'), (2, 'Bob') as t (id, name)")
    project.sync("crm_people", "people", object="people", mode="mirror", fields={"id": "id", "name": "name"})
    assert project.run().sync("crm_people") == "+2 ~0 -0"
    project.sync("crm_people", "people", object="people", mode="mirror", fields={"id": "id", "name": "Name"})
    assert project.run().sync("crm_people") == "+0 ~2 -0", "a destination may tell the two names apart"

    project.sync("crm_people", "people", object="people", mode="mirror", fields={"id": "person", "name": "Name"})
    by_hand(project, "alter table people rename column id to person")
    refused = project.run()
    assert not refused.success
    assert "crm_people: fields: found person as the key; expected id, as in the pushes before. Next:" in refused.text
    assert project.dbt("run-operation", "adopt", "--args", "{sync: crm_people}").success
    asked = call(project, "reconcile", "--repair")
    assert "found adopt, which the next push carries out" in str(asked.exception) + asked.output
    planned = call(project, "plan")
    assert "adopt was asked for: the next push carries it out first" in planned.output
    project.rows(
        "insert into {s}.reverse_etl_ledger (sync_id, fence, seq, fact, recorded_at, sync, run_id, body) select 'request', 0, 0, 'request', "
        """current_timestamp(), 'crm_people', uuid(), '{"operation": "forget", "exposure": "exposure.other_shop.crm_people"}'"""
    )
    assert "forget" not in call(project, "plan").output, "that is for another project that pushes over this ledger"
    project.changelog("people", "select id, name from values (1, 'Ann') as t (id, name)")
    assert project.run().sync("crm_people") == "+0 ~1 -1", "what was captured after adopt was asked for is sent"
    assert project.crm("select person, name from people") == [(1, "Ann")]

    assert project.dbt("run-operation", "forget", "--args", "{sync: crm_people}").success
    planned = call(project, "plan")
    assert "forget was asked for" in planned.output
    assert 'insert  {"id":1}' in planned.output
    about = {"name": "dashboard", "type": "dashboard", "owner": {"name": "Growth"}, "depends_on": ["ref('people')"]}
    project.properties("exposure_dashboard", {"exposures": [about]})
    for name in ("nobody", "dashboard"):
        nobody = project.dbt("run-operation", "adopt", "--args", f"{{sync: {name}}}")
        assert f"found '{name}', that is no exposure with meta.reverse_etl; expected one of crm_people." in nobody.text


@pytest.mark.guarantee("What is sent")
def test_a_column_that_is_renamed_in_the_table_is_refused_once_a_sync_was_pushed_and_may_be_renamed_in_the_model(
    project: Project,
) -> None:
    def run(name: str, first: str) -> Result:
        sql = f"select id, name as {name} from values (1, '{first}'), (2, 'Bob') as t (id, name)"
        project.changelog("people", sql, settings={"on_column_change": "sync_all_columns"})
        project.sync("crm_people", "people", object="people", mode="mirror", fields={"id": "id", name: "name"})
        return project.run()

    assert run("name", "Ada").sync("crm_people") == "+2 ~0 -0"
    table = f"{project.schema}.people"
    project.spark.sql(f"alter table {table} set tblproperties ('delta.columnMapping.mode' = 'name')")
    project.spark.sql(f"alter table {table} rename column name to title")
    refused = run("title", "Ann")
    assert not refused.success
    assert (
        "column name is no column of the table any more; expected it to stay, because a sync was pushed" in refused.text
    )
    assert f"give it back: alter table {table} add columns (name string)" in refused.text.replace("`", "")
    project.spark.sql(f"alter table {table} rename column title to name")
    again = run("title", "Ann")
    assert again.success, again.text
    assert again.sync("crm_people") == "+0 ~1 -0"
    assert project.crm("select id, name from people order by id") == [(1, "Ann"), (2, "Bob")]


@pytest.mark.guarantee("What is sent")
def test_reconcile_finds_what_was_written_for_nan_as_it_was_sent(project: Project) -> None:
    here = Path.cwd()
    project.destinations["lake"] = {"type": "files", "path": str(project.folder / "lake"), "format": "jsonl"}
    sql = "select id, double('NaN') as x, float('-Infinity') as y, 1.5d as z from range({rows})"
    project.changelog("people", sql.format(rows=3))
    project.sync("lake_people", "people", destination="lake", object="people", mode="mirror", options={"nan": "null"})
    assert project.run().success
    found = call(project, "reconcile")
    assert (found.exception, found.return_value) == (None, ExitCode.OK), found.output

    lake, backup = project.folder / "lake", project.folder / "backup"
    shutil.copytree(lake, backup)
    project.changelog("people", sql.format(rows=2))
    assert project.run().success
    shutil.rmtree(lake)
    backup.rename(lake)
    assert counts(found_by(project)["lake_people"]) == (3, 0, 0, 1, 0), "a row of ours that somebody brought back"

    assert project.dbt("run-operation", "reset", "--args", "{model: people}").success
    assert not project.run().success, "the positions are those of the changelog before"
    found = call(project, "reconcile", "--json")
    os.chdir(here)
    assert '"different": 0' in found.output, "compared with the model, too"
