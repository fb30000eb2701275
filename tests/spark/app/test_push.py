"""Plain dbt commands push exactly what changed: three runs of one project with several syncs, and models that did not pass."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project, Result

FIELDS = {"id": "external_id", "name": "name"}
# By sync: how it begins; `crm_contacts` stays as it is.
SYNCS: dict[str, dict[str, Any]] = {
    "crm_contacts": {"mode": "mirror", "object": "contacts"},
    "filtered": {"mode": "mirror", "object": "filtered"},
    "no_mirror": {"mode": "mirror", "object": "no_mirror"},
    "moved": {"mode": "mirror", "object": "old_place"},
    "old_name": {"mode": "mirror", "object": "renamed"},
    "upserted": {"mode": "upsert", "object": "upserted"},
}
# What the third run finds edited.
EDITS: dict[str, dict[str, Any]] = {
    "filtered": {"where": "plan <> 'trial'"},
    "no_mirror": {"mode": "upsert"},
    "moved": {"object": "new_place"},
    "upserted": {"mode": "mirror"},
}


def contacts(project: Project, *rows: str) -> None:
    project.table("source", f"select * from values {', '.join(rows)} as t (id, name, plan)")


@dataclass
class Pushed:
    """Three runs and the destination after each: a first load, changed rows, edited syncs."""

    project: Project
    runs: list[Result]
    after: list[dict[str, list[tuple[Any, ...]]]]

    def push(self, *command: str) -> None:
        self.runs.append(self.project.dbt(*command))
        objects = [name for (name,) in self.project.crm("select name from sqlite_master where type = 'table'")]
        self.after.append(
            {
                name: self.project.crm(f"select * from {name} order by 1")
                for name in objects
                if "reverse_etl" not in name
            }
        )


@pytest.fixture(scope="module")
def pushed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    project = Project(tmp_path_factory.mktemp("push") / "shop", spark, "plain_pushes")
    told = Pushed(project, [], [])
    project.changelog("contacts_changelog", f"select id, name, plan from {project.schema}.source")
    for name, settings in SYNCS.items():
        project.sync(name, "contacts_changelog", fields=FIELDS, **settings)
    contacts(project, "(1, 'Ann', 'pro')", "(2, 'Bob', 'trial')", "(3, 'Cem', 'pro')")
    told.push("run")
    contacts(project, "(1, 'Ann', 'free')", "(2, 'Bobby', 'trial')", "(4, 'Dan', 'pro')")
    told.push("build")
    for name, edit in EDITS.items():
        project.sync(name, "contacts_changelog", fields=FIELDS, **{**SYNCS[name], **edit})
    (project.folder / "models/exposure_old_name.yml").unlink()
    renamed = {**SYNCS["old_name"], "renamed_from": "old_name"}
    project.sync("new_name", "contacts_changelog", fields=FIELDS, **renamed)
    spark.sql(f"create or replace view {project.schema}.reverse_etl_waves as select 'of an older version' as note")
    told.push("run")
    return told


FIRST = [(1, "Ann"), (2, "Bob"), (3, "Cem")]
SECOND = [(1, "Ann"), (2, "Bobby"), (4, "Dan")]


@pytest.mark.guarantee("What is sent", "Only mapped columns leave; a change of another column sends nothing")
def test_the_first_run_in_an_empty_warehouse_is_green_and_each_later_one_sends_exactly_the_net_changes(
    pushed: Pushed,
) -> None:
    first, second, third = pushed.runs
    assert first.success, first.text
    assert {first.sync(name) for name in SYNCS} == {"+3 ~0 -0"}
    assert pushed.after[0]["contacts"] == FIRST
    assert set(first.statuses) >= {
        "contacts_changelog",
        "reverse_etl_ledger",
        "reverse_etl_runs",
        "reverse_etl_status",
        "reverse_etl_waves",
        "reverse_etl_undelivered",
    }

    assert second.success, second.text
    assert second.sync("crm_contacts") == "+1 ~1 -1", "the plan of Ann is not mapped"
    assert pushed.after[1]["contacts"] == SECOND

    assert third.success, third.text
    assert third.sync("crm_contacts") == "nothing to send"
    runs = pushed.project.rows("select * from {s}.reverse_etl_runs where sync = 'crm_contacts' order by fence")
    assert [(r.planned_inserts, r.planned_updates, r.planned_deletes) for r in runs] == [(3, 0, 0), (1, 1, 1)]
    assert [(r.delivered_inserts, r.delivered_updates, r.delivered_deletes, r.status) for r in runs] == [
        (3, 0, 0, "succeeded"),
        (1, 1, 1, "succeeded"),
    ]
    status = pushed.project.rows("select * from {s}.reverse_etl_status where sync = 'crm_contacts'")
    assert [(r.sync, r.position_snapshot_id, r.undelivered_rows) for r in status] == [("crm_contacts", 2, 0)]


def test_a_view_of_the_ledger_is_made_anew_only_where_its_sql_changed_and_has_one_row_for_each_key(
    pushed: Pushed,
) -> None:
    _, second, third = pushed.runs
    views = ["reverse_etl_runs", "reverse_etl_status", "reverse_etl_undelivered", "reverse_etl_waves"]
    assert [second.messages[name] for name in views] == ["present"] * 4
    assert [third.messages[name] == "present" for name in views] == [True, True, True, False]
    assert pushed.project.rows("select count(*) from {s}.reverse_etl_waves where sync_id is not null")[0][0] > 1
    runs = "select count(*), count(distinct run_id), count(sync_id), count_if(status not in ('succeeded', 'partial')) from {s}.reverse_etl_runs"
    [(count, *told)] = [tuple(row) for row in pushed.project.rows(runs)]
    assert told == [count, count, 0]
    [(count, *told)] = [
        tuple(row)
        for row in pushed.project.rows("select count(*), count(distinct sync_id) from {s}.reverse_etl_status")
    ]
    assert told == [count]


@pytest.mark.guarantee("What is sent", "An edited sync sends what the new definition needs")
@pytest.mark.parametrize(
    ("sync", "outcome", "place", "rows"),
    [
        ("filtered", "+0 ~0 -1", "filtered", [(1, "Ann"), (4, "Dan")]),
        ("no_mirror", "+0 ~0 -0", "no_mirror", SECOND),
        ("moved", "+3 ~0 -0", "new_place", SECOND),
    ],
    ids=["filter", "mode", "object"],
)
def test_an_edited_sync_sends_what_the_new_definition_needs(
    pushed: Pushed, sync: str, outcome: str, place: str, rows: list[tuple[object, ...]]
) -> None:
    assert pushed.runs[2].sync(sync) == outcome
    assert pushed.after[2][place] == rows


def test_rows_of_the_object_that_a_sync_left_stay_there_and_the_run_says_so(pushed: Pushed) -> None:
    assert "the rows delivered there stay there" in pushed.runs[2].text
    assert pushed.after[2]["old_place"] == SECOND


def test_rows_that_were_deleted_in_upsert_mode_are_deleted_when_the_sync_becomes_a_mirror(pushed: Pushed) -> None:
    assert pushed.runs[1].sync("upserted") == "+1 ~1 -0"
    assert pushed.after[1]["upserted"] == [*SECOND[:2], (3, "Cem"), SECOND[2]], "upsert never deletes"
    assert pushed.runs[2].sync("upserted") == "+0 ~0 -1"
    assert pushed.after[2]["upserted"] == SECOND


@pytest.mark.guarantee("What is sent")
def test_a_renamed_sync_keeps_its_position(pushed: Pushed) -> None:
    assert pushed.runs[2].sync("new_name") == "nothing to send"
    assert pushed.after[2]["renamed"] == SECOND


@pytest.fixture
def shop(project: Project) -> Project:
    contacts(project, "(1, 'Ann', 'pro')", "(2, 'Bob', 'trial')", "(3, 'Cem', 'pro')")
    project.changelog("contacts_changelog", f"select id, name, plan from {project.schema}.source")
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", fields=FIELDS)
    return project


@pytest.mark.guarantee("dbt and its commands")
def test_a_model_that_failed_or_was_skipped_or_whose_test_failed_is_not_pushed(shop: Project) -> None:
    shop.model("broken", "select assert_true(false) as id", {"materialized": "table"})
    query = f"select id, name, plan from {shop.schema}.source"
    shop.changelog("skipped_changelog", f"-- depends_on: {{{{ ref('broken') }}}}\n{query}")
    shop.sync("crm_skipped", "skipped_changelog", mode="mirror", object="skipped")
    test = {
        "name": "contacts_changelog",
        "config": json.loads(json.dumps({"materialized": "changelog", "unique_key": "id"})),
    }
    test["columns"] = [
        {"name": "plan", "data_tests": [{"reverse_etl.current_accepted_values": {"arguments": {"values": ["pro"]}}}]}
    ]
    shop.properties("contacts_changelog", {"models": [test]})
    failed = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert not failed.success
    assert (failed.statuses["broken"], failed.statuses["skipped_changelog"]) == ("error", "skipped")
    assert " crm_skipped -> " not in failed.text
    assert failed.statuses["contacts_changelog"] == "success"
    assert failed.sync("crm_contacts") == "ERROR blocked"
    assert "tests not passed of contacts_changelog: reverse_etl_current_accepted_values" in failed.text
    assert not (shop.folder / "crm.db").exists()

    shop.model("broken", "select 1 as id", {"materialized": "table"})
    (shop.folder / "models/exposure_crm_skipped.yml").unlink()
    contacts(shop, "(1, 'Ann', 'pro')")
    untested = shop.run()
    assert untested.sync("crm_contacts") == "ERROR blocked", (
        "the ledger keeps it until the test passes over a later head"
    )
    tested = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert tested.success, tested.text
    assert tested.sync("crm_contacts") == "+1 ~0 -0"
