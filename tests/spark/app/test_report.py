"""What people look at, from a real ledger and real changelogs: the report, tests over the ledger, and alerts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError
from dbt_reverse_etl.cli import cli
from tests.support.dbt.project import Project
from tests.support.servers.http import Reply, http_server


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Bob was refused by one of two syncs; after that Bob and Cem changed, which was captured and not pushed."""
    here, project = Path.cwd(), Project(tmp_path_factory.mktemp("report") / "shop", spark, "report_tests")
    contacts(project, "(1L, 'Ann', 'pro')", "(2L, 'Bob', 'trial')", "(3L, 'Cem', 'pro')")
    project.model("contacts", f"select * from {project.schema}.source", {"materialized": "view"})
    project.changelog("contacts_changelog", "select id, name, plan from {{ ref('contacts') }}")
    assert project.dbt("parse").success
    shared["before any sync"] = made(project)
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", fields={"id": "id", "name": "name"})
    project.sync("crm_people", "contacts_changelog", mode="upsert", object="people")
    project.crm(
        "create table contacts (id integer primary key, name text check (length(name) <> 3 or name < 'B' or name > 'C'))"
    )
    assert not project.run().success, "a row is refused"
    contacts(project, "(1L, 'Ann', 'pro')", "(2L, 'Bobby', 'pro')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DBT_REVERSE_ETL_PUSH", "off")
        assert project.run().success
    yield project
    os.chdir(here)


shared: dict[str, Any] = {}


def contacts(project: Project, *rows: str) -> None:
    project.table("source", f"select * from values {', '.join(rows)} as t (id, name, plan)")


def call(shop: Project, *arguments: str) -> Result:
    place = ["--project-dir", str(shop.folder), "--profiles-dir", str(shop.folder)]
    return CliRunner().invoke(cli, ["report", *arguments, *place], standalone_mode=False)


def made(shop: Project, *arguments: str) -> dict[str, Any]:
    result = call(shop, "--json", *arguments)
    assert result.exception is None, result.exception
    read: dict[str, Any] = json.loads(result.stdout)
    return read


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_the_report_says_how_each_sync_and_changelog_stands_without_any_row_value(
    shop: Project, tmp_path: Path
) -> None:
    found = made(shop, "--key", '{"ID": 2}')
    syncs = {sync["name"]: sync for sync in found["syncs"]}
    crm, people = syncs["crm_contacts"], syncs["crm_people"]
    assert (crm["destination"], crm["position"], crm["head"], crm["lag"]) == ("crm.contacts", 1, 2, 1)
    assert [(run["status"], run["counts"]["delivered"]["insert"]) for run in crm["runs"]] == [("partial", 2)]
    assert [(one["outcome"], one["rows"]) for one in crm["left"]] == [("rejected", 1)]
    assert crm["runs"][0]["message"].startswith("1 rejected: "), "why it is partial"
    assert (crm["health"], crm["reason"]) == ("failing", "undelivered rows: 1, and max_undelivered allows 0")
    assert [sync["name"] for sync in found["syncs"]] == ["crm_contacts", "crm_people"]
    assert (people["runs"][0]["status"], people["left"], people["health"]) == ("succeeded", [], "behind")
    assert people["last_success_at"] == people["runs"][0]["finished_at"]
    [changelog] = found["changelogs"]
    assert [(s["inserts"], s["updates"], s["deletes"], s["live_rows"]) for s in changelog["snapshots"]] == [
        (3, 0, 0, 3),
        (0, 1, 1, 2),
    ]
    assert crm["behind_since"] == changelog["snapshots"][1]["captured_at"]
    assert changelog["upstream"] == [["contacts"]]

    [history] = found["keys"]
    assert history["key"] == '{"id":2}', "as the changelog writes it"
    first, second = history["changes"]
    assert (first["change"], second["change"], second["columns"]) == ("insert", "update", ["name", "plan"])
    assert first["after_hash"] == second["before_hash"] != second["after_hash"]
    reached = {one["sync"]: one["undelivered"] for one in history["deliveries"]}
    assert reached["crm_people"] is None
    assert "CHECK" in reached["crm_contacts"]

    file = tmp_path / "page.html"
    written = call(shop, "--out", str(file), "--key", '{"id": 2}')
    assert (written.exception, written.return_value) == (None, ExitCode.OK)
    page = file.read_text()
    assert "crm.contacts" in page
    assert not [value for value in ("Ann", "Bob", "Cem", "trial") if value in page]


