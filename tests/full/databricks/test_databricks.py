"""dbt-databricks renders this package, and Spark with Delta carries it out; in the environment of the matrix row `databricks` (.ci/matrix.py)."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace
from typing import Any

import databricks.sql
import pytest
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.databricks import DatabricksAdapter
from dbt.adapters.databricks.python_models.python_config import ParsedPythonModel
from dbt.adapters.databricks.spog import probe
from dbt.deprecations import reset_deprecations
from pyspark.sql import SparkSession

from tests.support import ROOT
from tests.support.dbt.databricks import Workspace
from tests.support.dbt.project import Project

EXAMPLE = ROOT / "examples" / "databricks"
WAREHOUSE, CLUSTER = "/sql/1.0/warehouses/0123456789abcdef", "/sql/protocolv1/o/1/0123-456789-abcdefgh"
PEOPLE = (
    "id bigint, name varchar(20), amount decimal(10, 2), at timestamp, day date, paid boolean, "
    "places array<struct<city: string, since: decimal(4, 0)>>, sizes map<string, int>"
)


@pytest.fixture
def workspace(spark: SparkSession, project: Project, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The profile of the project is one of dbt-databricks, and what it connects to is the stand-in."""
    workspace = Workspace(spark)
    monkeypatch.setattr(databricks.sql, "connect", workspace.connect)
    monkeypatch.setattr(probe, "probe_host", lambda _: probe.HostMetadata(None))
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    project.output = {
        "type": "databricks",
        "host": "workspace.example.com",
        "http_path": WAREHOUSE,
        "token": "none",
        "catalog": "spark_catalog",
        "schema": project.schema,
        "threads": 1,
    }
    return workspace


@pytest.fixture
def people(project: Project) -> str:
    """A source table with a change feed."""
    table = f"{project.schema}.people"
    project.spark.sql(
        f"create table {table} ({PEOPLE}) using delta tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    project.spark.sql(
        f"insert into {table} select id, concat('person ', id), id * 1.5, timestamp'2024-01-01' + make_interval(0, 0, 0, id), "
        "date'2024-01-01', id % 2 = 0, array(struct(null, 1)), map('a', id) from range(1, 21)"
    )
    tables = [{"name": "app", "schema": project.schema, "tables": [{"name": "people"}]}]
    project.properties("sources", {"sources": tables})
    return table


def changed(project: Project, people: str) -> None:
    """One insert, one update, one delete."""
    at = "timestamp'2025-01-01'"
    project.spark.sql(f"insert into {people} (id, name, at) values (21, 'new', {at})")
    project.spark.sql(f"update {people} set name = 'other', at = {at} where id = 2")
    project.spark.sql(f"delete from {people} where id = 3")


def done(project: Project, *command: str) -> Any:
    result = project.dbt(*command)
    assert result.success, result.text
    return result


def rows(project: Project, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in project.rows(query)]


def outside_of_the_catalog(workspace: Workspace, project: Project) -> list[str]:
    """Statements that name the schema without its catalog."""
    short = re.compile(rf"(?<!spark_catalog\.){project.schema}\.")
    return [sql for sql in workspace.recorded if short.search(sql.replace("`", ""))]


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("http_path", [WAREHOUSE, CLUSTER])
def test_each_capture_keeps_the_changes_of_all_types_and_names_three_levels_alone(
    project: Project, workspace: Workspace, people: str, http_path: str
) -> None:
    project.output["http_path"] = http_path
    config = {
        "materialized": "changelog",
        "unique_key": "id",
        "tblproperties": {"delta.logRetentionDuration": "interval 60 days"},
        "persist_docs": {"relation": True, "columns": True},
        "grants": {"select": ["readers"]},
        "query_tags": '{"team": "growth"}',
    }
    project.model("people_changelog", "select * from {{ source('app', 'people') }}")
    described = {"description": "It's all people", "columns": [{"name": "name", "description": "Of a person"}]}
    project.properties("people_changelog", {"models": [{"name": "people_changelog", "config": config, **described}]})
    assert done(project, "run").messages["people_changelog"] == "+20 ~0 -0, snapshot 1"
    changed(project, people)
    assert done(project, "run").messages["people_changelog"] == "+1 ~1 -1, snapshot 2"
    assert done(project, "run").messages["people_changelog"] == "+0 ~0 -0, snapshot 2"

    assert rows(
        project,
        "select _change, id, name, amount from {s}.people_changelog where _snapshot_id = 2 and _header is null order by id, _change",
    ) == [
        ("update_postimage", 2, "other", 3),
        ("update_preimage", 2, "person 2", 3),
        ("delete", 3, "person 3", 4.5),
        ("insert", 21, "new", None),
    ]
    assert not outside_of_the_catalog(workspace, project)
    made = [sql for sql in workspace.recorded if re.match(r"create table \S+__uncommitted_", sql)]
    assert len(made) == 3
    assert all(" using delta tblproperties" in sql for sql in made), "Unity Catalog manages tables of no other format"
    assert sum(" with (txnAppId = 'changelog', txnVersion = '2'" in sql for sql in workspace.recorded) == 1
    assert not [sql for sql in workspace.recorded if sql.startswith("alter table") and " type " in sql]


