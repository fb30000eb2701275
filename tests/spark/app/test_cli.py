"""The command line: the same syncs, from artifacts, for people and for machines."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from dbt_reverse_etl.errors import ExitCode, ReverseEtlError
from dbt_reverse_etl.ledger import DeltaLedger
from tests.support.dbt.command import call, exit_code, read
from tests.support.dbt.project import Project


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    here = Path.cwd()
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    project.table("source", "select * from values (1, 'Ann'), (2, 'Bob') as t (id, name)")
    project.changelog("contacts_changelog", f"select id, name from {project.schema}.source")
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", tags=["crm"])
    project.sync("crm_people", "contacts_changelog", mode="upsert", object="people")
    assert not project.run().pushed(), "off is off"
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    monkeypatch.setattr(sys, "argv", ["dbt-reverse-etl"])
    yield project
    os.chdir(here)


def captured(shop: Project, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of dbt that leaves the push to the command."""
    shop.table("source", query)
    with monkeypatch.context() as off:
        off.setenv("DBT_REVERSE_ETL_PUSH", "off")
        assert shop.run().success


def test_plan_shows_what_a_push_would_send_and_sends_and_moves_nothing(shop: Project) -> None:
    for _ in range(2):
        plan = {report["sync"]: report for report in read(call(shop, "plan", "--json"))}
        assert plan["crm_contacts"]["planned"] == {"insert": 2, "update": 0, "delete": 0}
        assert plan["crm_contacts"]["sample"] == [["insert", '{"id":1}'], ["insert", '{"id":2}']]
        assert plan["crm_contacts"]["position"] == 0
    shown = call(shop, "plan", "--select", "tag:crm").output
    header, row, *_ = shown.splitlines()
    assert header.split() == ["sync", "destination", "insert", "update", "delete", "position", "head"]
    assert row.split() == ["crm_contacts", "crm.contacts", "2", "0", "0", "0", "1"]
    assert 'insert  {"id":1}' in shown
    assert "crm_people" not in shown
    review = call(shop, "plan", "--markdown", "--select", "crm_contacts").output
    assert "insert 2" in review
    assert "Ann" not in review
    assert not (shop.folder / "crm.db").exists()


@pytest.mark.guarantee("dbt and its commands")
def test_push_from_artifacts_delivers_once_and_refuses_what_is_stale_or_was_pushed(shop: Project) -> None:
    first = call(shop, "push", "--select", "crm_contacts")
    assert first.exception is None, first.exception
    assert first.return_value == ExitCode.OK
    assert "SYNC crm_contacts -> crm.contacts" in first.output
    assert shop.crm() == [(1, "Ann"), (2, "Bob")]

    again = call(shop, "push", "--select", "crm_contacts")
    assert isinstance(again.exception, ReverseEtlError)
    assert "which were pushed before" in str(again.exception)
    assert call(shop, "push", "--select", "crm_contacts", "--if-due").return_value == ExitCode.OK
    assert call(shop, "push", "--select", "crm_people").return_value == ExitCode.OK, (
        "another sync of that run was not pushed yet"
    )

    kept = (shop.folder / "target/run_results.json").read_text(), (shop.folder / "target/manifest.json").read_text()
    shop.table("source", "select * from values (1, 'Ann') as t (id, name)")
    shop.destinations = "plan"
    assert shop.run().success
    shop.destinations = {"crm": {"type": "sqlite", "path": str(shop.folder / "crm.db")}}
    shop._profiles()
    for name, text in zip(("run_results.json", "manifest.json"), kept, strict=True):
        (shop.folder / "target" / name).write_text(text)
    older = call(shop, "push", "--select", "crm_people")
    assert isinstance(older.exception, ReverseEtlError)
    assert shop.dbt("parse").success
    stale = call(shop, "push")
    assert isinstance(stale.exception, ReverseEtlError)
    assert "while manifest.json is of" in str(stale.exception)
    assert len(shop.crm()) == 2


def test_push_carries_out_what_a_run_operation_asked_for(shop: Project) -> None:
    assert call(shop, "push", "--select", "crm_contacts").return_value == ExitCode.OK
    with sqlite3.connect(shop.folder / "crm.db") as crm:
        crm.execute("delete from contacts")
    assert shop.dbt("run-operation", "resync", "--args", "{sync: crm_contacts}").success
    repaired = call(shop, "push")
    assert "SYNC crm_contacts -> crm.contacts" in repaired.output
    assert "crm_people" not in repaired.output, "its run is not the last command, and nobody asked for it"
    assert shop.crm() == [(1, "Ann"), (2, "Bob")]
    assert "Nothing to push." in call(shop, "push").output, "it was asked for once"


