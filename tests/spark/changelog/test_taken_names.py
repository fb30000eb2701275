"""Columns of a model whose names `scd2` gives, too, in a project that dbt runs: before the first capture, with --empty, and as a sub-query."""

from __future__ import annotations

import pytest

from tests.support.dbt.project import Project


@pytest.mark.full
def test_a_column_that_scd2_adds_is_refused_by_dbt_and_left_out_with_columns(project: Project) -> None:
    view = "select * from {{ reverse_etl.scd2(ref('prices')COLUMNS) }}"
    project.changelog("prices", "select 1 as id, current_date() as valid_from")
    project.model("versions", view.replace("COLUMNS", ""))
    assert project.dbt("compile", "--select", "versions").success, "there is no table whose columns could be read"
    for arguments in ([], ["--empty"]):
        result = project.dbt("run", "--select", "prices", "versions", *arguments)
        assert not result.success
        assert "reverse_etl.scd2: found a column valid_from beside that of the view" in result.text
    project.model("versions", view.replace("COLUMNS", ", columns=['id']"))
    assert project.dbt("run", "--select", "versions").success
    assert [row.is_current for row in project.rows("select * from {s}.versions")] == [True]
