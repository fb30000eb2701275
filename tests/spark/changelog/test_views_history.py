"""The views that keep history: versions, previous values, every step, and business labels with late corrections."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import pytest
from pyspark.sql import Row, SparkSession

from dbt_reverse_etl.base.sql import render
from tests.support.dbt import labels as business
from tests.support.dbt.histories import COLUMNS, SNAPSHOTS, TABLE_TYPE, History, captured_at, carried, header_row
from tests.support.dbt.views import CASES, KEY, SEED, TABLE, assert_shows, by_case, histories, query
from tests.support.effort import scaled

__all__ = ["histories"]  # a fixture

TIMES = ["valid_from_snapshot", "valid_to_snapshot", "valid_from", "valid_to", "is_current"]
ALL_LABELS = ["", "day 1", "day 2", "day 9"]
# Of each snapshot, the first entry before any: in order; late corrections; labels that begin late and go back, some without.
LABELLINGS: list[list[str | None]] = [
    [None, "day 1", "day 1", "day 2", None, "day 3", "day 3", "day 4"],
    [None, "day 1", "day 2", "day 1", "day 3", "day 2", "day 3", "day 4"],
    [None, None, None, "day 3", "day 2", None, "day 1", "day 2"],
]


@pytest.mark.parametrize("tracked", ["plan-tier", ["order"], ["plan-tier", "order"]])
def test_scd2_opens_an_interval_only_where_a_tracked_column_changes(
    spark: SparkSession, histories: list[History], tracked: str | list[str]
) -> None:
    frame = query(spark, render("scd2", TABLE, key=KEY, tracked=tracked))
    assert frame.columns == [*COLUMNS, *TIMES]
    places = [COLUMNS.index(name) - len(KEY) for name in ([tracked] if isinstance(tracked, str) else tracked)]
    assert_shows(frame, histories, lambda history: history.scd2(lambda values: [values[place] for place in places]))


def test_the_open_intervals_of_scd2_are_the_current_rows_whatever_is_tracked(
    spark: SparkSession, histories: list[History]
) -> None:
    frame = (
        query(spark, render("scd2", TABLE, key=KEY, tracked="order"))
        .where("is_current")
        .select(*KEY, "plan-tier", "order")
    )
    assert_shows(frame, histories, lambda history: [(*key, *values) for key, values in history.images[-1].items()])


def labelled(spark: SparkSession, labels: list[str | None]) -> str:
    """The histories with other labels in their headers."""
    headers = spark.createDataFrame([header_row(snapshot, labels) for snapshot in range(1, SNAPSHOTS + 1)], TABLE_TYPE)
    spark.table(TABLE).where("_change <> 'snapshot'").union(headers).createOrReplaceTempView("labelled")
    return "labelled"


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("labels", LABELLINGS, ids=["in order", "corrections", "backwards"])
def test_as_of_a_label_is_the_image_as_corrected(
    spark: SparkSession, histories: list[History], labels: list[str | None]
) -> None:
    relation = labelled(spark, labels)
    known = carried(labels)
    for label in ALL_LABELS:
        frame = query(spark, render("as_of", relation, label=label, key=KEY, columns=COLUMNS))
        assert_shows(frame, histories, *of_label(known, label))


def of_label(
    known: list[str], label: str
) -> tuple[Callable[[History], Iterable[tuple[object, ...]]], Callable[[History], bool]]:
    """The image of a label, and whether pruning left it."""

    def image(history: History) -> Iterable[tuple[object, ...]]:
        return [(*key, *values) for key, values in history.as_of_label(known, label).items()]

    return image, lambda history: history.has_label(known, label)


@pytest.mark.parametrize("labels", LABELLINGS, ids=["in order", "corrections", "backwards"])
@pytest.mark.parametrize("tracked", [None, "order"])
def test_the_label_intervals_of_scd2_hold_the_image_of_each_label_and_no_other_row_of_one_that_was_pruned(
    spark: SparkSession, histories: list[History], labels: list[str | None], tracked: str | None
) -> None:
    frame = query(spark, render("scd2", labelled(spark, labels), key=KEY, tracked=tracked, labels=True))
    assert frame.columns == [*COLUMNS, *TIMES[:-1], "valid_from_label", "valid_to_label", "is_current"]
    pruned = 0
    known = carried(labels)
    by_case_id: dict[int, list[Row]] = defaultdict(list)
    for row in frame.collect():
        by_case_id[row.case_id].append(row)
    for label, (case, history) in itertools.product(ALL_LABELS, enumerate(histories)):
        held = Counter(
            (row.case_id, row.part, *([] if tracked else [row["plan-tier"]]), row.order)
            for row in by_case_id[case]
            if row.valid_from_label <= label and (row.valid_to_label is None or label < row.valid_to_label)
        )
        image = history.as_of_label(known, label)
        expected = Counter((*key, *(values[1:] if tracked else values)) for key, values in image.items())
        told = f"seed {SEED}, label {label}, case {case}: {history}"
        if history.has_label(known, label):
            assert held == expected, told
        else:
            pruned += 1
            assert held <= expected, f"a row under a label for which it never held, {told}"
    assert pruned


ROLLED_BACK = 12
LABEL_HEADER = "struct<label string, kind string, base bigint, undone array<struct<first bigint, last bigint>>>"


@pytest.fixture(scope="module")
def rolled_back(spark: SparkSession) -> list[tuple[business.Labelled, str]]:
    """Random histories with rollbacks and a prune, each with its relation."""
    rng = random.Random(SEED)
    found = [business.random_history(rng, 9, 24) for _ in range(scaled(ROLLED_BACK))]
    rows = []
    for case, history in enumerate(found):
        rows += [(case, change, n, captured_at(n), 0, None, *row) for change, n, *row in history.change_rows()]
        for n, snapshot in enumerate(history.snapshots[1:], 1):
            undone = [(number, number) for number in sorted(snapshot.undone)]
            header = (snapshot.label, snapshot.kind, n if snapshot.full else 0, undone)
            rows.append(
                (case, "snapshot" if n >= history.kept_from else "pruned", n, captured_at(n), 0, header, None, None)
            )
    types = f"_case int, _change string, _snapshot_id bigint, _captured_at timestamp, _row_hash bigint, _header {LABEL_HEADER}, id int, v string"
    frame = spark.createDataFrame(rows, types).cache()
    for case in range(len(found)):
        frame.where(f"_case = {case}").drop("_case").createOrReplaceTempView(f"rolled_back_{case}")
    return [(history, f"rolled_back_{case}") for case, history in enumerate(found)]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_after_rollbacks_a_label_shows_what_it_is_now_and_no_row_that_was_undone(
    spark: SparkSession, rolled_back: list[tuple[business.Labelled, str]]
) -> None:
    undone = refused = 0
    for case, (history, relation) in enumerate(rolled_back):
        told = f"seed {SEED}, case {case}: {history}"
        for label in (business.BEFORE, *business.LABELS, business.AFTER):
            frame = query(spark, render("as_of", relation, label=label, key="id"))
            if history.is_kept(label):
                assert {row.id: row.v for row in frame.collect()} == history.as_of(label), f"{label}, {told}"
                undone += bool(history.head.undone)
            else:
                refused += 1
                with pytest.raises(Exception, match="was pruned"):
                    frame.collect()
        assert history.as_of(business.AFTER) == history.head.image, told
    assert undone > ROLLED_BACK
    assert refused


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_after_rollbacks_the_label_intervals_of_scd2_hold_the_image_of_each_label_and_no_other_row_of_one_that_was_pruned(
    spark: SparkSession, rolled_back: list[tuple[business.Labelled, str]]
) -> None:
    for case, (history, relation) in enumerate(rolled_back):
        for tracked in (None, "v"):
            rows = query(spark, render("scd2", relation, key="id", tracked=tracked, labels=True)).collect()
            for label in (business.BEFORE, *business.LABELS, business.AFTER):
                held = [
                    (row.id, row.v)
                    for row in rows
                    if row.valid_from_label is not None
                    and row.valid_from_label <= label
                    and (row.valid_to_label is None or label < row.valid_to_label)
                ]
                told = f"seed {SEED}, case {case}, {label}, tracked {tracked}: {history}"
                expected = Counter([*history.as_of(label).items()])
                assert Counter(held) == expected if history.is_kept(label) else Counter(held) <= expected, told


def test_as_known_then_and_as_corrected_differ_after_a_late_correction(spark: SparkSession) -> None:
    changes = [
        (1, "day 1", "insert", "monday", None),
        (2, "day 2", "update_postimage", "tuesday", None),
        (2, "day 2", "insert", None, "tuesday"),
        (3, "day 1", "insert", None, "late for monday"),
    ]
    rows = [
        f"select '{change}' as _change, {snapshot}L as _snapshot_id, named_struct('label', null) as _header, 'a' as id, '{a}' as n"
        for snapshot, _, change, a, _ in changes
        if a
    ]
    rows += [
        f"select '{change}', {snapshot}L, null, '{b.split()[0]}', '{b}'" for snapshot, _, change, _, b in changes if b
    ]
    rows += [
        f"select 'snapshot', {snapshot}L, named_struct('label', '{label}'), null, null"
        for snapshot, label in {(snapshot, label) for snapshot, label, *_ in changes}
    ]
    relation = f"({' union all '.join(rows)})"

    def shown(**when: object) -> list[tuple[object, ...]]:
        found = query(spark, render("as_of", relation, key="id", columns=["id", "n"], **when))
        return sorted(tuple(row) for row in found.collect())

    assert shown(snapshot=1) == [("a", "monday")]
    assert shown(label="day 1") == [("a", "monday"), ("late", "late for monday")]
    assert shown(label="day 2") == [("a", "tuesday"), ("late", "late for monday"), ("tuesday", "tuesday")]


@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all columns", "named columns"])
def test_scd3_is_the_current_row_with_the_value_before_the_last_change(
    spark: SparkSession, histories: list[History], columns: list[str] | None
) -> None:
    frame = query(spark, render("scd3", TABLE, ["plan-tier", "order"], key=KEY, columns=columns))
    added = ["previous_plan-tier", "plan-tier_since", "previous_order", "order_since"]
    assert frame.columns == [*COLUMNS, *added]
    assert_shows(frame, histories, lambda history: history.scd3())


def test_scd3_after_a_prune_knows_the_time_of_what_is_kept_and_no_other(spark: SparkSession) -> None:
    rows = [
        ("checkpoint", 5, "imaged", 1),
        ("update_preimage", 5, "updated", 1),
        ("update_postimage", 5, "updated", 2),
        ("checkpoint", 5, "updated", 2),
        ("insert", 5, "inserted", 1),
        ("checkpoint", 5, "inserted", 1),
        ("checkpoint", 5, "changed", 1),
        ("update_preimage", 6, "changed", 1),
        ("update_postimage", 6, "changed", 2),
    ]
    values = ", ".join(f"('{change}', {n}L, timestamp '2024-01-0{n}', '{key}', {v})" for change, n, key, v in rows)
    relation = f"(select * from values {values} as t (_change, _snapshot_id, _captured_at, id, v))"
    frame = query(spark, render("scd3", relation, "v", key="id", columns=["id", "v"]))
    assert {row.id: (row.previous_v, row.v_since and row.v_since.day) for row in frame.collect()} == {
        "imaged": (None, None),
        "updated": (None, None),
        "inserted": (None, 5),
        "changed": (1, 6),
    }


@pytest.mark.parametrize(("start", "end"), [(0, SNAPSHOTS), (2, 5), (3, None)])
def test_each_change_shows_what_was_before_and_what_is_after_side_by_side(
    spark: SparkSession, histories: list[History], start: int, end: int | None
) -> None:
    frame = query(spark, render("changes_side_by_side", TABLE, start, end, key=KEY))
    assert frame.columns == ["_change", "_snapshot_id", "_captured_at", "before", "after"]
    found: dict[int, Counter[tuple[object, ...]]] = {}
    for change, snapshot, time, before, after in frame.collect():
        row = (change, snapshot, time, before and tuple(before), after and tuple(after))
        found.setdefault((after or before).case_id, Counter())[row] += 1
    for case, history in enumerate(histories):
        if start >= history.pruned_to:
            expected = Counter(history.side_by_side(start, end or SNAPSHOTS))
            assert found.get(case, Counter()) == expected, f"seed {SEED}, case {case}: {history}"


@pytest.mark.guarantee("Capture", "Every step between two snapshots is kept, not only the net change")
def test_a_value_that_goes_from_1_to_2_to_3_shows_every_step(spark: SparkSession, histories: list[History]) -> None:
    """Within the life of a key, each change begins with the image that the change before it left."""
    changes = query(spark, render("changes_side_by_side", TABLE, key=KEY)).orderBy("_snapshot_id").collect()
    steps: dict[object, list[tuple[object, object]]] = {}
    for row in changes:
        image = row.after or row.before
        if not histories[image.case_id].pruned_to:
            steps.setdefault((image.case_id, image.part), []).append((row.before, row.after))
    assert max(map(len, steps.values())) > SNAPSHOTS // 2
    for lived in steps.values():
        assert lived[0][0] is None
        assert all(left == found for (_, left), (found, _) in itertools.pairwise(lived))


@pytest.mark.parametrize(("start", "end"), [(0, 4), (4, SNAPSHOTS), (2, 5), (0, None), (5, None), (3, 3)])
def test_signed_changes_lead_from_the_sums_of_one_image_to_those_of_another(
    spark: SparkSession, histories: list[History], start: int, end: int | None
) -> None:
    signed = render("signed_changes", TABLE, start, end, key=KEY)
    frame = spark.sql(
        f"select case_id, `plan-tier`, sum(_sign) as n, count_if(`order` is not null and _sign > 0) - count_if(`order` is not null and _sign < 0) as k, "
        f"coalesce(sum(_sign * `order`), 0) as total from {signed} group by 1, 2"
    )
    found = by_case(frame)
    compared = 0
    for case, history in enumerate(histories):
        if not history.has_net_changes(start, end or SNAPSHOTS):
            continue
        compared += 1
        sums: dict[object, list[int]] = {}
        for sign, image in ((-1, history.images[start]), (1, history.images[end or SNAPSHOTS])):
            for plan, order in image.values():
                group = sums.setdefault(plan, [0, 0, 0])
                group[0] += sign
                group[1] += sign * (order is not None)
                group[2] += sign * (order or 0)
        moved = {row[1:] for row in found.get(case, Counter()) if any(row[2:])}
        assert moved == {(plan, *group) for plan, group in sums.items() if any(group)}, f"seed {SEED}, case {case}"
    assert compared > CASES // 10


@pytest.mark.parametrize(
    ("relation", "sorts"),
    [
        (render("scd2", TABLE, key=KEY, tracked="order"), 1),
        (render("scd2", TABLE, key=KEY, labels=True), 3),
        (render("scd2", TABLE, key=KEY, labels=True, tracked="order"), 3),
        (render("scd3", TABLE, ["order", "plan-tier"], key=KEY), 1),
        (render("changes_side_by_side", TABLE, key=KEY), 1),
        (render("as_of", TABLE, label="day 2", key=KEY), 1),
    ],
    ids=["scd2 tracked", "scd2 labels", "scd2 both", "scd3", "changes_side_by_side", "as_of a label"],
)
def test_a_view_of_history_shuffles_the_rows_once(
    spark: SparkSession, histories: list[History], relation: str, sorts: int
) -> None:
    plan = query(spark, relation)._jdf.queryExecution().executedPlan().toString()
    assert len(re.findall(r"Exchange hashpartitioning\(", plan)) == 1, plan
    assert len(re.findall(r"\bSort \[case_id", plan)) == sorts, plan