@pytest.mark.full
def test_a_project_without_a_sync_gets_a_page_with_its_changelogs_although_they_have_no_table(shop: Project) -> None:
    found = shared["before any sync"]
    assert found["syncs"] == []
    assert [(one["name"], one["snapshots"]) for one in found["changelogs"]] == [("contacts_changelog", [])]


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_the_row_of_a_key_is_shown_only_where_it_was_asked_for(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert (
        call(shop, "--out", str(file), "--select", "crm_people", "--key", '{"id": 2}', "--show-values").exception
        is None
    )
    page = file.read_text()
    assert "Bobby" in page
    assert "Ann" not in page, "of another key"
    assert "crm_contacts" not in page, "it was not selected"
    for key, expected in (
        ("2", "text that is no JSON object"),
        ('{"email": "ann@example.com"}', "the columns email"),
        ('{"id": "ann@example.com"}', "a value that is no key of contacts_changelog"),
    ):
        refused = call(shop, "--out", str(file), "--key", key).exception
        assert isinstance(refused, ReverseEtlError)
        assert expected in str(refused)
        assert "ann@example.com" not in str(refused)


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_dbt_tests_over_the_ledger_and_alerts_tell_of_a_sync_that_is_late_blocked_or_leaves_rows(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, sql in {
        "late": "{{ reverse_etl.late_syncs(max_hours=0) }}",
        "late_tomorrow": "{{ reverse_etl.late_syncs(syncs=['crm_people']) }}",
        "left": "{{ config(severity='warn') }} {{ reverse_etl.undelivered_syncs() }}",
        "left_few": "{{ reverse_etl.undelivered_syncs(max_rows=1) }}",
        "blocked": "{{ reverse_etl.blocked_syncs() }}",
        "drifted": "{{ reverse_etl.drifted_changelogs() }}",
    }.items():
        (shop.folder / "tests").mkdir(exist_ok=True)
        (shop.folder / "tests" / f"{name}.sql").write_text(sql)
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    assert shop.dbt("run", "--select", "package:reverse_etl").success
    assert shop.dbt("run", "--select", "package:reverse_etl", "--empty").success
    shop.changelog("unbuilt", "select 1 as id")
    shop.sync("of_unbuilt", "unbuilt", object="unbuilt")
    found = shop.dbt("test", "--select", "test_type:singular").statuses
    for name in ("unbuilt.sql", "unbuilt.yml", "exposure_of_unbuilt.yml"):
        (shop.folder / "models" / name).unlink()
    green = {"late_tomorrow": "pass", "left_few": "pass", "drifted": "pass"}
    assert found == {"late": "fail", "left": "warn", "blocked": "pass", **green}

    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    with http_server() as server:
        shop.alerts = [{"type": "webhook", "url": server.url}]
        shop.sync("crm_people", "contacts_changelog", mode="upsert", object="people", guards={"max_changes": "1%"})
        for _ in range(2):
            assert shop.run().sync("crm_people") == "ERROR blocked"
        crm, people = sorted(made(shop)["syncs"], key=itemgetter("name"))
        assert (crm["health"], people["health"], people["reason"].partition(":")[0]) == ("ok", "failing", "blocked")
        told = sorted((one["sync"], one["state"], one["status"]) for one in server.received[0].json["syncs"])
        assert told == [("crm_people", "failing", "blocked")], (
            "nobody heard that crm_contacts failed, before there was a channel"
        )
        assert len(server.received) == 1, "once"
        found = shop.dbt("test", "--select", "test_type:singular").statuses
        assert found == {"late": "fail", "left": "pass", "blocked": "fail", **green}

        shop.sync("crm_people", "contacts_changelog", mode="upsert", object="people")
        server.script(Reply(500))
        mended = shop.run()
        assert mended.success, "an alert that fails is no failure of the push"
        assert "alert 0 (webhook) was not sent: " in mended.text
        [recovered] = server.received[1].json["syncs"]
        assert (recovered["sync"], recovered["state"], recovered["counts"]["updates"]) == ("crm_people", "recovered", 1)
        assert not [one for one in server.received if b"Bob" in one.body]
    found = shop.dbt("test", "--select", "test_type:singular").statuses
    assert found == {"late": "pass", "left": "pass", "blocked": "pass", **green}

    changelog = f"{shop.schema}.contacts_changelog"
    drifted = F.col("_header").withField("drift", F.lit(3).cast("bigint"))
    header = (
        shop.spark.table(changelog).where("_change = 'snapshot' and _snapshot_id = 2").withColumn("_header", drifted)
    )
    header.write.format("delta").mode("append").saveAsTable(changelog)
    assert shop.dbt("test", "--select", "drifted").statuses == {"drifted": "fail"}


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_what_runs_brought_of_a_changelog_before_counts_for_nothing_in_a_new_one(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.run().success
    assert made(shop, "--key", '{"id": 1}')["keys"][0]["deliveries"]
    assert shop.dbt("run-operation", "reset", "--args", "{model: contacts_changelog}").success
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    assert shop.run().success
    assert made(shop, "--key", '{"id": 1}')["keys"][0]["deliveries"] == []
    (shop.folder / "tests").mkdir(exist_ok=True)
    (shop.folder / "tests" / "late.sql").write_text("{{ reverse_etl.late_syncs(max_hours=0) }}")
    assert shop.dbt("run", "--select", "package:reverse_etl").success
    assert shop.dbt("test", "--select", "late").statuses == {"late": "fail"}

    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    for sync in ("crm_contacts", "crm_people"):
        assert shop.dbt("run-operation", "adopt", "--args", f"{{sync: {sync}}}").success
    assert shop.run().success
    assert {one["sync"] for one in made(shop, "--key", '{"id": 1}')["keys"][0]["deliveries"]} == {
        "crm_contacts",
        "crm_people",
    }
    assert shop.dbt("test", "--select", "late").statuses == {"late": "pass"}
