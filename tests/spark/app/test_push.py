"""Plain dbt commands push exactly what changed, and never end in a silent green run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.dbt.project import Project


def contacts(project: Project, *rows: str) -> None:
    project.table("source", f"select * from values {', '.join(rows)} as t (id, name, plan)")


@pytest.fixture
def shop(project: Project) -> Project:
    contacts(project, "(1, 'Ann', 'pro')", "(2, 'Bob', 'trial')", "(3, 'Cem', 'pro')")
    project.changelog("contacts_changelog", f"select id, name, plan from {project.schema}.source")
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", fields={"id": "external_id", "name": "name"})
    return project


@pytest.mark.guarantee("What is sent", "Only mapped columns leave; a change of another column sends nothing")
def test_the_first_run_in_an_empty_warehouse_is_green_and_each_later_one_sends_exactly_the_net_changes(
    shop: Project,
) -> None:
    first = shop.dbt("run")
    assert first.success, first.text
    assert first.sync("crm_contacts") == "+3 ~0 -0"
    assert shop.crm() == [(1, "Ann"), (2, "Bob"), (3, "Cem")]
    assert set(first.statuses) >= {
        "contacts_changelog",
        "reverse_etl_ledger",
        "sync_runs",
        "sync_status",
        "sync_waves",
        "undelivered_rows",
    }

    contacts(shop, "(1, 'Ann', 'free')", "(2, 'Bobby', 'trial')", "(4, 'Dan', 'pro')")
    second = shop.dbt("build")
    assert second.success, second.text
    assert second.sync("crm_contacts") == "+1 ~1 -1", "the plan of Ann is not mapped"
    assert shop.crm() == [(1, "Ann"), (2, "Bobby"), (4, "Dan")]

    third = shop.dbt("run")
    assert third.success
    assert third.sync("crm_contacts") == "nothing to send"
    runs = shop.rows("select * from {s}.sync_runs order by fence")
    assert [(r.planned_inserts, r.planned_updates, r.planned_deletes) for r in runs] == [(3, 0, 0), (1, 1, 1)]
    assert [(r.delivered_inserts, r.delivered_updates, r.delivered_deletes, r.status) for r in runs] == [
        (3, 0, 0, "succeeded"),
        (1, 1, 1, "succeeded"),
    ]
    status = shop.rows("select * from {s}.sync_status")
    assert [(r.sync, r.position_snapshot_id, r.undelivered_rows) for r in status] == [("crm_contacts", 2, 0)]


@pytest.mark.guarantee("dbt and its commands")
def test_nothing_is_pushed_by_a_command_that_runs_no_model_in_full(shop: Project) -> None:
    for command in (
        ["compile"],
        ["parse"],
        ["list"],
        ["docs", "generate"],
        ["show", "--inline", "select 1"],
        ["run", "--empty", "--select", "contacts_changelog"],
        ["run", "--sample", "1 day", "--select", "contacts_changelog"],
        ["test", "--select", "contacts_changelog"],
        ["seed"],
    ):
        result = shop.dbt(*command)
        assert result.success, (command, result.text)
        assert not result.pushed(), command
    assert not (shop.folder / "crm.db").exists()
    assert shop.rows("select * from {s}.contacts_changelog") == [], "no snapshot is captured, either"


@pytest.mark.guarantee("dbt and its commands")
def test_a_model_that_failed_or_was_skipped_or_whose_test_failed_is_not_pushed(shop: Project) -> None:
    shop.model("broken", "select assert_true(false) as id", {"materialized": "table"})
    (shop.folder / "models/contacts_changelog.sql").write_text(
        f"-- depends_on: {{{{ ref('broken') }}}}\nselect id, name, plan from {shop.schema}.source"
    )
    skipped = shop.run()
    assert not skipped.success
    assert skipped.statuses["contacts_changelog"] == "skipped"
    assert not skipped.pushed()

    shop.model("broken", "select 1 as id", {"materialized": "table"})
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
    assert failed.statuses["contacts_changelog"] == "success"
    assert failed.sync("crm_contacts") == "ERROR blocked"
    assert "failed tests of contacts_changelog: reverse_etl_current_accepted_values" in failed.text
    assert not (shop.folder / "crm.db").exists()

    untested = shop.run()
    assert untested.sync("crm_contacts") == "ERROR blocked", "the ledger keeps it until the test passes"
    contacts(shop, "(1, 'Ann', 'pro')")
    assert shop.run().sync("crm_contacts") == "ERROR blocked", "a later head was not tested either"
    tested = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert tested.success, tested.text
    assert tested.sync("crm_contacts") == "+1 ~0 -0"
    assert shop.run().success


@pytest.mark.guarantee("dbt and its commands")
def test_a_failed_push_makes_dbt_exit_1_and_retry_pushes_while_the_result_of_dbt_stays(shop: Project) -> None:
    database = shop.folder / "crm.db"
    database.mkdir()
    failed = shop.run()
    assert not failed.success
    assert failed.sync("crm_contacts") == "ERROR failed"
    assert any("Done. PASS=" in line and "ERROR=0" in line for line in failed.lines), (
        "the result of dbt is shown as it was"
    )
    assert json.loads((shop.folder / "target/run_results.json").read_text())["results"]

    database.rmdir()
    retried = shop.dbt("retry")
    assert retried.success, retried.text
    assert retried.sync("crm_contacts") == "+3 ~0 -0"
    assert shop.crm() == [(1, "Ann"), (2, "Bob"), (3, "Cem")]


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize(
    ("edit", "outcome", "rows"),
    [
        ({"fields": {"id": "external_id", "name": "name", "plan": "plan"}}, "ERROR failed", None),
        ({"where": "plan <> 'trial'"}, "+0 ~0 -1", [(1, "Ann"), (3, "Cem")]),
        ({"mode": "upsert"}, "+0 ~0 -0", [(1, "Ann"), (2, "Bob"), (3, "Cem")]),
        ({"object": "people"}, "+3 ~0 -0", [(1, "Ann"), (2, "Bob"), (3, "Cem")]),
    ],
    ids=["field", "filter", "mode", "object"],
)
def test_an_edited_sync_sends_what_the_new_definition_needs_or_says_what_to_do(
    shop: Project, edit: dict[str, object], outcome: str, rows: list[tuple[object, ...]] | None
) -> None:
    assert shop.run().success
    settings = {"mode": "mirror", "fields": {"id": "external_id", "name": "name"}}
    shop.sync("crm_contacts", "contacts_changelog", **{**settings, **edit})
    edited = shop.run()
    assert edited.sync("crm_contacts") == outcome
    if rows is None:
        assert not edited.success
        assert "add column" in edited.text.lower(), "the table at the destination lacks the new field"
    else:
        assert shop.crm(f"select external_id, name from {edit.get('object', 'contacts')} order by 1") == rows
    if "object" in edit:
        assert "the rows delivered there stay there" in edited.text


def test_rows_that_were_deleted_in_upsert_mode_are_deleted_when_the_sync_becomes_a_mirror(shop: Project) -> None:
    shop.sync("crm_contacts", "contacts_changelog", mode="upsert", fields=["id", "name"])
    shop.run()
    shop.crm("select 1")
    contacts(shop, "(1, 'Ann', 'pro')")
    assert shop.run().sync("crm_contacts") == "+0 ~0 -0"
    assert len(shop.crm()) == 3, "upsert never deletes"
    shop.sync("crm_contacts", "contacts_changelog", mode="mirror", fields=["id", "name"])
    assert shop.run().sync("crm_contacts") == "+0 ~0 -2"
    assert shop.crm() == [(1, "Ann")]


@pytest.mark.guarantee("Guards")
def test_a_lost_destination_or_changelog_stops_and_names_the_command_that_then_works(shop: Project) -> None:
    assert shop.run().success
    (shop.folder / "crm.db").unlink()
    lost = shop.run()
    assert not lost.success
    assert "resync" in lost.text
    assert shop.dbt("run-operation", "resync", "--args", "{sync: crm_contacts}").success
    back = shop.run()
    assert back.success, back.text
    assert shop.crm() == [(1, "Ann"), (2, "Bob"), (3, "Cem")]
    assert shop.run().sync("crm_contacts") == "nothing to send"

    assert shop.dbt("run-operation", "reset", "--args", "{model: contacts_changelog}").success
    other = shop.run()
    assert not other.success
    assert other.sync("crm_contacts") == "ERROR other_changelog"
    assert "adopt" in other.text
    assert shop.dbt("run-operation", "adopt", "--args", "{sync: crm_contacts}").success
    adopted = shop.run()
    assert adopted.success, adopted.text
    assert adopted.sync("crm_contacts") == "nothing to send"
    contacts(shop, "(1, 'Ann', 'pro')", "(3, 'Cem', 'pro')")
    assert shop.run().sync("crm_contacts") == "+0 ~0 -1"

    assert shop.dbt("run-operation", "forget", "--args", "{sync: crm_contacts}").success
    assert shop.run().sync("crm_contacts") == "+2 ~0 -0"


@pytest.mark.guarantee("Configuration")
def test_configuration_errors_come_all_at_once_before_anything_is_captured(shop: Project) -> None:
    shop.sync("crm_contacts", "contacts_changelog", mode="mirrored", guards={"max_deletes": 0.1})
    shop.sync("second", "contacts_changelog", password="x1canary")
    shop.sync("third", "contacts_changelog", destination="nowhere")
    result = shop.run()
    assert not result.success
    for word in ("mirrored", "max_deletes", "nowhere", "password"):
        assert word in result.text
    assert "x1canary" not in result.text
    assert not shop.spark.catalog.tableExists(f"{shop.schema}.contacts_changelog")


@pytest.mark.guarantee("Configuration")
def test_a_target_that_is_not_configured_is_an_error_and_plan_is_said(shop: Project) -> None:
    shop.destinations = "plan"
    planned = shop.run()
    assert planned.success, planned.text
    assert "nothing was sent for crm_contacts" in planned.text
    profiles = Path(shop.folder / "profiles.yml")
    shop.destinations = {}
    missing = shop.run()
    assert not missing.success
    assert "crm" in missing.text
    assert profiles.is_file()


@pytest.mark.guarantee("Guards")
def test_guards_stop_a_push_before_its_first_send_and_the_override_of_the_message_lets_it_pass(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sync("crm_contacts", "contacts_changelog", mode="mirror", guards={"max_deletes": "10%"})
    assert shop.run().success, "a first load is exempt"
    contacts(shop, "(1, 'Ann', 'pro')")
    blocked = shop.run()
    assert blocked.sync("crm_contacts") == "ERROR blocked"
    assert len(shop.crm()) == 3
    assert "--override 'crm_contacts@2:+0~0-2'" in blocked.text
    monkeypatch.setenv("DBT_REVERSE_ETL_OVERRIDE", "crm_contacts@1:+0~0-2 crm_contacts@2:+0~0-1")
    assert not shop.run().success, "another head, or other counts"
    monkeypatch.setenv("DBT_REVERSE_ETL_OVERRIDE", "crm_contacts@2:+0~0-2")
    assert shop.run().success
    assert len(shop.crm()) == 1
    started = shop.rows("select body from {s}.reverse_etl_ledger where fact = 'run_started' order by fence")
    assert [json.loads(row.body)["override"] for row in started] == ["", "crm_contacts@2:+0~0-2"], "it is recorded"


@pytest.mark.guarantee("Guards")
def test_guards_count_the_rows_that_the_filter_of_a_sync_shows(shop: Project) -> None:
    people = [f"({n}, 'Name {n}', '{'pro' if n < 4 else 'trial'}')" for n in range(40)]
    contacts(shop, *people)
    shop.sync("crm_contacts", "contacts_changelog", mode="mirror", where="plan = 'pro'", guards={"max_deletes": "10%"})
    assert shop.run().success
    assert len(shop.crm()) == 4
    contacts(shop, *people[1:])
    blocked = shop.run()
    assert "found 1 deletes, of 4 rows (max_deletes: 10%)" in blocked.text, "of all 40 it would be within them"
    shop.sync("crm_contacts", "contacts_changelog", mode="mirror", where="plan = 'gold'")
    assert "found the sync sees no row of the model, and 4 rows would be deleted" in shop.run().text
    assert len(shop.crm()) == 4


@pytest.mark.guarantee("Refusals and outages")
def test_a_refused_row_is_red_stays_listed_and_is_sent_with_its_current_value(shop: Project) -> None:
    shop.crm(
        "create table contacts (external_id integer primary key, name text constraint short check (length(name) <> 3 or name not like 'B_b'))"
    )
    refused = shop.dbt("run")
    assert not refused.success
    assert refused.sync("crm_contacts") == "+2 ~0 -0, 1 rejected"
    assert shop.crm() == [(1, "Ann"), (3, "Cem")], "one bad row holds back no other"
    listed = shop.rows("select row_key, operation, outcome, attempts from {s}.undelivered_rows")
    assert [tuple(row) for row in listed] == [('{"id":2}', "insert", "rejected", 1)]
    assert "Bob" not in refused.text

    waiting = shop.run()
    assert not waiting.success, "a row is known to be missing; its next attempt is not due"
    assert waiting.sync("crm_contacts") == "nothing to send, 1 undelivered"
    assert "undelivered: 1 rejected: CHECK constraint failed: short; tried again after 20" in waiting.text

    contacts(shop, "(1, 'Ann', 'pro')", "(2, 'Bea', 'trial')", "(3, 'Cem', 'pro')")
    mended = shop.run()
    assert mended.success, mended.text
    assert mended.sync("crm_contacts") == "+1 ~0 -0", "a new value does not wait"
    assert shop.rows("select * from {s}.undelivered_rows") == []
    contacts(shop, "(1, 'Ann', 'pro')")
    assert shop.run().sync("crm_contacts") == "+0 ~0 -2"
    assert shop.crm() == [(1, "Ann")]


@pytest.mark.guarantee("dbt and its commands")
def test_without_artifacts_nothing_is_pushed_and_the_run_is_red(shop: Project) -> None:
    result = shop.dbt("run", "--no-write-json", "--select", "contacts_changelog")
    assert not result.success
    assert "found --no-write-json" in result.text
    assert not (shop.folder / "crm.db").exists()


@pytest.mark.guarantee("What is sent")
def test_a_renamed_sync_keeps_its_position(shop: Project) -> None:
    assert shop.run().success
    (shop.folder / "models/exposure_crm_contacts.yml").unlink()
    fields = {"id": "external_id", "name": "name"}
    shop.sync("people", "contacts_changelog", mode="mirror", fields=fields, renamed_from="crm_contacts")
    renamed = shop.run()
    assert renamed.success, renamed.text
    assert renamed.sync("people") == "nothing to send"