@pytest.mark.guarantee("dbt and its commands")
def test_the_change_feed_and_the_times_of_rows_say_what_to_compare(
    project: Project, workspace: Workspace, people: str
) -> None:
    query, every = "select * from {{ source('app', 'people') }}", {"full_above": 1}
    project.changelog("by_cdf", query, settings={"capture": {"strategy": "cdf", "table": "app.people", **every}})
    project.changelog("by_time", query, settings={"capture": {"strategy": "timestamp", "updated_at": "at", **every}})
    done(project, "run")
    changed(project, people)
    messages = done(project, "run").messages
    assert messages["by_cdf"] == "+1 ~1 -1, snapshot 2"
    assert messages["by_time"] == "+1 ~1 -0, snapshot 2", "a row that vanished has no time"
    fed = [sql for sql in workspace.recorded if "table_changes(" in sql]
    named = ".".join(f"`{part}`" for part in f"spark_catalog.{people}".split("."))
    assert [sql for sql in fed if f"table_changes('{named}', " in sql] == fed != []
    candidates = [sql for sql in workspace.recorded if re.search(r"create table \S+__candidates_", sql)]
    assert len(candidates) == 2
    assert all(" using delta tblproperties" in sql for sql in candidates)

    project.spark.sql(f"insert overwrite {people} select * from {people} where id <> 4")
    assert "full compare: `spark_catalog`" in done(project, "run").messages["by_cdf"], "an overwrite tells no changes"
    assert not outside_of_the_catalog(workspace, project)


@pytest.mark.guarantee("dbt and its commands")
def test_a_struct_of_many_fields_is_captured_without_a_setting_that_a_sql_warehouse_refuses(
    project: Project, workspace: Workspace
) -> None:
    many = ", ".join(f"'field_{number}', id + {number}" for number in range(60))
    for rows, said in ((3, "+3 ~0 -0, snapshot 1"), (4, "+1 ~0 -0, snapshot 2")):
        project.changelog("people_changelog", f"select id, named_struct({many}) as s from range({rows})")
        assert done(project, "run").messages["people_changelog"] == said
    assert not [sql for sql in workspace.recorded if "maxToStringFields" in sql]


@pytest.mark.guarantee("dbt and its commands")
def test_rows_with_bad_keys_fail_a_capture_or_are_kept_aside(project: Project, workspace: Workspace) -> None:
    project.table("twice", "select * from values (1, 'a'), (1, 'b'), (null, 'c'), (2, 'd') as t(id, name)")
    query = f"select * from spark_catalog.{project.schema}.twice"
    project.changelog("strict", query)
    project.changelog("tolerant", query, settings={"on_bad_key": "quarantine"})
    result = project.run()
    assert "found 1 rows with a NULL key and 2 rows that share their key" in result.messages["strict"]
    assert result.messages["tolerant"] == "+1 ~0 -0, snapshot 1 (2 keys quarantined)"
    assert rows(project, "select _reason, name from {s}.strict__bad_keys order by name") == [
        ("duplicate_key", "a"),
        ("duplicate_key", "b"),
        ("null_key", "c"),
    ]
    project.table("twice", "select 2 as id, 'd' as name")
    assert done(project, "run", "--exclude", "package:reverse_etl").messages["strict"] == "+1 ~0 -0, snapshot 1"
    assert not project.spark.catalog.tableExists(f"{project.schema}.strict__bad_keys")
    assert not outside_of_the_catalog(workspace, project)


@pytest.mark.guarantee("dbt and its commands")
def test_operations_on_the_history_and_views_of_it_work(project: Project, workspace: Workspace, people: str) -> None:
    publish = {"publish": "people_published"}
    project.changelog("people_changelog", "select id, name, sizes from {{ source('app', 'people') }}", settings=publish)
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    views = {"then": "as_of(ref('people_changelog'), snapshot=1)", "now": "current(ref('people_changelog'))"}
    views |= {"net": "net_changes(ref('people_changelog'), 1, 2)", "known": "snapshots(ref('people_changelog'))"}
    for name, view in views.items():
        project.model(name, f"select * from {{{{ reverse_etl.{view} }}}}", {"materialized": "view"})
    done(project, "run")
    operate(project, "savepoint", model="people_changelog", name="before")
    changed(project, people)
    done(project, "run")
    assert rows(project, "select count(*), count_if(id = 3) from {s}.then") == [(20, 1)]
    assert rows(project, "select count(*), count_if(id = 3), max(id) from {s}.now") == [(20, 0, 21)]
    assert rows(project, "select count(*) from {s}.people_published where name = 'other'") == [(1,)]

    operate(project, "rollback", model="people_changelog", savepoint="before")
    assert rows(project, "select count(*), count_if(id = 3), max(id) from {s}.now") == [(20, 1, 20)]
    assert "frozen" in done(project, "run").messages["people_changelog"]
    operate(project, "release", model="people_changelog")
    assert done(project, "run").messages["people_changelog"].startswith("+1 ~1 -1")
    assert rows(project, "select kind from {s}.known order by snapshot_id") == [
        ("capture",),
        ("savepoint",),
        ("capture",),
        ("rollback",),
        ("release",),
        ("capture",),
    ]

    operate(project, "prune", model="people_changelog", keep=1)
    table = f"spark_catalog.{project.schema}.people_changelog"
    project.spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    operate(project, "maintain", model="people_changelog", vacuum=False)
    assert [sql for sql in workspace.recorded if sql.startswith("reorg table")]
    assert not [sql for sql in workspace.recorded if sql.startswith("optimize") and "full" in sql], "it is clustered"
    operate(project, "reset", model="people_changelog")
    done(project, "run", "--empty", "--select", "people_changelog")
    project.table("days", f"select id, name, sizes, explode(sequence(day, day + 1)) as day from {people}")
    days = f"spark_catalog.{project.schema}.days"
    operate(project, "import_history", model="people_changelog", relation=days, date_column="day")
    assert done(project, "run").messages["people_changelog"] == "+1 ~0 -0, snapshot 3", "the new one has no day"
    assert not outside_of_the_catalog(workspace, project)


