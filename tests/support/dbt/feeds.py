"""What the tests of feeds share."""

from __future__ import annotations

import json
from typing import Any

from tests.support.dbt.project import Project

FEED = {"strategy": "feed", "operation": "_op", "sequence": "_sequence"}


def literal(value: Any) -> str:
    """A value as an argument in a model."""
    return json.dumps(value)


def positions(project: Project, name: str) -> dict[str, str]:
    """Those of the newest header."""
    (row,) = project.rows(
        f"select max_by(_header.positions, _snapshot_id) from {{s}}.{name} where _change = 'snapshot'"
    )
    return dict(row[0])


def assert_nothing_left(project: Project, changelog: str) -> None:
    """No table of its captures, and no temporary view."""
    names = [row.tableName for row in project.rows("show tables in {s}")]
    of_dbt = f"{changelog}__dbt_tmp"  # a view of an incremental model of that name, which the session has kept
    assert not [name for name in names if name.startswith(f"{changelog}__") and name != of_dbt], names
