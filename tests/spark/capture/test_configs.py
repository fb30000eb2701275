"""Every dbt config of a model is honoured on a changelog, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dbt.project import Project
from tests.support.dbt.together import Story, outcomes, together

__all__ = ["outcomes"]

QUERY = "select 1 as id, 'a' as name"


def details(project: Project, table: str) -> dict[str, str]:
    return {row.col_name: row.data_type for row in project.rows(f"describe table extended {{s}}.{table}")}


def table_properties(project: Project, table: str) -> dict[str, str]:
    return {row.key: row.value for row in project.rows(f"show tblproperties {{s}}.{table}")}


def test_alias_and_tags_are_honoured(project: Project) -> None:
    project.changelog("things", QUERY, alias="renamed", tags=["nightly"])
    assert project.dbt("run", "--select", "tag:nightly").success
    assert project.spark.catalog.tableExists(f"{project.schema}.renamed")


@pytest.mark.full
@together
def test_location_root_is_honoured(project: Project) -> Story:
    project.changelog("elsewhere", QUERY, location_root=str(project.folder / "lake"))
    yield
    assert (project.folder / "lake/elsewhere/_delta_log").is_dir()


@together
def test_tblproperties_are_honoured_on_a_new_table_and_on_one_that_exists(project: Project) -> Story:
    statistics = {"delta.dataSkippingStatsColumns": "_snapshot_id"}
    project.changelog("with_properties", QUERY, tblproperties={"team": "growth", **statistics})
    yield
    found = table_properties(project, "with_properties")
    assert found["team"] == "growth"
    assert found["delta.dataSkippingStatsColumns"] == "_snapshot_id"
    project.changelog("with_properties", QUERY, tblproperties={"team": "sales"})
    yield
    assert table_properties(project, "with_properties")["team"] == "sales"


@together
def test_persist_docs_documents_table_and_columns_and_alters_only_what_differs(project: Project) -> Story:
    """Also where `file_format` is not set, without which dbt-spark's own macro writes nothing."""

    def documented(**descriptions: str) -> None:
        model = {
            "name": "documented",
            "description": descriptions.pop("of_table"),
            "config": {
                "materialized": "changelog",
                "unique_key": "id",
                "file_format": None,
                "persist_docs": {"relation": True, "columns": True},
            },
            "columns": [{"name": name, "description": text} for name, text in descriptions.items()],
        }
        project.properties("documented", {"models": [model]})

    def comments() -> list[str]:
        found = {row.col_name: row.comment for row in project.rows("describe table {s}.documented")}
        assert "1, 2, 3" in found["_snapshot_id"]
        return [found["name"], found["id"], details(project, "documented")["Comment"]]

    def altered() -> list[int]:
        history = project.rows("describe history {s}.documented")
        return sorted(row.version for row in history if row.operation in ("CHANGE COLUMN", "SET TBLPROPERTIES"))

    long = 'It\'s \\ what "they" are called\nand more ' * 9
    project.changelog("documented", QUERY)
    documented(of_table="Things that change", Name=long, gone="No column", type="No column")
    result = yield
    assert result.statuses["documented"] == "success"
    assert comments() == [long, None, "Things that change"]
    once = altered()
    yield
    assert altered() == once, "what is written already is not written again"
    documented(of_table=long, name=long, id="Its number", _snapshot_id="")
    yield
    assert comments() == [long, "Its number", long]
    assert len(altered()) == len(once) + 2
    yield
    assert len(altered()) == len(once) + 2


@pytest.mark.full
@together
def test_hooks_run_before_and_after_the_capture(project: Project) -> Story:
    project.table("log", "select 'none' as step, cast(0 as bigint) as seen")
    table, log = f"{project.schema}.hooked", f"{project.schema}.log"
    hooks = {
        "pre-hook": f"insert into {log} select 'pre', 0",
        "post-hook": f"insert into {log} select 'post', count(*) from {table}",
    }
    project.changelog("hooked", QUERY, **hooks)
    yield
    assert [tuple(row) for row in project.rows("select * from {s}.log order by step")] == [
        ("none", 0),
        ("post", 2),
        ("pre", 0),
    ]


