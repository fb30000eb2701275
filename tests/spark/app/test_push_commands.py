"""dbt commands that push nothing, push late, or say what is wrong: one project from its first command to its first green push."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

import dbt_reverse_etl
from tests.support.dbt.project import Project, Result

# None of them runs a model in full.
COMMANDS = (
    ["docs", "generate"],
    ["show", "--inline", "select 1"],
    ["run", "--empty", "--select", "contacts_changelog"],
    ["run", "--sample", "1 day", "--select", "contacts_changelog"],
    ["test", "--select", "contacts_changelog"],
    ["seed"],
)
MIRROR = {"mode": "mirror", "fields": {"id": "external_id", "name": "name"}}


@dataclass
class Told:
    """Each command's result, and what was there after it."""

    project: Project
    results: dict[str, Result] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, *command: str) -> None:
        self.results[name] = self.project.dbt(*command) if command else self.project.run()
        table = f"{self.project.schema}.contacts_changelog"
        self.seen[name] = {
            "sent": (self.project.folder / "crm.db").is_file(),
            "captured": self.project.spark.catalog.tableExists(table) and self.project.spark.table(table).count(),
        }


def made(project: Project) -> Project:
    project.table("source", "select * from values (1, 'Ann'), (2, 'Bob'), (3, 'Cem') as t (id, name)")
    project.changelog("contacts_changelog", f"select id, name from {project.schema}.source")
    project.sync("crm_contacts", "contacts_changelog", **MIRROR)
    return project


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    project = made(Project(tmp_path_factory.mktemp("commands") / "shop", spark, "commands_without_a_push"))
    told = Told(project)
    wrong = {"second": {"password": "x1canary"}, "third": {"destination": "nowhere"}}
    project.sync("crm_contacts", "contacts_changelog", mode="mirrored", guards={"max_deletes": 0.1})
    for name, settings in wrong.items():
        project.sync(name, "contacts_changelog", **settings)
    told.run("wrong")
    for name in wrong:
        (project.folder / f"models/exposure_{name}.yml").unlink()
    project.sync("crm_contacts", "contacts_changelog", **MIRROR)
    for command in COMMANDS:
        told.run(" ".join(command), *command)
    told.run("no artifacts", "run", "--no-write-json", "--select", "contacts_changelog")
    told.run("exposure without artifacts", "build", "--no-write-json", "--select", "exposure:crm_contacts")
    with pytest.MonkeyPatch.context() as switched:
        switched.setenv("DBT_REVERSE_ETL_PUSH", "off")
        told.run("off without artifacts", "run", "--no-write-json", "--select", "contacts_changelog")
    sqlite, project.destinations = project.destinations, "plan"
    told.run("planned")
    project.destinations = {}
    told.run("missing")
    project.destinations = sqlite
    (project.folder / "crm.db").mkdir()
    told.run("failed")
    told.seen["failed"]["run results"] = json.loads((project.folder / "target/run_results.json").read_text())
    (project.folder / "crm.db").rmdir()
    exposure = project.folder / "models/exposure_crm_contacts.yml"
    settings = exposure.read_text()
    project.sync("crm_contacts", "contacts_changelog", **MIRROR, where="id = 1")
    project.model("mistyped", "select * from {{ ref('nowhere') }}", {"materialized": "table"})
    told.run("retried before it could be read", "retry")
    for suffix in ("sql", "yml"):
        (project.folder / f"models/mistyped.{suffix}").unlink()
    exposure.write_text(settings)
    told.run("retried", "retry")
    told.run("retried twice", "retry")
    with pytest.MonkeyPatch.context() as missing:
        missing.setattr(dbt_reverse_etl, "plugins", [], raising=False)
        told.run("unheard")
        missing.setenv("DBT_REVERSE_ETL_PUSH", "off")
        told.run("pushed elsewhere")
    return told


@pytest.mark.guarantee("Configuration")
def test_configuration_errors_come_all_at_once_before_anything_is_captured(told: Told) -> None:
    result = told.results["wrong"]
    assert not result.success
    for word in ("mirrored", "max_deletes", "nowhere", "password"):
        assert word in result.text
    assert "x1canary" not in result.text
    assert told.seen["wrong"] == {"sent": False, "captured": False}, "there is no table"


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("command", [" ".join(command) for command in COMMANDS])
def test_nothing_is_pushed_by_a_command_that_runs_no_model_in_full(told: Told, command: str) -> None:
    result = told.results[command]
    assert result.success, result.text
    assert not result.pushed()
    assert not told.seen[command]["sent"]
    assert not told.seen[command]["captured"], "no snapshot is captured, either"


