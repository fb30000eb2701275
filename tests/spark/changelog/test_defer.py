"""`dbt --defer`: views and tests over changelogs of another target, which dbt puts in the place of those that are not built here."""

from __future__ import annotations

import shutil

import pytest

from tests.support.dbt.project import Project


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_views_and_tests_find_the_key_and_the_live_rows_of_a_changelog_of_another_target(project: Project) -> None:
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    published = {"publish": "plans_on_sale"}
    project.changelog("plans", "select * from values ('pro'), ('gone') as t (plan)", "plan", settings=published)
    project.changelog("people", "select * from values (1, 'pro'), (2, 'gone') as t (id, plan)")
    project.model("live", "select * from {{ reverse_etl.current(ref('people')) }}", {"materialized": "view"})
    relates = {"arguments": {"to": "ref('plans')", "field": "plan"}, "config": {"where": "id > 1"}}
    column = {"name": "plan", "data_tests": [{"reverse_etl.current_relationships": relates}]}
    config = {"materialized": "changelog", "unique_key": "id"}
    project.properties("people", {"models": [{"name": "people", "config": config, "columns": [column]}]})
    assert project.run().success
    project.changelog("plans", "select 'pro' as plan", "plan", settings=published)
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "plans_have_names.sql").write_text("select * from {{ ref('plans') }} where plan = ''")
    assert project.run().success
    [status, *_] = project.dbt("test", "--select", "people").statuses.values()
    assert status == "fail", "its plan was deleted"

    shutil.copytree(project.folder / "target", project.folder / "prod")
    dev = f"{project.schema}_dev"
    project.spark.sql(f"create schema if not exists {dev}")
    project.output["schema"] = dev
    deferred = ("--defer", "--state", str(project.folder / "prod"))
    made = project.dbt("run", "--select", "live", *deferred)
    assert made.success, made.text
    assert sorted(row.id for row in project.rows(f"select id from {dev}.live")) == [1, 2]
    [status, *_] = project.dbt("test", "--select", "people", *deferred).statuses.values()
    assert status == "fail", "the plan that was deleted there is no live row here either"

    def tested(*how: str) -> str:
        result = project.dbt("test", "--select", "plans_have_names", *deferred, *how)
        assert result.success, result.text
        return result.text

    elsewhere = "publish plans: not published, for its tests have read the changelog of another target"
    assert elsewhere in tested(), "there is no such changelog here"
    assert project.dbt("run", "--select", "plans").success
    assert elsewhere in tested("--favor-state"), "the one here was not read"
    assert "publish plans: not published, for 1 of its 2 tests have not run" in tested(), "the one here was read"
    project.spark.sql(f"drop schema {dev} cascade")
