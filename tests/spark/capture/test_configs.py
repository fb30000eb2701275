"""Every dbt config of a model is honoured on a changelog, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.dbt.project import Project

QUERY = "select 1 as id, 'a' as name"


def properties(project: Project, **config: Any) -> None:
    project.changelog("things", QUERY, **config)


def details(project: Project, table: str = "things") -> dict[str, str]:
    return {row.col_name: row.data_type for row in project.rows(f"describe table extended {{s}}.{table}")}


def table_properties(project: Project) -> dict[str, str]:
    return {row.key: row.value for row in project.rows("show tblproperties {s}.things")}


def test_alias_and_tags_are_honoured(project: Project) -> None:
    properties(project, alias="renamed", tags=["nightly"])
    assert project.dbt("run", "--select", "tag:nightly").success
    assert project.spark.catalog.tableExists(f"{project.schema}.renamed")


def test_location_root_is_honoured(project: Project, tmp_path: Path) -> None:
    properties(project, location_root=str(tmp_path / "lake"))
    assert project.run().success
    assert (tmp_path / "lake/things/_delta_log").is_dir()


def test_tblproperties_are_honoured_on_a_new_table_and_on_one_that_exists(project: Project) -> None:
    properties(project, tblproperties={"team": "growth", "delta.dataSkippingStatsColumns": "_snapshot_id"})
    assert project.run().success
    assert table_properties(project)["team"] == "growth"
    assert table_properties(project)["delta.dataSkippingStatsColumns"] == "_snapshot_id"
    properties(project, tblproperties={"team": "sales"})
    assert project.run().success
    assert table_properties(project)["team"] == "sales"


def test_persist_docs_documents_the_table_the_columns_of_the_model_and_ours(project: Project) -> None:
    model = {
        "name": "things",
        "description": "Things that change",
        "config": {
            "materialized": "changelog",
            "unique_key": "id",
            "persist_docs": {"relation": True, "columns": True},
        },
        "columns": [{"name": "name", "description": "What it is called"}],
    }
    project.changelog("things", QUERY)
    project.properties("things", {"models": [model]})
    assert project.run().success
    comments = {row.col_name: row.comment for row in project.rows("describe table {s}.things")}
    assert comments["name"] == "What it is called"
    assert "1, 2, 3" in comments["_snapshot_id"]
    assert details(project)["Comment"] == "Things that change"


def test_hooks_run_before_and_after_the_capture(project: Project) -> None:
    project.table("log", "select 'none' as step, cast(0 as bigint) as seen")
    table, log = f"{project.schema}.things", f"{project.schema}.log"
    properties(
        project,
        **{
            "pre-hook": f"insert into {log} select 'pre', 0",
            "post-hook": f"insert into {log} select 'post', count(*) from {table}",
        },
    )
    assert project.run().success
    assert [tuple(row) for row in project.rows("select * from {s}.log order by step")] == [
        ("none", 0),
        ("post", 2),
        ("pre", 0),
    ]


def test_an_enforced_contract_refuses_a_model_that_breaks_it(project: Project) -> None:
    def contract(kind: str) -> dict[str, Any]:
        config = {"materialized": "changelog", "unique_key": "id", "contract": {"enforced": True}}
        return {
            "models": [
                {
                    "name": "things",
                    "config": config,
                    "columns": [{"name": "id", "data_type": "int"}, {"name": "name", "data_type": kind}],
                }
            ]
        }

    project.changelog("things", QUERY)
    project.properties("things", contract("bigint"))
    broken = project.run()
    assert not broken.success
    assert "contract" in broken.text.lower()
    project.properties("things", contract("string"))
    assert project.run().success, "the contract holds"


def test_grants_are_applied_as_for_any_table(project: Project) -> None:
    """Spark without an authorization service refuses every GRANT: the refusal shows that it was asked for."""
    properties(project, grants={"select": ["analyst"]})
    result = project.run()
    assert not result.success
    assert "grant" in result.text.lower()


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"partition_by": "name"}, "partition_by"),
        ({"clustered_by": "name", "buckets": 2}, "clustered_by"),
        ({"file_format": "parquet"}, "file_format"),
        ({"incremental_strategy": "append"}, "incremental_strategy"),
        ({"on_schema_change": "append_new_columns"}, "on_column_change"),
        ({"options": {"a": "b"}}, "options"),
        ({"settings": {"comparison": "hash"}}, "comparison"),
        ({"settings": {"compare": "md5"}}, "md5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_other_config_is_refused_by_name(project: Project, config: dict[str, Any], word: str) -> None:
    properties(project, **config)
    result = project.run()
    assert not result.success
    assert word in result.text
    assert not project.spark.catalog.tableExists(f"{project.schema}.things")


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("push", ["on", "off"])
def test_a_former_name_of_a_setting_is_refused_with_the_new_one_with_and_without_a_push(
    project: Project, monkeypatch: pytest.MonkeyPatch, push: str
) -> None:
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", push)
    project.sync("crm_things", "things")
    properties(project, settings={"label": {"by": "name", "drift": "1 hour", "at": "current_timestamp()"}})
    refused = project.run().text
    assert "label.drift: found" in refused
    assert "grace" in refused
    assert "expected both" not in refused, "one mistake is told once"


def test_a_changelog_works_where_the_change_feed_of_delta_is_on_by_default(project: Project) -> None:
    name = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"
    project.spark.conf.set(name, "true")
    try:
        project.changelog("things", f"select * from {project.schema}.source")
        for query in ("select id, 'a' as name from range(3)", "select id, 'b' as name from range(1, 4)"):
            project.table("source", query)
            assert project.run().success
        assert table_properties(project)["delta.enableChangeDataFeed"] == "true"
        counted = project.rows(
            "select _change, count(*) as n from {s}.things where _snapshot_id = 2 group by all order by all"
        )
        assert [tuple(row) for row in counted if row[0] != "checkpoint"] == [
            ("delete", 1), ("insert", 1), ("snapshot", 1), ("update_postimage", 2), ("update_preimage", 2),
        ]  # fmt: skip
    finally:
        project.spark.conf.unset(name)
