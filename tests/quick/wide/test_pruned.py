"""A prune between the look at a changelog and its reading: an error, or the full image in its place, and never a gap."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.wide.tables import on_duckdb

ROWS = """(1, 'insert', 7, 1), (2, 'insert', 7, 2), (3, 'insert', 8, 3), (3, 'checkpoint', 7, 1), (3, 'checkpoint', 7, 2), (3, 'checkpoint', 8, 3)"""


@pytest.fixture
def changelog() -> Iterator[duckdb.DuckDBPyConnection]:
    """Three snapshots, the newest with a full image; the second is pruned."""
    with duckdb.connect() as database:
        database.execute(
            f"create table log as select * from (values {ROWS}) as t (_snapshot_id, _change, customer, id)"
        )
        database.execute("update log set _change = 'pruned', customer = null, id = null where _snapshot_id = 2")
        yield database


@pytest.mark.guarantee("Capture")
def test_a_reverse_index_reads_no_range_with_a_pruned_snapshot_but_the_full_image_after_it(
    changelog: duckdb.DuckDBPyConnection,
) -> None:
    def pairs(after: int, *, images: bool) -> list[tuple[int, ...]]:
        rows = render("_reverse_index_rows", "log", ["id"], ["customer"], "uuid", after, images)
        return sorted(changelog.execute(on_duckdb(f"select customer, id from ({rows})")).fetchall())

    assert pairs(2, images=False) == [(8, 3)]
    with pytest.raises(duckdb.Error, match="snapshot 2 was pruned"):
        pairs(1, images=False)
    assert pairs(1, images=True) == [(7, 1), (7, 2), (8, 3)]


@pytest.mark.guarantee("Capture")
def test_affected_keys_read_no_range_with_a_pruned_snapshot(changelog: duckdb.DuckDBPyConnection) -> None:
    def keys(after: int) -> list[tuple[int, ...]]:
        rows = render("_images_between", "log", after, 3)
        return changelog.execute(on_duckdb(f"select distinct id from {rows}")).fetchall()

    assert keys(2) == [(3,)]
    with pytest.raises(duckdb.Error, match="snapshot 2 was pruned"):
        keys(1)