def test_status_shows_position_lag_undelivered_rows_and_the_last_run(shop: Project) -> None:
    before = {row["sync"]: row for row in read(call(shop, "status", "--json"))}
    assert (before["crm_contacts"]["position"], before["crm_contacts"]["lag"], before["crm_contacts"]["last_run"]) == (
        0,
        1,
        "never",
    )
    assert call(shop, "push").return_value == ExitCode.OK
    after = read(call(shop, "status", "--json", "--select", "crm_c*"))
    assert [(row["sync"], row["position"], row["lag"], row["undelivered"], row["last_run"]) for row in after] == [
        ("crm_contacts", 1, 0, 0, "succeeded")
    ]
    table = call(shop, "status").output
    assert table.splitlines()[0].split()[:4] == ["sync", "destination", "health", "position"]
    assert (before["crm_contacts"]["health"], after[0]["health"]) == ("never pushed", "ok")


def test_check_reaches_the_destinations_read_only(shop: Project) -> None:
    good = call(shop, "check")
    assert good.return_value == ExitCode.OK, good.output
    assert "2 syncs of target dev: configuration is valid" in good.output
    assert not (shop.folder / "crm.db").exists()
    shop.destinations["crm"]["path"] = str(shop.folder / "nowhere" / "crm.db")
    shop._profiles()
    bad = call(shop, "check", "--json")
    assert bad.return_value == ExitCode.FAILED
    assert "nowhere" in read(bad)[0]["message"]


def test_lines_as_json_name_the_run_and_quiet_leaves_errors_only(shop: Project) -> None:
    assert call(shop, "push", "--quiet", "--select", "crm_people").output == ""
    lines = [json.loads(line) for line in call(shop, "push", "--log-format", "json").stdout.splitlines()]
    (pushed,) = [line for line in lines if line.get("sync") == "crm_contacts"]
    assert pushed["level"] == "info"
    assert (pushed["fence"], pushed["status"], pushed["exit_code"], len(pushed["run_id"])) == (1, "succeeded", 0, 32)
    assert pushed["counts"]["delivered"] == {"insert": 2, "update": 0, "delete": 0}
    assert (
        pushed["invocation_id"]
        == shop.rows("select max(get_json_object(body, '$.invocation_id')) from {s}.reverse_etl_ledger")[0][0]
    )


def test_an_unknown_selector_names_what_can_be_selected(shop: Project) -> None:
    result = call(shop, "plan", "--select", "crm_contcats")
    assert isinstance(result.exception, ReverseEtlError)
    assert "crm_contacts" in str(result.exception)


ANN = "select * from values (1, 'Ann') as t (id, name)"
PUSH = ("push", "--select", "crm_contacts")


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_that_a_guard_blocks_ends_with_3_and_with_the_override_of_its_message_with_0(
    shop: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.sync("crm_contacts", "contacts_changelog", mode="mirror", guards={"max_deletes": "10%"})
    captured(shop, "select * from values (1, 'Ann'), (2, 'Bob') as t (id, name)", monkeypatch)
    assert exit_code(shop, *PUSH) == ExitCode.OK == 0
    captured(shop, ANN, monkeypatch)
    capsys.readouterr()
    assert exit_code(shop, *PUSH) == ExitCode.BLOCKED == 3
    override = "crm_contacts@2:+0~0-1"
    assert f"--override '{override}'" in "".join(capsys.readouterr())
    assert shop.crm() == [(1, "Ann"), (2, "Bob")]
    assert exit_code(shop, *PUSH, "--override", override) == 0
    assert shop.crm() == [(1, "Ann")]


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_beside_one_of_another_machine_ends_with_4_and_sends_nothing(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code(shop, *PUSH) == 0
    ledger = DeltaLedger(shop.spark, f"{shop.schema}.reverse_etl_ledger")
    last = ledger.overview(["crm_contacts"]).newest("crm_contacts")
    assert last
    captured(shop, ANN, monkeypatch)
    lease = datetime.now(timezone.utc) + timedelta(hours=1)
    other = replace(last, fence=last.fence + 1, run_id="other", owner="elsewhere:1", lease_until=lease)
    assert ledger.start(other)
    assert exit_code(shop, *PUSH) == ExitCode.BUSY == 4
    assert shop.crm() == [(1, "Ann"), (2, "Bob")]


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_from_another_changelog_ends_with_5_and_after_a_resync_with_0(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code(shop, *PUSH) == 0
    assert shop.dbt("run-operation", "reset", "--args", "{model: contacts_changelog}").success
    captured(shop, ANN, monkeypatch)
    assert exit_code(shop, *PUSH) == ExitCode.OTHER_CHANGELOG == 5
    assert exit_code(shop, "plan", "--select", "crm_contacts") == 5
    assert shop.crm() == [(1, "Ann"), (2, "Bob")]
    assert shop.dbt("run-operation", "resync", "--args", "{sync: crm_contacts}").success
    captured(shop, ANN, monkeypatch)
    assert exit_code(shop, *PUSH) == 0