def operate(project: Project, operation: str, **arguments: Any) -> None:
    done(project, "run-operation", operation, "--args", json.dumps(arguments))


@pytest.fixture
def shop(project: Project, workspace: Workspace, people: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with the Python model of the example, which runs here in place of a cluster."""
    project.changelog("customers_changelog", "select id, name, amount from {{ source('app', 'people') }}")
    project.sync("crm_customers", "customers_changelog", mode="mirror")
    for file in (EXAMPLE / "models").iterdir():
        shutil.copy(file, project.folder / "models")
    model = project.folder / "models" / "push_customers.py"
    model.write_text(model.read_text().replace("/Volumes/main/shop/reverse_etl", str(project.folder)))
    secrets = SimpleNamespace(get=lambda scope, key: f"{scope}/{key}")

    def submit(_: DatabricksAdapter, parsed_model: Any, compiled_code: str) -> AdapterResponse:
        ParsedPythonModel(**parsed_model)  # what it says of the cluster is what the adapter knows
        session = workspace.connect().session
        exec(compiled_code, {"spark": session, "dbutils": SimpleNamespace(secrets=secrets)})
        return AdapterResponse("OK")

    monkeypatch.setattr(DatabricksAdapter, "submit_python_job", submit)
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    monkeypatch.setattr("dbt_reverse_etl.plugin.PUSHING", ())  # the package is not installed beside dbt
    return project


@pytest.mark.guarantee("dbt and its commands")
def test_the_python_model_of_the_example_compiles_and_pushes_what_changed_of_what_it_refers_to(
    shop: Project, people: str
) -> None:
    reset_deprecations()  # dbt counts those of earlier commands of this process
    done(shop, "compile", "--select", "push_customers", "--warn-error-options", "{error: [Deprecations]}")
    shop.changelog("other_changelog", "select 1 as id")
    shop.sync("crm_others", "other_changelog", object="others")
    done(shop, "build")
    query = "select sync, status, snapshot_id, delivered_inserts, delivered_updates, delivered_deletes from {s}.push_customers"
    assert rows(shop, query) == [("crm_customers", "succeeded", 1, 20, 0, 0)], "crm_others is of another changelog"
    assert shop.crm("select count(*) from contacts") == [(20,)]

    changed(shop, people)
    done(shop, "build")
    assert rows(shop, query) == [("crm_customers", "succeeded", 2, 1, 1, 1)]
    assert shop.crm("select id, name from contacts where id in (2, 3, 21)") == [(2, "other"), (21, "new")]
    assert rows(shop, "select sync, position_snapshot_id from {s}.reverse_etl_status") == [("crm_customers", 2)]


@pytest.mark.guarantee("dbt and its commands")
def test_the_python_model_fails_with_its_push_and_is_left_out_after_a_test_that_failed(
    shop: Project, people: str
) -> None:
    done(shop, "build")
    changed(shop, people)
    shop.sync("crm_customers", "customers_changelog", mode="mirror", guards={"max_changes": 2})
    blocked = shop.dbt("build")
    assert not blocked.success
    assert "3 changes, of 20 rows (max_changes: 2)" in blocked.messages["push_customers"]
    assert shop.crm("select count(*) from contacts where name = 'other'") == [(0,)]

    shop.sync("crm_customers", "customers_changelog", mode="mirror")
    config = {"materialized": "changelog", "unique_key": "id"}
    tested = [{"name": "name", "data_tests": [{"reverse_etl.current_not_null": {}}, "reverse_etl.current_unique"]}]
    tested += [
        {"name": "amount", "data_tests": [{"reverse_etl.current_accepted_values": {"arguments": {"values": [1]}}}]}
    ]
    shop.properties(
        "customers_changelog", {"models": [{"name": "customers_changelog", "config": config, "columns": tested}]}
    )
    assert shop.dbt("build").statuses["push_customers"] == "skipped"

    assert done(shop, "run", "--empty").statuses["push_customers"] == "success"
    assert rows(shop, "select count(*) from {s}.push_customers") == [(0,)], "a part of the rows is not pushed"