@pytest.mark.full
def test_nothing_is_pushed_by_a_command_that_only_reads_the_project(project: Project) -> None:
    made(project)
    for command in ("compile", "parse", "list"):
        result = project.dbt(command)
        assert result.success, (command, result.text)
        assert not result.pushed(), command
    assert not (project.folder / "crm.db").exists()


@pytest.mark.guarantee("dbt and its commands")
def test_without_artifacts_nothing_is_pushed_and_the_run_is_red(told: Told) -> None:
    result = told.results["no artifacts"]
    assert not result.success
    assert "found --no-write-json" in result.text
    assert not told.seen["no artifacts"]["sent"]
    alone = told.results["exposure without artifacts"]
    assert not alone.success
    assert "nothing was pushed for crm_contacts" in alone.text
    off = told.results["off without artifacts"]
    assert off.success, off.text


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_a_program_that_gives_dbt_its_manifest_pushes_with_each_command_and_stops_before_a_capture(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(project)
    assert project.dbt("parse").success
    parsed = dbtRunner().invoke(["parse", "--project-dir", str(project.folder), "--profiles-dir", str(project.folder)])
    selected = ("run", "--select", "contacts_changelog")
    first = project.dbt_given(parsed.result, *selected)
    assert first.success, first.text
    assert first.sync("crm_contacts") == "+3 ~0 -0"
    project.table("source", "select * from values (1, 'Ann'), (2, 'Bob'), (3, 'Cem'), (4, 'Dee') as t (id, name)")
    second = project.dbt_given(parsed.result, *selected)
    assert second.success, second.text
    assert second.sync("crm_contacts") == "+1 ~0 -0"
    monkeypatch.setenv("DBT_REVERSE_ETL_OVERRIDE", "nobody@1:+0~0-0")
    refused = project.dbt_given(parsed.result, *selected)
    assert not refused.success
    assert "nothing was captured or sent" in refused.text


@pytest.mark.guarantee("Configuration")
def test_a_target_that_is_not_configured_is_an_error_and_plan_is_said(told: Told) -> None:
    planned, missing = told.results["planned"], told.results["missing"]
    assert planned.success, planned.text
    assert "nothing was sent for crm_contacts" in planned.text
    assert not told.seen["planned"]["sent"]
    assert not missing.success
    assert "crm" in missing.text


@pytest.mark.guarantee("dbt and its commands")
def test_a_failed_push_makes_dbt_exit_1_and_retry_pushes_while_the_result_of_dbt_stays(told: Told) -> None:
    failed, retried = told.results["failed"], told.results["retried"]
    assert not failed.success
    assert failed.sync("crm_contacts") == "ERROR failed"
    lines = [number for number, line in enumerate(failed.lines) if "destination crm cannot be reached now" in line]
    assert len(lines) == 1
    assert lines < [number for number, line in enumerate(failed.lines) if " SYNC " in line], "long before its push"
    assert any("Done. PASS=" in line and "ERROR=0" in line for line in failed.lines), (
        "the result of dbt is shown as it was"
    )
    assert told.seen["failed"]["run results"]["results"]
    assert retried.success, retried.text
    assert retried.sync("crm_contacts") == "+3 ~0 -0"
    assert told.project.crm() == [(1, "Ann"), (2, "Bob"), (3, "Cem")]


@pytest.mark.guarantee("dbt and its commands")
def test_a_retry_that_cannot_read_the_project_pushes_nothing_by_what_was_read_before(told: Told) -> None:
    result = told.results["retried before it could be read"]
    assert "nowhere" in result.text
    assert not result.pushed()
    assert not told.seen["retried before it could be read"]["sent"]


@pytest.mark.guarantee("dbt and its commands")
def test_a_retry_where_nothing_is_left_to_retry_ends_with_the_words_of_dbt_alone(told: Told) -> None:
    again = told.results["retried twice"]
    assert "Could not find previous run" in again.text
    assert not again.pushed()
    assert "dbt-reverse-etl: " not in again.text


@pytest.mark.guarantee("dbt and its commands")
def test_where_the_runner_is_missing_a_captured_changelog_warns_unless_another_process_pushes(told: Told) -> None:
    missing, elsewhere = told.results["unheard"], told.results["pushed elsewhere"]
    assert missing.success, missing.text
    assert not missing.pushed()
    assert "found no runner in this dbt, so nobody pushes crm_contacts" in missing.text
    for result in (elsewhere, told.results["retried"]):
        assert "found no runner" not in result.text
