"""`check` of real projects: dbt parses them as they are now, and whatever could not be tried is said."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode
from dbt_reverse_etl.cli import cli
from tests.support.dbt.artifacts import Project, block, exposure

CHANGELOG = "{{ config(materialized='changelog', unique_key='id') }} select 1 as id"
PROFILE = {"target": "dev", "outputs": {"dev": {"type": "spark", "method": "session", "schema": "s", "host": "NA"}}}


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """One changelog, and no sync yet; dbt has not run."""
    made, here = Project({}, {"contacts_changelog": CHANGELOG}), Path.cwd()
    crm = {"type": "sqlite", "path": str(made.path / "crm.db")}
    outputs = {"dev": {"crm": crm}}
    (made.path / "profiles.yml").write_text(
        yaml.safe_dump({"my_project": PROFILE, "dbt_reverse_etl": {"outputs": outputs}})
    )
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    yield made
    os.chdir(here)


def write(project: Project, **syncs: dict[str, Any]) -> None:
    exposures = [
        exposure(name, "contacts_changelog", meta=block(destination="crm", **one)) for name, one in syncs.items()
    ]
    (project.path / "models" / "exposures.yml").write_text(yaml.safe_dump({"exposures": exposures}))


def check(project: Project, *arguments: str, command: str = "check") -> Result:
    place = ["--project-dir", str(project.path), "--profiles-dir", str(project.path)]
    return CliRunner().invoke(cli, [command, *place, *arguments], standalone_mode=False)


@pytest.mark.guarantee("Configuration")
def test_check_sees_the_project_as_it_is_now_and_writes_no_artifact(project: Project) -> None:
    write(project, people={"object": "people"})
    first = check(project)
    assert first.exception is None, first.exception
    assert "1 sync of target dev: configuration is valid" in first.stdout
    assert "people -> crm.people: " in first.stdout
    assert "not tried: Spark, the ledger" in first.stdout
    assert not (project.path / "target" / "manifest.json").exists(), "a push would take it for that of the last run"
    assert not (project.path / "crm.db").exists()


def test_run_refuses_a_selector_of_no_sync_of_the_project_as_it_is_now_before_dbt_runs(project: Project) -> None:
    write(project, people={"object": "people"})
    error = check(project, "--select", "peple", "--", "build", command="run").exception
    assert isinstance(error, ConfigurationError)
    assert "expected a sync or a tag: people. Next: did you mean 'people'?" in str(error)
    assert not (project.path / "target" / "run_results.json").exists()

    write(project, people={"object": "people"}, orders={"object": "orders", "mode": "replace"})
    wrong = check(project).exception
    assert isinstance(wrong, ConfigurationError)
    assert "orders.config.meta.reverse_etl.mode" in str(wrong), "it was added a moment ago"


@pytest.mark.guarantee("Configuration")
def test_a_project_that_cannot_be_parsed_is_said_and_no_older_manifest_takes_its_place(project: Project) -> None:
    write(project, people={"object": "people"})
    project.dbt("parse")
    (project.path / "models" / "broken.sql").write_text("select {{ ref('nowhere') }}")
    refused = check(project).exception
    assert isinstance(refused, ConfigurationError)
    assert refused.exit_code is ExitCode.USAGE
    assert str(refused).startswith("dbt parse: found Compilation Error Model 'model.shop.broken'")
    assert "nowhere" in str(refused)
    assert "\n" not in str(refused)


def test_what_dbt_needs_to_parse_stands_after_two_dashes(project: Project) -> None:
    write(project, people={"object": "people"})
    (project.path / "models" / "contacts_changelog.sql").write_text(CHANGELOG.replace("'id'", "var('key', none)"))
    assert "contacts_changelog.unique_key: found nothing" in str(check(project).exception)
    assert check(project, "--", "--vars", "{key: id}").return_value == ExitCode.OK


@pytest.mark.guarantee("Configuration")
def test_where_no_dbt_can_be_called_the_last_manifest_is_checked_and_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, people={"object": "people"})
    project.dbt("parse")
    monkeypatch.setitem(sys.modules, "dbt.cli.main", None)
    file = (project.path / "target" / "manifest.json").resolve()
    assert f"{file} was checked, which may be older than the project" in check(project).stdout
    assert json.loads(check(project, "--json").stdout)["manifest"] == str(file)
