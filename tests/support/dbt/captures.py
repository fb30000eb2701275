"""Many captures of a changelog in one dbt run, each after statements of its own: without the time that dbt takes around each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.support.dbt.project import Project

CAPTURES = """
{% materialization captures, adapter='spark' %}
    {%- for statements in config.get('meta').steps -%}
        {%- for statement in statements -%}{%- do run_query(statement) -%}{%- endfor -%}
        {%- do reverse_etl.materialization_changelog_spark() -%}
        {%- do adapter.cache_added(this.incorporate(type='table')) -%}
        {%- do log('captured ' ~ model.name ~ ': ' ~ load_result('main').response, info=true) -%}
    {%- endfor -%}
    {{ return({'relations': [this.incorporate(type='table')]}) }}
{% endmaterialization %}
"""


class Captures:
    """A project whose changelogs are captured again and again."""

    def __init__(self, project: Project) -> None:
        self.project = project
        (project.folder / "macros").mkdir()
        (project.folder / "macros" / "captures.sql").write_text(CAPTURES)

    def changelog(self, name: str, sql: str, steps: Sequence[Sequence[str]], settings: dict[str, Any]) -> None:
        """A changelog with key `id`, captured after the statements of each step."""
        meta = {"reverse_etl": settings, "steps": [list(statements) for statements in steps]}
        self.project.model(name, sql, {"materialized": "captures", "unique_key": "id", "meta": meta})

    def run(self) -> dict[str, list[str]]:
        """What each capture says, by changelog."""
        result = self.project.run()
        assert result.success, result.text
        said: dict[str, list[str]] = {}
        for line in result.lines:
            if told := re.match(r"captured (\w+): (.*)", line):
                said.setdefault(told[1], []).append(told[2])
        return said

    def images(self, name: str, columns: Sequence[str], said: Sequence[str]) -> list[dict[int, tuple[Any, ...]]]:
        """The rows that the changes lead to, by id, after each capture; apart from the views of the package."""
        query = f"select _snapshot_id, _change, id, {', '.join(columns)} from {{s}}.{name} where _change in ('insert', 'update_postimage', 'delete')"
        changes = sorted(self.project.rows(query), key=lambda row: (row[0], row[1] != "delete"))
        found = []
        for message in said:
            (snapshot,) = re.findall(r", snapshot (\d+)", message)
            image: dict[int, tuple[Any, ...]] = {}
            for number, change, key, *values in changes:
                if number <= int(snapshot):
                    image.pop(key, None)
                    if change != "delete":
                        image[key] = tuple(values)
            found.append(image)
        return found
