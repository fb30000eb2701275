"""A model that adds up the changes since its own newest snapshot: before anything is built, with --empty, and after a reset."""

from __future__ import annotations

import pytest

from tests.support.dbt.project import Project

COUNTS = """
{% set position = reverse_etl.newest_snapshot(this) if is_incremental() else 0 %}
{% set head = reverse_etl.newest_snapshot(ref('people')) %}
select _change, id, {{ head }} as _snapshot_id from {{ reverse_etl.net_changes(ref('people'), position, head) }}
"""


@pytest.fixture
def shop(project: Project) -> Project:
    project.changelog("people", f"select * from {project.schema}.source")
    config = {"materialized": "incremental", "incremental_strategy": "append", "file_format": "delta"}
    project.model("added", COUNTS, config)
    return project


def build(shop: Project, rows: int, *arguments: str) -> list[tuple[int, int]]:
    """What the model has afterwards."""
    shop.table("source", f"select id from range({rows})")
    result = shop.dbt("run", "--select", "people", "added", *arguments)
    assert result.success, result.text
    return sorted((row.id, row._snapshot_id) for row in shop.rows("select * from {s}.added"))


def test_a_model_over_the_newest_snapshot_compiles_before_anything_is_built_takes_no_row_with_empty_and_stops_after_a_reset(
    shop: Project,
) -> None:
    for command in (["compile"], ["docs", "generate"]):
        result = shop.dbt(*command, "--select", "added")
        assert result.success, result.text
    assert build(shop, 1) == [(0, 1)]
    assert build(shop, 2, "--empty") == [(0, 1)]
    assert build(shop, 2) == [(0, 1), (1, 2)]
    assert shop.dbt("run-operation", "reset", "--args", "{model: people}").success
    stopped = shop.dbt("run", "--select", "people", "added")
    assert stopped.statuses["added"] == "error"
    assert "from_snapshot: found 2, later than to_snapshot 1" in stopped.text
    assert build(shop, 2, "--full-refresh") == [(0, 1), (1, 1)]
