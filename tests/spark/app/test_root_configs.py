"""What is at the top of `models:` in the user's dbt_project.yml reaches the models of the package, above their own config."""

from __future__ import annotations

import re

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project

OURS = ("run", "--select", "package:reverse_etl")


@pytest.fixture(scope="module")
def project(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Without a changelog or a sync, so that the plugin has nothing to check: dbt is alone."""
    return Project(tmp_path_factory.mktemp("root_configs") / "shop", spark, "root_configs")


@pytest.mark.guarantee("Configuration")
def test_no_materialization_of_the_user_s_project_replaces_the_ledger(project: Project) -> None:
    assert project.dbt(*OURS).success
    project.rows("insert into {s}.reverse_etl_ledger (sync_id, fact) values ('kept', 'run_started')")
    for materialized in ("table", "view", "incremental"):
        top = {"+file_format": "delta", "+materialized": materialized}
        project.dbt_project(models=top)
        result = project.dbt(*OURS, "--full-refresh")
        assert not result.success
        found = result.messages["reverse_etl_ledger"]
        assert f"found materialized: {materialized} for reverse_etl_ledger; expected ledger" in found
        assert [row.sync_id for row in project.rows("select sync_id from {s}.reverse_etl_ledger")] == ["kept"]
        advised = re.search(r"below models: (\{.*\})", found)
        assert advised, found
    project.dbt_project(models={**top, **yaml.safe_load(advised[1])})
    assert project.dbt(*OURS).success
    assert [row.sync_id for row in project.rows("select sync_id from {s}.reverse_etl_runs")] == ["kept"]
    project.dbt_project(
        models={"+materialized": "table", "reverse_etl": {"reverse_etl_ledger": {"+materialized": "ledger"}}}
    )
    result = project.dbt(*OURS)
    assert result.statuses["reverse_etl_ledger"] == "success"
    assert "found materialized: table for reverse_etl_runs; expected ledger_view" in result.messages["reverse_etl_runs"]


@pytest.mark.full
def test_persist_docs_of_the_user_s_project_documents_the_ledger_and_its_views(project: Project) -> None:
    project.rows("drop table if exists {s}.reverse_etl_ledger")
    plain = {"+file_format": "delta"}
    project.dbt_project(models=plain)
    assert project.dbt(*OURS).success, "made without comments"
    project.dbt_project(models={**plain, "+persist_docs": {"relation": True, "columns": True}})
    project.rows("drop table {s}.reverse_etl_ledger")
    project.rows(
        "create view {s}.reverse_etl_ledger as select 1 as id"
    )  # as `+materialized: view` left it before it was refused
    result = project.dbt(*OURS)
    assert result.success, result.text
    for model, column, comment in (
        ("reverse_etl_ledger", "fence", "Number of the run; the newest run holds the sync"),
        ("reverse_etl_runs", "planned_deletes", "Deletes: pending rows, counted independently of what was sent"),
        (
            "reverse_etl_undelivered",
            "next_attempt_at",
            "Runs before this time skip the row; NULL: the next run sends it",
        ),
    ):
        described = {row.col_name: row for row in project.rows(f"describe table extended {{s}}.{model}")}
        assert described[column].comment == comment
        assert described["Comment"].data_type, model
    history = "describe history {s}.reverse_etl_ledger"
    commits = len(project.rows(history))
    assert project.dbt(*OURS).success
    assert len(project.rows(history)) == commits, "a run writes nothing into a ledger that is there"
