"""The command line: the same syncs, from artifacts, for people and for machines; one project that is pushed by commands alone."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from tests.support.dbt.command import call, exit_code, read
from tests.support.dbt.project import Project

pytestmark = pytest.mark.full

ANN_AND_BOB = "select * from values (1, 'Ann'), (2, 'Bob') as t (id, name)"
ANN = "select * from values (1, 'Ann') as t (id, name)"
BOB = "select * from values (2, 'Bob') as t (id, name)"
BOTH = [(1, "Ann"), (2, "Bob")]
PUSH = ("push", "--select", "crm_contacts")
PUSH_PEOPLE = ("push", "--select", "crm_people")


@dataclass
class Shop:
    """One project and what each command said, by the name of its step."""

    project: Project
    said: dict[str, Result] = field(default_factory=dict)
    codes: dict[str, tuple[int, str]] = field(default_factory=dict)  # as a shell sees it, with what was shown
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)  # of contacts, after the step

    def call(self, step: str, *arguments: str) -> None:
        self.said[step] = call(self.project, *arguments)
        self._look(step)

    def exit_code(self, step: str, *arguments: str) -> None:
        shown = io.StringIO()
        with redirect_stdout(shown), redirect_stderr(shown):
            code = exit_code(self.project, *arguments)
        self.codes[step] = code, shown.getvalue()
        self._look(step)

    def captured(self, query: str) -> None:
        """A run of dbt that leaves the push to the command."""
        self.project.table("source", query)
        with pytest.MonkeyPatch.context() as off:
            off.setenv("DBT_REVERSE_ETL_PUSH", "off")
            result = self.project.run()
        assert result.success, result.text
        assert not result.pushed(), "off is off"

    def operation(self, name: str, **arguments: str) -> None:
        assert self.project.dbt("run-operation", name, "--args", json.dumps(arguments)).success

    def _look(self, step: str) -> None:
        made = (self.project.folder / "crm.db").exists()
        self.rows[step] = self.project.crm() if made else []


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    project = Project(tmp_path_factory.mktemp("cli") / "shop", spark, "command_line")
    shop, here = Shop(project), Path.cwd()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["dbt-reverse-etl"])
        try:
            before_a_push(shop)
            pushes(shop)
            refusals(shop)
        finally:
            os.chdir(here)  # commands change it
    return shop


def before_a_push(shop: Shop) -> None:
    project = shop.project
    project.changelog("contacts_changelog", f"select id, name from {project.schema}.source")
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", tags=["crm"])
    project.sync("crm_people", "contacts_changelog", mode="upsert", object="people")
    shop.captured(ANN_AND_BOB)
    shop.call("plan", "plan", "--json")
    shop.call("plan again", "plan", "--json")
    shop.call("plan of a tag", "plan", "--select", "tag:crm")
    shop.call("plan for a review", "plan", "--markdown", "--select", "crm_contacts")
    shop.call("no such sync", "plan", "--select", "crm_contcats")
    shop.call("status before", "status", "--json")
    shop.call("good check", "check")
    assert not (project.folder / "crm.db").exists(), "none of these makes it"
    project.destinations["crm"]["path"] = str(project.folder / "nowhere" / "crm.db")
    project._profiles()
    shop.call("bad check", "check", "--json")
    project.destinations["crm"]["path"] = str(project.folder / "crm.db")
    project._profiles()


def pushes(shop: Shop) -> None:
    project = shop.project
    shop.call("first push", *PUSH, "--log-format", "json")
    shop.call("pushed before", *PUSH)
    shop.call("if due", *PUSH, "--if-due")
    shop.exit_code("one row", "test", "crm_people", "--key", '{"id": 2}')
    shop.rows["people after one row"] = project.crm("select * from people order by 1")
    shop.exit_code("the same row", "test", "crm_people", "--key", '{"id": 2}')
    shop.exit_code("no key", "test", "crm_people", "--key", '{"name": "Bob"}')
    shop.call("status after", "status", "--json", "--select", "crm_c*")
    shop.call("status table", "status")
    with sqlite3.connect(project.folder / "crm.db") as crm:
        crm.execute("delete from contacts")
    shop.operation("resync", sync="crm_contacts")
    shop.call("asked for", "push")
    shop.call("asked for once", "push")


def refusals(shop: Shop) -> None:
    project = shop.project
    project.sync("crm_contacts", "contacts_changelog", mode="mirror", tags=["crm"], guards={"max_deletes": "10%"})
    shop.captured(ANN)
    shop.exit_code("blocked", *PUSH)
    shop.call("plan of a blocked one", "plan", "--json", "--select", "crm_contacts")
    shop.exit_code("overridden", *PUSH, "--override", "crm_contacts@2:+0~0-1")
    shop.call("quiet", *PUSH_PEOPLE, "--quiet")

    kept = {name: (project.folder / "target" / name).read_text() for name in ("run_results.json", "manifest.json")}
    project.destinations, sqlite = "plan", project.destinations
    shop.captured(numbered(0))
    project.destinations = sqlite
    project._profiles()
    for name, text in kept.items():
        (project.folder / "target" / name).write_text(text)
    shop.call("older", *PUSH_PEOPLE)
    whatever_ran_last(shop)

    shop.captured(numbered(5))
    ledger = DeltaLedger(project.spark, f"{project.schema}.reverse_etl_ledger")
    (last,) = ledger.overview(["crm_people"]).started.values()
    lease = datetime.now(timezone.utc) + timedelta(minutes=10)
    other = replace(last, fence=last.fence + 1, run_id="other", owner="elsewhere:1", lease_until=lease)
    assert ledger.start(other)
    shop.exit_code("busy", *PUSH_PEOPLE)
    shop.rows["people beside the other"] = project.crm("select * from people order by 1")

    project.sync("crm_contacts", "contacts_changelog", mode="mirror", tags=["crm"])
    shop.operation("reset", model="contacts_changelog")
    shop.captured(BOB)
    shop.exit_code("other changelog", *PUSH)
    shop.exit_code("plan of another changelog", "plan", "--select", "crm_contacts")
    shop.operation("resync", sync="crm_contacts")
    shop.captured(BOB)
    shop.exit_code("resynced", *PUSH)
    reconcile = ("reconcile", "--select", "crm_contacts")
    shop.exit_code("leftovers without a repair", *reconcile, "--leftovers", "delete")
    shop.exit_code("compared", *reconcile)
    shop.exit_code("repaired", *reconcile, "--repair")
    shop.exit_code("leftovers deleted", *reconcile, "--repair", "--leftovers", "delete")
    shop.exit_code("compared again", *reconcile)


def whatever_ran_last(shop: Shop) -> None:
    """A push after each dbt command that leaves no results of a run, or none at all."""
    project = shop.project
    lasts = {"after docs": ["docs", "generate"], "after tests": ["test"], "after a parse": ["parse"]}
    for number, (step, command) in enumerate(lasts.items(), 1):
        shop.captured(numbered(number))
        project.dbt(*command)  # that a test fails for want of a model that was not run does not matter here
        shop.call(step, "push")
    artifacts = [project.folder / "target" / name for name in ("run_results.json", "manifest.json")]
    project.destinations, sqlite = "plan", project.destinations
    shop.captured(numbered(9))
    overtaken = [file.read_bytes() for file in artifacts]
    shop.captured(numbered(4))
    project.destinations = sqlite
    project._profiles()
    for file, content in zip(artifacts, overtaken, strict=True):
        file.write_bytes(content)
    shop.call("overtaken", *PUSH, "--if-due", "--json")
    artifacts[0].unlink()
    shop.call("without results", "push")
    artifacts[0].write_bytes(overtaken[0])
    shop.call("overtaken and delivered", *PUSH, "--if-due")
    artifacts[0].unlink()
    shop.call("pushed all", "push")
    shop.captured(ANN)
    shop.call("as before", "push")


def numbered(number: int) -> str:
    return f"select * from values (1, 'Ann {number}') as t (id, name)"


def test_plan_shows_what_a_push_would_send_and_sends_and_moves_nothing(shop: Shop) -> None:
    for step in ("plan", "plan again"):
        plan = {report["sync"]: report for report in read(shop.said[step])}
        assert plan["crm_contacts"]["planned"] == {"insert": 2, "update": 0, "delete": 0}
        assert plan["crm_contacts"]["sample"] == [["insert", '{"id":1}'], ["insert", '{"id":2}']]
        assert plan["crm_contacts"]["position"] == 0
        assert plan["crm_contacts"]["health"] == "never pushed"
    shown = shop.said["plan of a tag"].output
    header, row, *_ = shown.splitlines()
    assert header.split() == ["sync", "destination", "insert", "update", "delete", "position", "head"]
    assert row.split() == ["crm_contacts", "crm.contacts", "2", "0", "0", "0", "1"]
    assert 'insert  {"id":1}' in shown
    assert "crm_people" not in shown
    review = shop.said["plan for a review"].output
    assert "insert 2" in review
    assert "Ann" not in review


@pytest.mark.guarantee("dbt and its commands")
def test_push_delivers_once_whatever_dbt_command_wrote_the_artifacts_and_refuses_those_that_a_later_run_has_overtaken(
    shop: Shop,
) -> None:
    first = shop.said["first push"]
    assert first.exception is None, first.exception
    assert first.return_value == ExitCode.OK
    assert shop.rows["first push"] == BOTH
    for step in ("pushed before", "if due", "pushed all"):
        assert shop.said[step].return_value == ExitCode.OK
        assert shop.rows[step] == shop.rows["first push"] or step == "pushed all"
    assert "Nothing to push." in shop.said["pushed before"].output
    assert shop.said["quiet"].return_value == ExitCode.OK, "another sync of that run was not pushed yet"
    older = shop.said["older"]
    assert isinstance(older.exception, ReverseEtlError)
    assert "its changelog is at" in str(older.exception)
    for step in ("after docs", "after tests", "after a parse", "without results"):
        assert "SYNC crm_contacts -> crm.contacts" in shop.said[step].output, step
        assert shop.said[step].return_value == ExitCode.OK, step
    assert shop.rows["after docs"] == [(1, "Ann 1")]
    assert shop.rows["without results"] == [(1, "Ann 4")]
    assert "Nothing to push." in shop.said["pushed all"].output
    assert shop.said["overtaken"].return_value == ExitCode.OVERTAKEN
    assert [(one["sync"], one["status"]) for one in read(shop.said["overtaken"])] == [("crm_contacts", "overtaken")]
    assert shop.rows["overtaken"] == [(1, "Ann 3")], "no test of these results has seen the newer rows"
    assert shop.said["overtaken and delivered"].return_value == ExitCode.OK


def test_push_carries_out_what_a_run_operation_asked_for(shop: Shop) -> None:
    repaired = shop.said["asked for"]
    assert "SYNC crm_contacts -> crm.contacts" in repaired.output
    assert "SYNC crm_people -> crm.people" in repaired.output, "it is behind"
    assert shop.rows["asked for"] == BOTH
    assert "Nothing to push." in shop.said["asked for once"].output, "it was asked for once"


@pytest.mark.guarantee("dbt and its commands")
def test_one_row_is_sent_on_purpose_and_no_other(shop: Shop) -> None:
    code, shown = shop.codes["one row"]
    assert code == ExitCode.OK, shown
    assert "SYNC crm_people -> crm.people" in shown
    assert "[+1 ~0 -0 in" in shown
    assert shop.rows["people after one row"] == [(2, "Bob")]
    code, shown = shop.codes["the same row"]
    assert code == ExitCode.FAILED
    assert "a key of which nothing is pending" in shown
    assert shop.codes["no key"][0] == ExitCode.USAGE


def test_status_shows_position_lag_undelivered_rows_and_the_last_run(shop: Shop) -> None:
    before = {row["sync"]: row for row in read(shop.said["status before"])}["crm_contacts"]
    assert (before["position"], before["lag"], before["last_run"]) == (0, 1, "never")
    after = read(shop.said["status after"])
    assert [(row["sync"], row["position"], row["lag"], row["undelivered"], row["last_run"]) for row in after] == [
        ("crm_contacts", 1, 0, 0, "succeeded")
    ]
    heads = shop.said["status table"].output.splitlines()[0].split()
    assert heads[:4] == ["sync", "destination", "health", "position"]
    assert (before["health"], after[0]["health"]) == ("never pushed", "ok")


def test_check_reaches_the_destinations_read_only(shop: Shop) -> None:
    good, bad = shop.said["good check"], shop.said["bad check"]
    assert good.return_value == ExitCode.OK, good.output
    assert "2 syncs of target dev: configuration is valid" in good.output
    assert bad.return_value == ExitCode.FAILED
    assert "nowhere" in read(bad)["destinations"][0]["message"]


def test_lines_as_json_name_the_run_and_quiet_leaves_errors_only(shop: Shop) -> None:
    assert shop.said["quiet"].output == ""
    lines = [json.loads(line) for line in shop.said["first push"].stdout.splitlines()]
    # A slow push shows its progress, too.
    (pushed,) = [line for line in lines if line.get("sync") == "crm_contacts" and "counts" in line]
    assert pushed["level"] == "info"
    assert (pushed["fence"], pushed["status"], pushed["exit_code"], len(pushed["run_id"])) == (1, "succeeded", 0, 32)
    assert pushed["counts"]["delivered"] == {"insert": 2, "update": 0, "delete": 0}
    told = "select get_json_object(body, '$.invocation_id') from {s}.reverse_etl_ledger"
    first = f"{told} where sync = 'crm_contacts' and fact = 'run_started' order by fence limit 1"
    assert pushed["invocation_id"] == shop.project.rows(first)[0][0]


def test_an_unknown_selector_names_what_can_be_selected(shop: Shop) -> None:
    result = shop.said["no such sync"]
    assert isinstance(result.exception, ReverseEtlError)
    assert "crm_contacts" in str(result.exception)


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_that_a_guard_blocks_ends_with_3_and_with_the_override_of_its_message_with_0(shop: Shop) -> None:
    code, shown = shop.codes["blocked"]
    assert code == ExitCode.BLOCKED == 3
    assert "--override 'crm_contacts@2:+0~0-1'" in shown
    assert shop.rows["blocked"] == BOTH
    (planned,) = read(shop.said["plan of a blocked one"])
    assert (planned["health"], planned["reason"].partition(":")[0]) == ("failing", "blocked")
    assert planned["message"].startswith("a push would be blocked: 1 deletes, of 2 rows (max_deletes: ")
    assert planned["message"].endswith("--override 'crm_contacts@2:+0~0-1'")
    assert shop.codes["overridden"][0] == ExitCode.OK == 0
    assert shop.rows["overridden"] == [(1, "Ann")]


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_beside_one_of_another_machine_ends_with_4_and_sends_nothing(shop: Shop) -> None:
    assert shop.codes["busy"][0] == ExitCode.BUSY == 4
    assert shop.rows["people beside the other"] == BOTH


@pytest.mark.guarantee("dbt and its commands")
def test_a_push_from_another_changelog_ends_with_5_until_somebody_has_looked_for_what_is_left(shop: Shop) -> None:
    assert shop.codes["other changelog"][0] == ExitCode.OTHER_CHANGELOG == 5
    assert shop.codes["plan of another changelog"][0] == 5
    assert shop.rows["plan of another changelog"] == [(1, "Ann")]
    assert shop.codes["resynced"][0] == 5, "it is sent, and Ann may be ours or somebody else's"
    assert shop.rows["resynced"] == BOTH
    assert shop.codes["leftovers without a repair"][0] == ExitCode.USAGE == 2
    assert shop.codes["compared"][0] == shop.codes["repaired"][0] == 5
    assert shop.rows["repaired"] == BOTH
    assert shop.codes["leftovers deleted"][0] == shop.codes["compared again"][0] == 0
    assert shop.rows["leftovers deleted"] == [(2, "Bob")]
