"""`where` in the tests of a changelog, in a project with a `get_where_subquery` of its own, as dbt describes it for placeholders."""

from __future__ import annotations

import pytest

from tests.support.dbt.project import Project

OVERRIDE = """{% macro get_where_subquery(relation) -%}
    {%- set where = config.get('where') -%}
    {%- if not where -%}{% do return(relation) %}{%- endif -%}
    {%- set filtered -%}(select * from
{{ relation }}
where {{ where | replace('__two__', '2') }}) dbt_subquery{%- endset -%}
    {% do return(filtered) %}
{%- endmacro %}"""


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_a_where_goes_through_the_macro_of_the_project_and_applies_to_the_live_rows(project: Project) -> None:
    (project.folder / "macros").mkdir()
    override = project.folder / "macros" / "where.sql"
    override.write_text(OVERRIDE)
    project.changelog("people", f"select * from {project.schema}.source")
    tests = [
        {"reverse_etl.current_not_null": {"name": name, "config": {"where": where}}}
        for name, where in (("below", "id < __two__"), ("from_it_on", "id >= __two__"))
    ]
    config = {"materialized": "changelog", "unique_key": "id"}
    columns = [{"name": "plan", "data_tests": tests}]
    project.properties("people", {"models": [{"name": "people", "config": config, "columns": columns}]})
    for rows in ("(0, null), (1, 'pro'), (2, null)", "(1, 'pro'), (2, null)"):
        project.table("source", f"select * from values {rows} as t (id, plan)")
        assert project.run().success
    assert project.dbt("test", "--select", "people").statuses == {"below": "pass", "from_it_on": "fail"}
    override.write_text("{% macro get_where_subquery(relation) %}{% do return(relation) %}{% endmacro %}")
    assert project.dbt("test", "--select", "people").statuses == {"below": "fail", "from_it_on": "fail"}, (
        "all live rows"
    )

    override.write_text(OVERRIDE.replace("{{ relation }}", "(select 1 as id, 'pro' as plan)"))
    found = project.dbt("test", "--select", "people")
    assert found.statuses == {"below": "error", "from_it_on": "error"}
    assert "get_where_subquery: found no" in found.messages["below"]
