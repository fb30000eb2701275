"""Two targets of one project that keep one ledger: each is pushed by its own tests and requests."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests.support.dbt.project import Project

# The ledger of all targets in one schema, as a `generate_schema_name` that ignores the target gives it.
SCHEMAS = """{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ custom_schema_name | trim if custom_schema_name else target.schema }}
{%- endmacro %}"""
SHOP = "select id, plan from {{ target.schema }}.source"


class Targets:
    """The same project in the schema of each target, with a destination for each."""

    def __init__(self, project: Project) -> None:
        self._project, self._made = project, {}
        (project.folder / "macros").mkdir()
        (project.folder / "macros" / "schemas.sql").write_text(SCHEMAS)
        plans = {"reverse_etl.current_accepted_values": {"arguments": {"values": ["pro"]}}}
        column = {"name": "plan", "data_tests": [plans]}
        config = {"materialized": "changelog", "unique_key": "id"}
        project.changelog("people", SHOP)
        project.properties("people", {"models": [{"name": "people", "config": config, "columns": [column]}]})
        project.sync("crm_people", "people", object="people", mode="mirror")
        project.dbt_project(models={"+file_format": "delta", "reverse_etl": {"+schema": project.schema}})

    def use(self, name: str, *plans: str) -> Project:
        """The project at this target, whose source has a row for each plan."""
        project, schema = self._project, f"{self._project.schema}_{name}"
        project.spark.sql(f"create schema if not exists {schema}")
        rows = ", ".join(f"({number}, '{plan}')" for number, plan in enumerate(plans))
        project.spark.sql(
            f"create or replace table {schema}.source using delta as select * from values {rows} as t (id, plan)"
        )
        project.output["schema"] = schema
        project.destinations["crm"] = {"type": "sqlite", "path": str(project.folder / f"{name}.db")}
        return project


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_no_test_and_no_request_of_one_target_counts_for_another_over_the_same_ledger(project: Project) -> None:
    def build(name: str, *plans: str) -> Any:
        return targets.use(name, *plans).dbt("build", "--exclude", "package:reverse_etl")

    targets = Targets(project)
    assert build("prod", "pro", "pro").sync("crm_people") == "+2 ~0 -0"
    assert build("prod", "pro", "trial").sync("crm_people") == "ERROR blocked"
    assert build("dev", "pro").sync("crm_people") == "+1 ~0 -0"
    again = targets.use("prod", "pro", "trial").run()
    assert again.sync("crm_people") == "ERROR blocked", "the test passed at another target"
    assert build("prod", "pro", "pro").success

    assert targets.use("dev", "pro").dbt("run-operation", "forget", "--args", "{sync: crm_people}").success
    assert build("prod", "pro", "pro", "pro").sync("crm_people") == "+1 ~0 -0", "no first load"
    assert targets.use("dev", "pro").run().sync("crm_people") == "+1 ~0 -0", "a first load"


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_tests_over_a_shared_ledger_judge_the_changelog_of_their_own_target_and_the_newest_object_of_a_sync(
    project: Project,
) -> None:
    def judged(name: str, *plans: str) -> dict[str, str]:
        return targets.use(name, *plans).dbt("test", "--select", "test_type:singular").statuses

    targets = Targets(project)
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "late.sql").write_text("{{ reverse_etl.late_syncs(max_hours=0) }}")
    (project.folder / "tests" / "left.sql").write_text("{{ reverse_etl.undelivered_syncs() }}")
    assert targets.use("prod", "pro", "pro").dbt("run").sync("crm_people") == "+2 ~0 -0"
    with sqlite3.connect(project.folder / "dev.db") as crm:
        crm.execute("create table people (id integer primary key, plan text check (plan <> 'trial'))")
    assert not targets.use("dev", "pro", "trial").run().success, "a row is refused"
    assert judged("dev", "pro", "trial") == {"late": "pass", "left": "fail"}
    assert judged("prod", "pro", "pro") == {"late": "pass", "left": "pass"}

    project.sync("crm_people", "people", object="others", mode="mirror")
    assert targets.use("dev", "pro", "trial").run().success
    assert judged("dev", "pro", "trial") == {"late": "pass", "left": "pass"}


@pytest.mark.full
@pytest.mark.guarantee("What people look at")
def test_what_was_delivered_from_a_changelog_is_shown_though_another_target_was_pushed_since(project: Project) -> None:
    targets = Targets(project)
    project.model("held", "select * from {{ reverse_etl.delivered(ref('people'), 'crm_people') }}")
    assert targets.use("prod", "pro", "pro").dbt("run").success
    assert targets.use("dev", "pro").dbt("run").success
    for name, number in (("prod", 2), ("dev", 1)):
        plans = ["pro"] * number
        assert targets.use(name, *plans).dbt("run", "--select", "held").success
        held = project.spark.sql(f"select id from {project.schema}_{name}.held where is_held").collect()
        assert sorted(row.id for row in held) == [*range(number)]
