"""The view `changes` over a changelog with pruned snapshots."""

from __future__ import annotations

import duckdb
import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.wide.tables import on_duckdb

ROWS = "(1, 'pruned', null), (2, 'snapshot', null), (2, 'update_postimage', 7), (2, 'checkpoint', 7), (3, 'snapshot', null), (3, 'insert', 8)"


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        ({"from_snapshot": 0}, None),
        ({"to_snapshot": 2}, None),
        ({"from_snapshot": 0, "to_snapshot": 3}, None),
        ({"from_snapshot": 1}, [7, 8]),
        ({"from_snapshot": 1, "to_snapshot": 2}, [7]),
        ({}, [7, 8]),
    ],
    ids=str,
)
def test_changes_of_a_range_with_a_pruned_snapshot_are_an_error_and_without_a_range_those_that_are_kept(
    bounds: dict[str, int], shown: list[int] | None
) -> None:
    sql = f"select id from {on_duckdb(render('changes', 'log', columns=['id'], **bounds))} order by id"
    with duckdb.connect() as database:
        database.execute(
            f"create table log as select *, null as _captured_at from (values {ROWS}) as t (_snapshot_id, _change, id)"
        )
        if shown is None:
            with pytest.raises(duckdb.Error, match="snapshot 1 was pruned"):
                database.execute(sql)
        else:
            assert [row[0] for row in database.execute(sql).fetchall()] == shown
