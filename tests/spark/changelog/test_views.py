"""The views of a changelog against a plain Python truth: hundreds of random histories in one Delta table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.histories import COLUMNS, LABELS, SNAPSHOTS, TABLE_TYPE, History, captured_at, header_row
from tests.support.dbt.views import CASES, KEY, SEED, TABLE, assert_shows, histories, query

__all__ = ["histories"]

PAIRS = [(start, end) for end in range(1, SNAPSHOTS + 1) for start in range(end + 1)]


def image_rows(snapshot: int) -> Callable[[History], Iterable[tuple[Any, ...]]]:
    return lambda history: [(*key, *values) for key, values in history.images[snapshot].items()]


@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all columns", "named columns"])
def test_current_is_the_image_after_the_newest_snapshot(
    spark: SparkSession, histories: list[History], columns: list[str] | None
) -> None:
    frame = query(spark, render("current", TABLE, key=KEY, columns=columns))
    assert frame.columns == COLUMNS
    assert_shows(frame, histories, image_rows(SNAPSHOTS))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("snapshot", range(SNAPSHOTS + 1))
def test_as_of_a_snapshot_is_the_image_after_it(spark: SparkSession, histories: list[History], snapshot: int) -> None:
    frame = query(spark, render("as_of", TABLE, snapshot=snapshot, key=KEY))
    assert_shows(frame, histories, image_rows(snapshot), lambda history: history.has_image(snapshot))


@pytest.mark.parametrize("snapshot", range(1, SNAPSHOTS + 1))
@pytest.mark.parametrize(("hours", "shown"), [(0, 0), (0.5, 0), (-0.5, -1)])
def test_as_of_a_time_is_the_last_image_captured_at_or_before_it(
    spark: SparkSession, histories: list[History], snapshot: int, hours: float, shown: int
) -> None:
    time = captured_at(snapshot) + hours * (captured_at(1) - captured_at(0))
    frame = query(spark, render("as_of", TABLE, timestamp=str(time), key=KEY, columns=COLUMNS))
    expected = snapshot + shown
    assert_shows(frame, histories, image_rows(expected), lambda history: history.has_image(expected))


@pytest.mark.parametrize("timestamp", ["2023-12-31 23:59:59", "2023-12-31"])
def test_as_of_a_time_before_the_first_snapshot_is_empty(
    spark: SparkSession, histories: list[History], timestamp: str
) -> None:
    assert query(spark, render("as_of", TABLE, timestamp=timestamp, key=KEY)).count() == 0


def test_as_of_a_text_that_is_no_time_is_an_error_and_no_empty_image(
    spark: SparkSession, histories: list[History]
) -> None:
    with pytest.raises(Exception, match=r"INVALID_TYPED_LITERAL"):
        query(spark, render("as_of", TABLE, timestamp="first of May", key=KEY))


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_net_changes_are_the_difference_of_the_two_images(
    spark: SparkSession, histories: list[History], start: int, end: int
) -> None:
    frame = query(spark, render("net_changes", TABLE, start, end, key=KEY))
    assert frame.columns == ["_change", *COLUMNS]
    assert_shows(
        frame,
        histories,
        lambda history: history.net_changes(start, end),
        lambda history: history.has_net_changes(start, end),
    )


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all columns", "named columns"])
def test_net_changes_go_up_to_the_head_by_default(
    spark: SparkSession, histories: list[History], start: int, columns: list[str] | None
) -> None:
    frame = query(spark, render("net_changes", TABLE, start, key=KEY, columns=columns))
    assert_shows(
        frame,
        histories,
        lambda history: history.net_changes(start, SNAPSHOTS),
        lambda history: history.has_net_changes(start, SNAPSHOTS),
    )


@pytest.mark.parametrize(("start", "end"), [(1, 7), (2, 5), (6, 7), (4, 4), (5, 2)])
def test_except_diff_of_two_images_is_their_net_change(
    spark: SparkSession, histories: list[History], start: int, end: int
) -> None:
    old = render("as_of", TABLE, snapshot=start, key=KEY)
    new = render("as_of", TABLE, snapshot=end, key=KEY)
    frame = query(spark, render("except_diff", new, old, key=KEY, columns=COLUMNS))
    assert frame.columns == ["_change", *COLUMNS]
    assert_shows(
        frame,
        histories,
        lambda history: history.net_changes(start, end),
        lambda history: history.has_image(min(start, end)),
    )


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all columns", "named columns"])
def test_scd2_is_the_intervals_in_which_each_version_held(
    spark: SparkSession, histories: list[History], columns: list[str] | None
) -> None:
    frame = query(spark, render("scd2", TABLE, key=KEY, columns=columns))
    times = ["valid_from_snapshot", "valid_to_snapshot", "valid_from", "valid_to", "is_current"]
    assert frame.columns == [*COLUMNS, *times]
    assert_shows(frame, histories, lambda history: history.scd2())


@pytest.mark.parametrize(("start", "end"), [(0, SNAPSHOTS), (2, 5), (3, None)])
def test_changes_replayed_on_the_older_image_give_the_newer_one(
    spark: SparkSession, histories: list[History], start: int, end: int | None
) -> None:
    frame = query(spark, render("changes", TABLE, start, end)).orderBy("_snapshot_id", "_change")
    assert frame.columns == ["_change", "_snapshot_id", "_captured_at", *COLUMNS]
    images = [dict(history.images[start]) for history in histories]
    for change, snapshot, time, case, part, *values in frame.collect():
        key, image = (case, part), images[case]
        assert start < snapshot <= (end or SNAPSHOTS)
        assert time == captured_at(snapshot)
        if change in ("insert", "update_postimage"):
            assert histories[case].pruned_to or (key in image) == (change == "update_postimage")
            image[key] = tuple(values)
        elif change == "delete":
            assert histories[case].pruned_to or image[key] == tuple(values)
            image.pop(key, None)
        else:
            assert change == "update_preimage"
    assert any(history.pruned_to == 0 for history in histories)
    for image, history in zip(images, histories, strict=True):
        if start >= history.pruned_to:
            assert image == history.images[end or SNAPSHOTS], f"seed {SEED}: {history}"


def test_changes_hold_the_image_before_each_update(spark: SparkSession, histories: list[History]) -> None:
    frame = query(spark, render("changes", TABLE, columns=["case_id", "part", "plan-tier", "order"]))
    before = frame.where("_change = 'update_preimage'").collect()
    assert len(before) == frame.where("_change = 'update_postimage'").count() > CASES
    for _, snapshot, _, case, part, *values in before:
        assert histories[case].images[snapshot - 1][case, part] == tuple(values)


def test_snapshots_are_the_headers_flattened(spark: SparkSession, histories: list[History]) -> None:
    rows = {row.snapshot_id: row for row in query(spark, render("snapshots", TABLE)).collect()}
    assert set(rows) == set(range(1, SNAPSHOTS + 1))
    for snapshot, row in rows.items():
        assert (row.captured_at, row.kind, row.label) == (captured_at(snapshot), "capture", LABELS[snapshot])
        assert (row.inserts, row.updates, row.deletes) == (snapshot * 10, snapshot * 20, snapshot * 30)
        assert (row.live_rows, row.invocation_id, row.target_name) == (snapshot * 100, f"invocation {snapshot}", "dev")
        assert row.is_checkpoint == (snapshot in (1, 4))
    assert [(bad.reason, bad.row_count) for bad in rows[3].quarantined] == [("duplicate_key", 2)]


@pytest.mark.parametrize(
    "relation",
    [
        render("current", TABLE, key=KEY),
        render("as_of", TABLE, snapshot=5, key=KEY),
        render("net_changes", TABLE, 0, 5, key=KEY),
        render("net_changes", TABLE, 2, 5, key=KEY),
        render("scd2", TABLE, key=KEY),
    ],
    ids=["current", "as_of", "net_changes from nothing", "net_changes", "scd2"],
)
def test_a_view_shuffles_once_and_sorts_once(spark: SparkSession, histories: list[History], relation: str) -> None:
    plan = query(spark, relation)._jdf.queryExecution().executedPlan().toString()
    assert len(re.findall(r"Exchange hashpartitioning\(case_id#\d+, part#\d+", plan)) == 1, plan
    assert len(re.findall(r"\bExchange\b", plan)) == 1, plan
    assert len(re.findall(r"\bSort \[", plan)) == 1, plan


def test_a_range_of_snapshot_ids_reads_only_its_files(spark: SparkSession, histories: list[History]) -> None:
    table = "views.one_file_each"
    for snapshot in range(1, SNAPSHOTS + 1):
        rows = [header_row(snapshot), ("insert", snapshot, captured_at(snapshot), 1, None, 0, str(snapshot), None, 1)]
        frame = spark.createDataFrame(rows, TABLE_TYPE).coalesce(1)
        frame.write.format("delta").mode("append").saveAsTable(table)

    def files(relation: str) -> int:
        return len(query(spark, relation).inputFiles())

    assert files(table) == SNAPSHOTS
    assert files(render("as_of", table, snapshot=2, key=KEY)) == 2
    assert files(render("changes", table, 2, 5)) == 3
    assert files(render("net_changes", table, 4, 5, key=KEY)) == 1
    assert files(render("net_changes", table, 0, 5, key=KEY)) == 5


def test_a_view_reads_a_cte_and_another_view(spark: SparkSession, histories: list[History]) -> None:
    inner = render("as_of", "renamed", snapshot=SNAPSHOTS, key=KEY, columns=COLUMNS)
    outer = render("except_diff", inner, render("current", TABLE, key=KEY), key=KEY, columns=COLUMNS)
    assert spark.sql(f"with renamed as (select * from {TABLE}) select * from {outer}").count() == 0


def test_a_value_with_quotes_stays_a_value(spark: SparkSession, histories: list[History]) -> None:
    label = "' or true or '\\"
    assert query(spark, render("as_of", TABLE, label=label, key=KEY)).count() == 0


@pytest.mark.parametrize("given", [3, "3"])
def test_a_snapshot_id_may_come_from_a_variable(given: int | str) -> None:
    assert render("as_of", "t", snapshot=given, key="id") == render("as_of", "t", snapshot=3, key=["id"])


def test_without_a_key_nothing_is_rendered_outside_dbt() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("current", "t")
