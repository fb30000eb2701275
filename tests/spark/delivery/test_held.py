"""What the ledger says that a destination may hold because of a sync, against an account of who put which row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.delivery.counts import NO_COUNTS
from dbt_reverse_etl.delivery.facts import BUCKETS, Fact, Range, RunStarted, Undelivered, WaveAcknowledged
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.held import History
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from dbt_reverse_etl.warehouse.spec import Spec
from tests.support.dbt.deliveries import BEGAN, Deliveries
from tests.support.dbt.pending import FIELDS, SNAPSHOTS, bucket_of, change_rows, histories

SEED = 20260727


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("ledgers", [range(12, 15), pytest.param(range(12), marks=pytest.mark.full)], ids=len)
def test_a_row_is_held_because_of_a_sync_exactly_if_it_put_it_there_or_may_have_and_has_not_deleted_it_since(
    spark: SparkSession, ledgers: range
) -> None:
    print(f"seed {SEED}")
    spark.sql("drop schema if exists held_rows cascade")
    spark.sql("create schema held_rows")
    images = histories(SEED)
    frame = spark.createDataFrame(
        list(change_rows(images, checkpoint=3)), "_change string, _snapshot_id bigint, case int, key string, value int"
    )
    frame.selectExpr("*", "cast(0 as bigint) as _row_hash").write.format("delta").saveAsTable("held_rows.changelog")
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    ledger = DeltaLedger(spark, "held_rows.ledger")
    ledger.create()
    played = {f"sync{n}": Deliveries(SEED + n, f"sync{n}", images, places) for n in ledgers}
    ledger.append(*(fact for one in played.values() for fact in one.play(10)))
    head = Head(SNAPSHOTS, "uuid", 3, 10, ("case", "key"), tuple((c, kind) for c, _, kind in FIELDS), "0")
    fields = [{"column": c, "field": f, "type": kind} for c, f, kind in FIELDS]
    every = {(*key, image[key]) for image in images for key in image}
    hashed = spark.createDataFrame(sorted(every, key=str), "case int, key string, value int").selectExpr(
        "case", "key", "value", f"{sql.render('_hash_of_fields', fields, 'column')} as hash"
    )
    value_of = {((row.case, row.key), row.hash): row.value for row in hashed.collect()}
    told = held = 0
    for name, one in played.items():
        history = History(spark, ledger, "held_rows.changelog", head, name, one.known_from)
        found = {}
        for row in spark.sql(history.held(one.spec)).collect():
            key = (json.loads(row._key)["case"], json.loads(row._key)["key"])
            found[key] = (row._held, {value_of[key, value] for value in row._values})
        assert found == one.expected(), name
        told, held = told + len(found), held + sum(is_held for is_held, _ in found.values())
    assert told > 25 * len(ledgers)
    assert 0.1 < held / told < 0.9, "both ends are met"


def steps_of(spark: SparkSession, pushes: Sequence[tuple[int, tuple[Undelivered, ...]]]) -> list[tuple[int, bool]]:
    """What `held` learns of a row that snapshot 1 inserted and 2 deleted: of each push that counts, its fence and whether the row was put.

    Args:
        pushes: the snapshot of each, and what it left out.
    """
    spark.sql("drop schema if exists held_long cascade")
    spark.sql("create schema held_long")
    changes = "values ('insert', 1L, 0L, 1, 'a', 1), ('delete', 2L, 0L, 1, 'a', 1) as t (_change, _snapshot_id, _row_hash, case, key, value)"
    spark.sql(f"select * from {changes}").write.format("delta").saveAsTable("held_long.changelog")
    ledger, spec = DeltaLedger(spark, "held_long.ledger"), Spec(FIELDS, None, Mode.MIRROR)
    ledger.create()
    facts: list[Fact] = []
    for fence, (snapshot, left) in enumerate(pushes, 1):
        # A spec of the same id: its settings were written in another way.
        everywhere, specs = (Range(0, BUCKETS, 0, spec.id),), {spec.id: replace(spec, given=f"in form {fence}").text}
        facts += [
            RunStarted("s", fence, "run", BEGAN, 3, spec.id, specs, everywhere, (), (), BEGAN, "h", "s", "uuid"),
            WaveAcknowledged("s", fence, 1, BEGAN, 0, BUCKETS, snapshot, spec.id, NO_COUNTS, left, (), (), BEGAN),
        ]
    ledger.append(*facts)
    head = Head(3, "uuid", 1, 0, ("case", "key"), tuple((c, kind) for c, _, kind in FIELDS), "0")
    held = History(spark, ledger, "held_long.changelog", head, "s", 0).held(spec)
    steps, _, _ = held.rpartition("select v._key, any_value")
    return sorted((row.fence, row.is_put) for row in spark.sql(f"{steps} select fence, is_put from steps").collect())


def test_a_version_is_joined_with_the_last_of_many_pushes_alone(spark: SparkSession) -> None:
    assert steps_of(spark, [(1, ())] * 10 + [(2, ())] * 20) == [(10, True), (30, False)]


def test_where_the_last_push_left_a_row_out_the_ones_before_it_count(spark: SparkSession) -> None:
    name, bucket = bucket_of(spark, [(1, "a")])[1, "a"]
    refused = Undelivered(name, bucket, None, None, False, False, 2, "delete", "rejected", "", 1, BEGAN, None)
    assert steps_of(spark, [(1, ()), (2, ()), (2, (refused,))]) == [(1, True), (2, False)]


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize(
    ("shared_by", "elsewhere", "brought_back"),
    [([], False, "extra"), (["plan = 'b'"], False, "foreign"), ([], True, "foreign")],
    ids=["alone", "beside another sync", "beside a sync of another changelog"],
)
def test_a_row_that_is_as_it_was_delivered_is_the_syncs_own_only_where_no_other_sync_delivers_to_the_object(
    spark: SparkSession, shared_by: list[str], elsewhere: bool, brought_back: str
) -> None:
    spark.sql(
        "select _key, 'extra' as _difference, 1 as _bucket, cast(null as bigint) as _after_hash, "
        "0L as _changed, 1L as _found_hash, false as _unreadable "
        "from values ('held'), ('brought back'), ('of somebody'), ('of the other') as t (_key)"
    ).createOrReplaceTempView("compared_rows")
    held = (
        "select _key, 5 as _bucket, 3L as _changed, _held, array(_value) as _values from values "
        "('held', true, 2L), ('brought back', false, 1L), ('of somebody', false, 2L), ('of the other', true, 1L) "
        "as t (_key, _held, _value)"
    )
    image = "select 'of the other' as _key, 'b' as plan" if shared_by else None
    told = sql.render("told_apart", "compared_rows", held, "foreign", shared_by, image, elsewhere=elsewhere)
    found = {row._key: row._difference for row in spark.sql(told).collect()}
    of_the_other = "foreign" if shared_by else "extra"
    assert found == {
        "held": "extra",
        "brought back": brought_back,
        "of somebody": "foreign",
        "of the other": of_the_other,
    }


@pytest.mark.guarantee("What is sent")
def test_a_row_without_a_key_is_of_somebody_else_also_where_nobody_knows_what_was_delivered(
    spark: SparkSession,
) -> None:
    spark.sql(
        "select 'insert' as _change, 1L as _snapshot_id, 0L as _row_hash, id, part, 1 as value from values ('a', 1) as t (id, part)"
    ).createOrReplaceTempView("keyed_changelog")
    spark.sql(
        "select *, 1 as value, false as _unreadable from values ('a', 1), ('z', 1), ('a', null), (null, null) as t (id, part)"
    ).createOrReplaceTempView("keyed_rows")
    fields = [
        {"column": c, "field": c, "type": kind} for c, kind in (("id", "string"), ("part", "int"), ("value", "int"))
    ]
    compared = sql.render(
        "reconciled", "keyed_changelog", ["id", "part"], ["id", "part", "value"], 1, 1, fields, None, "s", "spec", "mirror", "keyed_rows",
    )  # fmt: skip
    spark.sql(compared).createOrReplaceTempView("keyed_differences")
    told = sql.render("told_apart", "keyed_differences", None, "leftover", [], None)
    found = {tuple(json.loads(row._key).values()): row._difference for row in spark.sql(told).collect()}
    assert found == {("z", 1): "leftover", ("a", None): "foreign", (None, None): "foreign"}


@pytest.mark.guarantee("What is sent")
def test_a_key_that_several_rows_have_is_one_difference_even_where_each_is_as_it_was_delivered(
    spark: SparkSession,
) -> None:
    delivered = "select 'insert' as _change, 1L as _snapshot_id, 0L as _row_hash, id, 1 as value from values ('a'), ('b'), ('c') as t (id)"
    spark.sql(delivered).createOrReplaceTempView("several_changelog")
    there = "values ('a', 1), ('a', 1), ('b', 1), ('c', 1), ('c', 2), ('z', 1), ('z', 1), ('y', 1), ('y', 2) as t (id, value)"
    spark.sql(f"select *, false as _unreadable from {there}").createOrReplaceTempView("several_rows")
    fields = [{"column": c, "field": c, "type": kind} for c, kind in (("id", "string"), ("value", "int"))]
    compared = sql.render(
        "reconciled", "several_changelog", ["id"], ["id", "value"], 1, 1, fields, None, "s", "spec", "mirror", "several_rows",
    )  # fmt: skip
    found = sorted(
        (json.loads(row._key)["id"], row._difference, row._unreadable) for row in spark.sql(compared).collect()
    )
    assert found == [("a", "duplicate", False), ("c", "duplicate", True), ("y", "extra", True), ("z", "extra", False)]
