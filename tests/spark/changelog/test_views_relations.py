"""The views over any relations: a fact at its time, and what differs between two relations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.histories import SNAPSHOTS, History, captured_at
from tests.support.dbt.views import CASES, KEY, SEED, TABLE, histories, query

__all__ = ["histories"]  # a fixture


@pytest.fixture(scope="module")
def facts(spark: SparkSession, histories: list[History]) -> list[tuple[Any, ...]]:
    """Facts before, at, between and after the captures; some without a key or a time, some of no known key."""
    rng = random.Random(SEED)
    found: list[tuple[Any, ...]] = []
    for number in range(4000):
        at = captured_at(rng.randrange(SNAPSHOTS + 1)) + timedelta(minutes=rng.choice([-1, 0, 0, 30]))
        case = rng.choice([rng.randrange(CASES), rng.randrange(CASES), None, -1])
        found.append(
            (number, case, rng.choice(["a", "b", "A", "", None]), rng.choice([at, at, at, None]), rng.choice([None, 1]))
        )
    frame = spark.createDataFrame(found, "fact int, `case` int, part string, at timestamp, amount int")
    frame.createOrReplaceTempView("facts")
    return found


def held(history: History, key: tuple[int, str], at: datetime) -> tuple[Any, ...]:
    """The values that held at a time, or NULLs."""
    captured = [snapshot for snapshot in range(1, SNAPSHOTS + 1) if captured_at(snapshot) <= at]
    if not captured or captured[-1] < history.pruned_to:
        return (None, None)
    return history.images[captured[-1]].get(key, (None, None))


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"plan-tier": "plan then", "order": "order"}, ["plan then", "order"]),
        (["order", "plan-tier"], ["order", "plan-tier"]),
    ],
    ids=["renamed", "listed"],
)
def test_each_fact_meets_the_version_of_its_time_once(
    spark: SparkSession, histories: list[History], facts: list[tuple[Any, ...]], columns: Any, names: list[str]
) -> None:
    dimension = render("scd2", TABLE, key=KEY)
    on = {"case": "case_id", "part": "part"}
    frame = query(spark, render("point_in_time_join", "facts", dimension, on=on, at="at", columns=columns))
    assert frame.columns == ["fact", "case", "part", "at", "amount", *names]
    expected = Counter[tuple[Any, ...]]()
    for fact in facts:
        _, case, part, at, _ = fact
        known = case is not None and case >= 0 and part is not None and at is not None
        values = held(histories[case], (case, part), at) if known else (None, None)
        expected[(*fact, *(values if names[-1] == "order" else values[::-1]))] += 1
    assert sum(row[-1] is not None for row in expected) > 100
    assert Counter(map(tuple, frame.collect())) == expected


def test_a_version_that_held_at_no_time_hides_none_of_those_after_it(spark: SparkSession) -> None:
    versions = [("free", 6, 30), ("pro", 30, 29), ("gold", 29, None)]  # of three captures, the last by a clock behind
    rows = ", ".join(
        f"(7, '{plan}', timestamp_seconds({begin}), {'null' if end is None else f'timestamp_seconds({end})'})"
        for plan, begin, end in versions
    )
    dimension = f"(select * from values {rows} as t (id, plan, valid_from, valid_to))"
    facts = "(select 7 as id, timestamp_seconds(s) as at from (select explode(array(5, 7, 29, 31, 90)) as s))"
    join = render("point_in_time_join", facts, dimension, on="id", at="at", columns=["plan"])
    assert [row.plan for row in query(spark, join).orderBy("at").collect()] == [None, "free", "gold", "gold", "gold"]


def test_a_fact_without_a_time_meets_no_version_and_a_text_is_no_time(spark: SparkSession) -> None:
    dimension = (
        "(select 7 as id, 'x' as plan, cast(null as timestamp) as valid_from, cast(null as timestamp) as valid_to)"
    )
    facts = "(select 7 as id, at, cast(at as string) as told from values (timestamp'2024-01-01'), (null) as t (at))"
    join = render("point_in_time_join", facts, dimension, on="id", at="at", columns=["plan"])
    assert {tuple(row)[1:] for row in query(spark, join).select("id", "at", "plan").collect()} == {
        (datetime(2024, 1, 1), "x"),
        (None, None),
    }
    with pytest.raises(
        PySparkException, match="found the text told as the time of the facts; expected the type of valid_from"
    ):
        query(spark, render("point_in_time_join", facts, dimension, on="id", at="told", columns=["plan"])).collect()


def test_every_column_of_the_dimension_but_its_key_is_shown_by_default(spark: SparkSession, facts: object) -> None:
    dimension = "(select 7 as case_id, 'x' as plan, timestamp'2020-01-01' as dbt_valid_from, cast(null as timestamp) as dbt_valid_to)"
    join = render(
        "point_in_time_join", "(select 7 as id, timestamp'2024-01-01' as at)", dimension,
        on={"id": "case_id"}, at="at", valid_from="dbt_valid_from", valid_to="dbt_valid_to",
    )  # fmt: skip
    row = query(spark, join).collect()[0].asDict()
    assert list(row) == ["id", "at", "plan", "dbt_valid_from", "dbt_valid_to"]
    assert (row["id"], row["plan"]) == (7, "x")


def test_a_point_in_time_join_compares_no_fact_with_all_versions_of_its_key(spark: SparkSession, facts: object) -> None:
    dimension = "(select 1 as `case`, timestamp'2024-01-01' as valid_from, cast(null as timestamp) as valid_to, 1 as x)"
    frame = query(spark, render("point_in_time_join", "facts", dimension, on="case", at="at"))
    nodes = [name for name, _ in executed(frame)]
    assert not any("Join" in name for name in nodes), nodes
    assert nodes.count("Exchange") == 1, nodes


TYPES = [
    {"name": "tenant", "type": "string"}, {"name": "id", "type": "int"}, {"name": "n", "type": "double"},
    {"name": "list", "type": "array<array<int>>"}, {"name": "tags", "type": "map<string,int>"},
]  # fmt: skip
Pair = tuple[Any, ...]


def random_rows(rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Two lists of rows that mostly agree; NULLs and duplicates in the key too."""

    def row(key: tuple[Any, Any]) -> Pair:
        lists: Any = rng.choice([None, [], [[]], [[1], [2]], [[1, 2]], [[1, None]]])
        return (
            *key,
            rng.choice([None, 0.0, float("nan"), 1.5]),
            lists,
            rng.choice([None, {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": None}]),
        )

    found, expected = [], []
    for number in range(600):
        key = (rng.choice([None, "eu", ""]), None if number == 0 else number)
        one = row(key)
        for _ in range(rng.choice([1] * 9 + [2])):
            found.append(one)
            expected.append(one if rng.random() < 0.97 else row(key))
        change = rng.random()
        if change < 0.02:
            found.pop()
        elif change < 0.04:
            expected.pop()
    return found, expected


def comparable(row: Pair) -> str:
    tenant, number, n, lists, tags = row
    return repr((tenant, number, n, lists, None if tags is None else sorted(tags.items())))


def differences(found: list[Pair], expected: list[Pair]) -> Iterator[Pair]:
    """By key: copies are matched in the order of a hash, so only their number and whether they are equal is told."""
    for key in {row[:2] for row in found + expected}:
        here = Counter(comparable(row) for row in found if row[:2] == key)
        there = Counter(comparable(row) for row in expected if row[:2] == key)
        if here != there:
            yield (*key, here.total() - there.total())


@pytest.mark.parametrize("buckets", [65536, 7])
def test_the_keys_that_differ_are_found_whatever_the_buckets(spark: SparkSession, buckets: int) -> None:
    found, expected = random_rows(random.Random(SEED + buckets))
    schema = ", ".join(f"{column['name']} {column['type']}" for column in TYPES)
    spark.createDataFrame(found, schema).createOrReplaceTempView("found")
    spark.createDataFrame(expected, schema).createOrReplaceTempView("expected")
    relation = render("reconcile_relations", "found", "expected", key=["tenant", "id"], columns=TYPES, buckets=buckets)
    shown: dict[Pair, Counter[str]] = {}
    for tenant, number, difference in query(spark, relation).collect():
        shown.setdefault((tenant, number), Counter())[difference] += 1
    truth = {row[:2]: row[2] for row in differences(found, expected)}
    assert len(truth) > 20
    assert {key: kinds["extra"] - kinds["missing"] for key, kinds in shown.items()} == truth
    swapped = render("reconcile_relations", "expected", "found", key=["tenant", "id"], columns=TYPES, buckets=buckets)
    assert query(spark, swapped).where("_difference = 'missing'").count() == sum(
        kinds["extra"] for kinds in shown.values()
    )


def test_rows_are_matched_only_in_buckets_that_differ(spark: SparkSession) -> None:
    spark.range(20000).selectExpr("id", "id * 2 as n").createOrReplaceTempView("found")
    spark.range(20000).selectExpr("id", "if(id in (3, 4, 5), -1, id * 2) as n").createOrReplaceTempView("expected")
    columns = [{"name": "id", "type": "bigint"}, {"name": "n", "type": "bigint"}]
    for wanted, least, most in (("expected", 6, 30), ("found", 0, 0)):
        frame = query(spark, render("reconcile_relations", "found", wanted, key="id", columns=columns))
        assert sorted(row.id for row in frame.collect()) == ([3, 4, 5] if most else [])
        matched = [rows for name, rows in executed(frame) if name == "BroadcastHashJoin"]
        assert least <= sum(matched) <= most, executed(frame)


def test_a_row_that_stands_twice_on_each_side_does_not_hide_another_one(spark: SparkSession) -> None:
    """Each bucket has as many rows on both sides, and their XOR is 0."""
    found = "(select * from values (1, 'a'), (1, 'a'), (2, 'b') as t (id, v))"
    expected = "(select * from values (1, 'c'), (1, 'c'), (2, 'b') as t (id, v))"
    columns = [{"name": "id", "type": "int"}, {"name": "v", "type": "string"}]
    rows = query(spark, render("reconcile_relations", found, expected, key="id", columns=columns)).collect()
    assert [tuple(row) for row in rows] == [(1, "different"), (1, "different")]


def test_keys_of_one_bucket_with_exchanged_values_differ_also_where_only_the_values_are_compared(
    spark: SparkSession,
) -> None:
    found = "(select * from values (1, 'a'), (2, 'b'), (3, 'c') as t (id, v))"
    expected = "(select * from values (1, 'b'), (2, 'a'), (4, 'c') as t (id, v))"
    columns = [{"name": "v", "type": "string"}]
    relation = render("reconcile_relations", found, expected, key="id", columns=columns, buckets=1)
    rows = query(spark, relation).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "different"), (2, "different"), (3, "extra"), (4, "missing")]


def executed(frame: DataFrame) -> list[tuple[str, int]]:
    """The nodes of the plan that ran, and the rows that each gave, where it counts them."""
    frame.collect()
    nodes: list[tuple[str, int]] = []

    def visit(node: Any) -> None:
        name = node.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            visit(node.executedPlan())
        elif name.endswith("QueryStageExec"):
            visit(node.plan())
        else:
            rows = node.metrics().get("numOutputRows")
            nodes.append((node.nodeName(), rows.get().value() if rows.isDefined() else 0))
            for number in range(node.children().size()):
                visit(node.children().apply(number))

    visit(frame._jdf.queryExecution().executedPlan())
    return nodes