@together
def test_an_enforced_contract_refuses_a_model_that_breaks_it(project: Project) -> Story:
    def contract(name: str, kind: str) -> None:
        config = {"materialized": "changelog", "unique_key": "id", "contract": {"enforced": True}}
        columns = [{"name": "id", "data_type": "int"}, {"name": "name", "data_type": kind}]
        project.changelog(name, QUERY)
        project.properties(name, {"models": [{"name": name, "config": config, "columns": columns}]})

    contract("contract_broken", "bigint")
    contract("contract_kept", "string")
    result = yield
    assert result.statuses["contract_broken"] == "error"
    assert "contract" in result.messages["contract_broken"].lower()
    assert result.statuses["contract_kept"] == "success"


@together
def test_grants_are_applied_as_for_any_table(project: Project) -> Story:
    """Spark without an authorization service refuses every GRANT: the refusal shows that it was asked for."""
    project.changelog("granted", QUERY, grants={"select": ["analyst"]})
    result = yield
    assert result.statuses["granted"] == "error"
    assert "grant" in result.messages["granted"].lower()


REFUSED: dict[str, dict[str, Any]] = {
    "partition_by": {"partition_by": "name"},
    "clustered_by": {"clustered_by": "name", "buckets": 2},
    "file_format": {"file_format": "parquet"},
    "incremental_strategy": {"incremental_strategy": "append"},
    "on_column_change": {"on_schema_change": "append_new_columns"},
    "options": {"options": {"a": "b"}},
}


@pytest.mark.guarantee("Capture")
@together
def test_every_other_config_is_refused_by_name(project: Project) -> Story:
    for number, config in enumerate(REFUSED.values()):
        project.changelog(f"refused_{number}", QUERY, **config)
    result = yield
    for number, word in enumerate(REFUSED):
        assert result.statuses[f"refused_{number}"] == "error", word
        assert word in result.messages[f"refused_{number}"]
        assert not project.spark.catalog.tableExists(f"{project.schema}.refused_{number}"), word


@pytest.mark.guarantee("Capture")
def test_a_setting_that_there_is_not_is_refused_by_name_before_anything_is_captured(project: Project) -> None:
    for word, settings in {"comparison": {"comparison": "hash"}, "md5": {"compare": "md5"}}.items():
        project.changelog(f"refused_{len(word)}", QUERY, settings=settings)
    result = project.run()
    assert not result.success
    for word in ("comparison", "md5"):
        assert word in result.text
        assert not project.spark.catalog.tableExists(f"{project.schema}.refused_{len(word)}")


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("push", ["on", "off"])
def test_a_former_name_of_a_setting_is_refused_with_the_new_one_with_and_without_a_push(
    project: Project, monkeypatch: pytest.MonkeyPatch, push: str
) -> None:
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", push)
    label = {"by": "name", "drift": "1 hour", "at": "current_timestamp()"}
    project.changelog("things", QUERY, settings={"label": label})
    project.sync("crm_things", "things")
    refused = project.run().text
    assert "label.drift: found" in refused
    assert "grace" in refused
    assert "expected both" not in refused, "one mistake is told once"


@pytest.mark.full
def test_a_changelog_works_where_the_change_feed_of_delta_is_on_by_default(project: Project) -> None:
    name = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"
    project.spark.conf.set(name, "true")
    try:
        project.changelog("things", f"select * from {project.schema}.source")
        for query in ("select id, 'a' as name from range(3)", "select id, 'b' as name from range(1, 4)"):
            project.table("source", query)
            assert project.run().success
        assert table_properties(project, "things")["delta.enableChangeDataFeed"] == "true"
        counted = project.rows(
            "select _change, count(*) as n from {s}.things where _snapshot_id = 2 group by all order by all"
        )
        assert [tuple(row) for row in counted if row[0] != "checkpoint"] == [
            ("delete", 1), ("insert", 1), ("snapshot", 1), ("update_postimage", 2), ("update_preimage", 2),
        ]  # fmt: skip
    finally:
        project.spark.conf.unset(name)


@pytest.mark.guarantee("Configuration")
def test_older_macros_capture_nothing_on_top_of_a_snapshot_of_newer_ones(project: Project) -> None:
    project.changelog("people", "select id from range(3)")
    assert project.run().success
    project.spark.sql(
        f"update {project.schema}.people set _header.package_version = '9.4.1' where _change = 'snapshot'"
    )
    project.changelog("people", "select id from range(4)")
    refused = project.run()
    assert not refused.success
    assert "found a snapshot of the dbt package 9.4.1; expected one that this package knows" in refused.text
    assert "Next: pip install 'dbt-reverse-etl==9.4.1'" in refused.text
    assert project.rows("select max(_snapshot_id) as newest from {s}.people")[0].newest == 1
