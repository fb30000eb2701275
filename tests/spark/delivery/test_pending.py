"""The SQL of `pending` decides as the reference does, over every case and over random histories."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.spark import Head, Pending, PendingRows, _bytes_of
from dbt_reverse_etl.spec import Spec
from tests.support.dbt.pending import (
    FIELDS,
    SEED,
    SNAPSHOTS,
    SPECS,
    Image,
    Truth,
    bucket_of,
    change_rows,
    hashes,
    histories,
    states,
)

__all__ = ["hashes"]


@pytest.fixture(scope="module")
def images() -> list[Image]:
    print(f"seed {SEED}")
    return histories(SEED)


@pytest.fixture(scope="module")
def relation(spark: SparkSession, images: list[Image]) -> str:
    spark.sql("create schema if not exists pending_sql")
    rows = list(change_rows(images, checkpoint=3))
    frame = spark.createDataFrame(rows, "_change string, _snapshot_id bigint, case int, key string, value int")
    frame.selectExpr("*", "cast(0 as bigint) as _row_hash").write.format("delta").mode("overwrite").saveAsTable(
        "pending_sql.changelog"
    )
    return "pending_sql.changelog"


@pytest.mark.guarantee("What is sent")
def test_the_sql_plans_what_the_reference_plans_for_any_ledger(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None]
) -> None:
    truth = Truth(images, hashes)
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    head = Head(
        SNAPSHOTS, "c", 3, 10, ("case", "key"), (("case", "int"), ("key", "string"), ("value", "int")), "dev", "0"
    )
    planned_any = 0
    for spec, state in states(random.Random(SEED), truth, places):
        source = PendingRows(spark, Pending(relation, head, "abc", spec, SPECS[spec], state))
        try:
            found = {row["_key"]: row for row in source.wave(0, BUCKETS).to_pylist()}
            counted = source.planned().total
        finally:
            source.close()
        wanted = truth.pending(state, spec, SNAPSHOTS, places)
        assert found.keys() == wanted.keys(), (spec, state.positions, state.claims)
        for name, planned in wanted.items():
            row = found[name]
            assert (row["_operation"], row["_before_hash"], row["_maybe"], row["_doubt"]) == (
                planned.operation, planned.before_hash, planned.maybe, planned.doubt,
            ), (name, row, planned)  # fmt: skip
            key = json.loads(name)
            assert row["id"] == key["key"]
            if planned.operation != "delete":
                field = SPECS[spec].fields[2][1]
                assert row[field] == images[SNAPSHOTS][key["case"], key["key"]]
        assert counted.total == len(wanted)
        planned_any += len(wanted)
    assert planned_any > 1000


@pytest.mark.guarantee("What is sent")
def test_a_first_load_sends_every_visible_row_of_the_head_as_an_insert(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None]
) -> None:
    truth = Truth(images, hashes)
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    head = Head(
        SNAPSHOTS, "c", 3, 10, ("case", "key"), (("case", "int"), ("key", "string"), ("value", "int")), "dev", "0"
    )
    state = State().for_spec("filtered", SPECS["filtered"].text)
    source = PendingRows(spark, Pending(relation, head, "abc", "filtered", SPECS["filtered"], state))
    try:
        found = source.wave(0, BUCKETS).to_pylist()
    finally:
        source.close()
    assert {row["_operation"] for row in found} == {"insert"}
    assert {row["_key"] for row in found} == truth.pending(state, "filtered", SNAPSHOTS, places).keys()


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
def test_each_mode_plans_only_what_it_may_do(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None], mode: Mode
) -> None:
    truth = Truth(images, hashes)
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "dev", "0")
    spec = Spec(FIELDS, None, mode)
    state = State(1, "c", (Range(0, BUCKETS, 2, "all"),), specs={"all": spec.text})
    source = PendingRows(spark, Pending(relation, head, "abc", "all", spec, state))
    try:
        found = {row["_key"]: row["_operation"] for row in source.wave(0, BUCKETS).to_pylist()}
    finally:
        source.close()
    mirrored = {name: planned.operation for name, planned in truth.pending(state, "all", SNAPSHOTS, places).items()}
    assert set(mirrored.values()) == {"insert", "update", "delete"}
    if mode is Mode.INSERT_ONLY:
        assert found == {name: operation for name, operation in mirrored.items() if operation == "insert"}
    else:
        upserts = {name: operation for name, operation in mirrored.items() if operation != "delete"}
        assert found == (upserts if mode is Mode.UPSERT else dict.fromkeys(upserts, "update"))


@pytest.mark.guarantee("What is sent")
def test_the_size_of_rows_is_known_from_texts_and_guessed_from_a_share_of_nested_values(spark: SparkSession) -> None:
    rows = spark.range(64).selectExpr(
        "cast(id as int) as _bucket", "repeat('x', 1000) as `a.text`", "if(id > 5, null, cast('yz' as binary)) as bytes",
        "array(repeat('n', 500)) as nested",
    )  # fmt: skip
    known = rows.agg(F.sum(_bytes_of(rows))).collect()[0][0]
    assert known == 64 * (4 * 8 + 1000) + 6 * 2 + 64 * 502
