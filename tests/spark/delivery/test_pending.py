"""The SQL of `pending` decides as the reference does, over every case and over random histories."""

from __future__ import annotations

import itertools
import json
import operator
import os
import random
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, Undelivered
from dbt_reverse_etl.delivery.policy import Rejections
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.undelivered import Order, not_delivered
from dbt_reverse_etl.delivery.wave import RowFailure
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.pending import Pending, PendingRows, _bytes_of
from dbt_reverse_etl.warehouse.spec import Spec
from tests.support.dbt.pending import (
    FIELDS,
    NOW,
    SEED,
    SNAPSHOTS,
    SPECS,
    Image,
    Played,
    Truth,
    bucket_of,
    change_rows,
    hashes,
    histories,
    states,
)

__all__ = ["hashes"]  # a fixture


@pytest.fixture(scope="module")
def images() -> list[Image]:
    print(f"seed {SEED}")
    return histories(SEED)


@pytest.fixture(scope="module", autouse=True)
def schema(spark: SparkSession) -> None:
    spark.sql("create schema if not exists pending_sql")


@pytest.fixture(scope="module")
def relation(spark: SparkSession, images: list[Image]) -> str:
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
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), (("case", "int"), ("key", "string"), ("value", "int")), "0")
    planned_any = listed_any = 0
    for spec, state in states(random.Random(SEED), truth, places):
        source = PendingRows(spark, Pending(relation, head, "abc", spec, SPECS[spec], state))
        try:
            found = {row["_key"]: row for row in source.wave(0, BUCKETS).to_pylist()}
            counted = source.planned().total
            listed = source.listed().to_pylist()
        finally:
            source.close()
        assert {row["_key"]: row for row in listed} == {
            name: {column: row[column] for column in ("_key", "_bucket", "_operation", "_after_hash", "_doubt")}
            for name, row in found.items()
            if name in state.undelivered
        }
        listed_any += len(listed)
        wanted = truth.pending(state, spec, SNAPSHOTS, places)
        assert found.keys() == wanted.keys(), (spec, state.positions, state.claims)
        for name, planned in wanted.items():
            row = found[name]
            assert (row["_operation"], row["_before_hash"], row["_maybe"], row["_doubt"], row["_asked_by"]) == (
                planned.operation, planned.before_hash, planned.maybe, planned.doubt, planned.asked_by,
            ), (name, row, planned)  # fmt: skip
            key = json.loads(name)
            assert row["id"] == key["key"]
            if planned.operation != "delete":
                for _, field, _ in SPECS[spec].fields[2:]:
                    assert row[field] == images[SNAPSHOTS][key["case"], key["key"]]
        assert counted.total == len(wanted)
        planned_any += len(wanted)
    assert planned_any > 1000
    assert listed_any > 10


@pytest.mark.guarantee("What is sent")
def test_a_first_load_sends_every_visible_row_of_the_head_as_an_insert(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None]
) -> None:
    truth = Truth(images, hashes)
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), (("case", "int"), ("key", "string"), ("value", "int")), "0")
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
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
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
@pytest.mark.parametrize("mode", Mode)
def test_a_resync_plans_every_row_in_each_mode(
    spark: SparkSession, relation: str, images: list[Image], mode: Mode
) -> None:
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
    spec = Spec(FIELDS, None, mode)
    asked = Claim("resync-1", 0, BUCKETS, SNAPSHOTS, "all", everything=True, ordered=True)
    state = State(1, "c", (Range(0, BUCKETS, SNAPSHOTS, "all"),), (asked,), specs={"all": spec.text})
    source = PendingRows(spark, Pending(relation, head, "abc", "all", spec, state))
    try:
        found = {row["_key"]: row["_operation"] for row in source.wave(0, BUCKETS).to_pylist()}
    finally:
        source.close()
    rows = {places[key][0] for key in images[SNAPSHOTS]}
    operation = "insert" if mode is Mode.INSERT_ONLY else "update"
    assert {name: done for name, done in found.items() if done != "delete"} == dict.fromkeys(rows, operation)


@pytest.mark.guarantee("What is sent")
def test_repeats_of_a_change_have_its_id_and_a_row_that_was_asked_for_has_another_also_after_a_refusal(
    spark: SparkSession, relation: str, images: list[Image]
) -> None:
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
    specs = {"all": SPECS["all"].text}

    def ids(
        place: int, claims: tuple[Claim, ...], left: dict[str, Undelivered], begun: dict[str, Any] | None = None
    ) -> dict[str, str]:
        state = State(1, "c", (Range(0, BUCKETS, place, "all"),), claims, left, specs=specs, **(begun or {}))
        source = PendingRows(spark, Pending(relation, head, "abc", "all", SPECS["all"], state))
        try:
            rows = source.wave(0, BUCKETS).to_pylist()
            refused.update({row["_key"]: row for row in rows})
            return {row["_key"]: row["_event_id"] for row in rows if row["_operation"] != "delete"}
        finally:
            source.close()

    refused: dict[str, Any] = {}
    first = ids(0, (), {})
    in_doubt = Claim("run-1", 0, BUCKETS, SNAPSHOTS, "all")
    assert ids(0, (in_doubt,), {}) == first
    seen = [first]
    for request in ("resync-1", "resync-2"):
        asked = Claim(f"{request}-0", 0, BUCKETS, SNAPSHOTS, "all", everything=True, ordered=True)
        found = ids(SNAPSHOTS, (asked, in_doubt), {})
        assert found == ids(SNAPSHOTS, (asked,), {})
        assert found.keys() == first.keys()
        assert all(found[key] != one[key] for one in seen for key in found)
        seen.append(found)
        left = not_delivered(
            pa.Table.from_pylist([refused[key] for key in found]),
            {n: RowFailure(Outcome.REJECTED, "no", 1) for n in range(len(found))},
            Order(Claim("c", 0, BUCKETS, 1, "spec"), {}, NOW, Rejections(), retry_now=False),
        )  # fmt: skip
        assert ids(SNAPSHOTS, (), {row.key: row for row in left}) == found
    lost = {"mark": "resync-3", "known_from": 3}
    after_a_loss = [ids(0, claims, {}, lost) for claims in ((), (in_doubt,))]
    assert after_a_loss[0] == after_a_loss[1]
    assert all(after_a_loss[0][key] != one[key] for one in seen for key in first)
    # Another changelog counts its snapshots from 1 as the lost one did, so that its later changes have their numbers, too.
    later, later_after_a_loss = ids(1, (), {}), ids(1, (), {}, lost)
    assert later.keys() == later_after_a_loss.keys() != set()
    assert all(later_after_a_loss[key] != one for key, one in later.items())


@pytest.mark.guarantee("What is sent")
def test_a_row_of_a_resync_that_was_refused_is_inserted_by_a_later_run_also_where_nothing_else_is(
    spark: SparkSession, relation: str, images: list[Image]
) -> None:
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
    spec = Spec(FIELDS, None, Mode.INSERT_ONLY)
    key = next(key for key in images[SNAPSHOTS] if images[SNAPSHOTS - 1].get(key) != images[SNAPSHOTS][key])
    name, bucket = places[key]
    refused = Undelivered(
        name, bucket, 1, 1, True, True, SNAPSHOTS, "insert", "rejected", "why", 1, datetime(2026, 1, 1), None
    )
    state = State(1, "c", (Range(0, BUCKETS, SNAPSHOTS, "all"),), (), specs={"all": spec.text})
    source = PendingRows(
        spark, Pending(relation, head, "abc", "all", spec, replace(state, undelivered={name: refused}))
    )
    try:
        found = {row["_key"]: row["_operation"] for row in source.wave(0, BUCKETS).to_pylist()}
    finally:
        source.close()
    assert found == {name: "insert"}


@pytest.mark.guarantee("What is sent")
def test_fields_that_come_and_go_send_just_the_rows_that_differ_and_one_that_comes_back_is_sent_for_every_row(
    spark: SparkSession, images: list[Image]
) -> None:
    """A crash may leave a half of the keys behind."""
    seed = int(os.environ.get("REVERSE_ETL_TEST_SEED", SEED))
    rnd, table = random.Random(seed), "pending_sql.fields"
    types = "_change string, _snapshot_id bigint, case int, key string, value int"
    rows = spark.createDataFrame(list(change_rows(images, checkpoint=0)), types)
    rows = rows.selectExpr("*", "0L as _row_hash", "value div 2 as a", "value % 2 as b")
    rows.write.format("delta").mode("overwrite").saveAsTable(table)
    places = bucket_of(spark, sorted({key for image in images for key in image}))
    played, state, came_back = Played(), State(), 0
    pushes = [(1, "a"), (1, "ab"), (2, "b"), (2, "a"), (3, ""), (3, "ab")]
    pushes += [(snapshot, rnd.choice(["a", "b", "ab", ""])) for snapshot in (3, 4, 4, 5, 5, 5)]
    for number, (snapshot, names) in enumerate(pushes):
        told = f"seed {seed}, push {number}, {pushes[: number + 1]}"
        earlier = [Spec.of(state.specs[place.spec]) for place in state.positions if place.snapshot]
        fields = (*FIELDS[:2], *((name, name.upper(), "int") for name in names))
        spec = Spec(fields, None, Mode.MIRROR).after(earlier)
        state = state.for_spec(spec.id, spec.text)
        found = rows_of_push(spark, table, snapshot, spec, state)
        sent = set(names.upper())
        for key, (name, bucket) in places.items():
            wanted = played.wanted(images[snapshot], key, sent)
            due = played.differs(name, wanted) or played.comes_back(bucket, wanted, sent)
            assert (name in found) == due, f"{told}, {key}: {played.kept.get(name)} -> {wanted}"
            came_back += due and not played.differs(name, wanted)
        through = rnd.choice([BUCKETS, BUCKETS, BUCKETS // 2])
        played.take({name: row for name, row in found.items() if row["_bucket"] < through}, sent)
        for key, (name, bucket) in places.items():
            wanted = played.wanted(images[snapshot], key, sent)
            assert bucket >= through or not played.differs(name, wanted), f"{told}, {key}: {played.kept.get(name)}"
        played.end(through, sent)
        behind = [replace(place, lo=max(place.lo, through)) for place in state.positions if place.hi > through]
        places_now = (Range(0, through, snapshot, spec.id), *behind)
        state = replace(state, positions=places_now, fence=1, changelog="c")
    assert came_back > 100


def rows_of_push(spark: SparkSession, table: str, snapshot: int, spec: Spec, state: State) -> dict[str, Any]:
    """What is pending, by key."""
    unsure = SyncPush._unsure(state, spec)
    claims = tuple(Claim("unsure", one.lo, one.hi, one.snapshot, one.spec, everything=True) for one in unsure)
    columns = (("case", "int"), ("key", "string"), ("value", "int"), ("a", "int"), ("b", "int"))
    head = Head(snapshot, "c", 1, 10, ("case", "key"), columns, "0")
    source = PendingRows(spark, Pending(table, head, "abc", spec.id, spec, replace(state, claims=claims)))
    try:
        return {row["_key"]: row for row in source.wave(0, BUCKETS).to_pylist()}
    finally:
        source.close()


def test_the_size_of_rows_is_known_from_texts_and_guessed_from_a_share_of_nested_values(spark: SparkSession) -> None:
    rows = spark.range(64).selectExpr(
        "cast(id as int) as _bucket", "repeat('x', 1000) as `a.text`", "if(id > 5, null, cast('yz' as binary)) as bytes",
        "array(repeat('n', 500)) as nested",
    )  # fmt: skip
    known = rows.agg(F.sum(_bytes_of(rows))).collect()[0][0]
    assert known == 64 * (4 * 8 + 1000) + 6 * 2 + 64 * 502


@pytest.mark.guarantee("What is sent")
def test_a_row_that_a_mirror_of_the_object_may_have_deleted_meanwhile_is_inserted_though_it_is_as_it_was(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None]
) -> None:
    truth, places = Truth(images, hashes), bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
    returned = 0
    for position, own, below in itertools.product(range(1, SNAPSHOTS), ("all", "filtered"), (3, 9)):
        state = State(1, "c", (Range(0, BUCKETS, position, own),), specs={own: SPECS[own].text})
        spec = replace(SPECS[own], mode=Mode.UPSERT)
        mirrors = [f"value < {below}"]
        source = PendingRows(spark, Pending(relation, head, "abc", own, spec, state, mirrored_by=mirrors))
        try:
            found = {row["_key"]: row["_operation"] for row in source.wave(0, BUCKETS).to_pylist()}
        finally:
            source.close()
        planned = truth.pending(state, own, SNAPSHOTS, places)
        wanted = {key: one.operation for key, one in planned.items() if one.operation != "delete"}
        for key, (name, _) in places.items():
            since = range(position + 1, SNAPSHOTS + 1)
            values = {at: images[at].get(key) for at in since}
            free = [truth.hash(own, at, key) is None and (values[at] is None or values[at] >= below) for at in since]
            changed = [images[at].get(key, "absent") != images[at - 1].get(key, "absent") for at in since]
            is_back = truth.hash(own, SNAPSHOTS, key) is not None
            if is_back and any(map(operator.and_, free, changed)):
                returned += name not in wanted
                wanted[name] = "insert"
        assert found == wanted, (position, own, below)
    assert returned > 10


@pytest.mark.guarantee("What is sent")
def test_a_row_that_a_mirror_made_again_is_updated_though_it_is_as_it_was(
    spark: SparkSession, relation: str, images: list[Image], hashes: dict[Any, int | None]
) -> None:
    truth, places = Truth(images, hashes), bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", 3, 10, ("case", "key"), columns, "0")
    returned = 0
    for position, own, below in itertools.product(range(1, SNAPSHOTS), ("all", "filtered"), (3, 9)):
        state = State(1, "c", (Range(0, BUCKETS, position, own),), specs={own: SPECS[own].text})
        spec = replace(SPECS[own], mode=Mode.UPDATE_ONLY)
        source = PendingRows(spark, Pending(relation, head, "abc", own, spec, state, mirrored_by=[f"value < {below}"]))
        try:
            found = {row["_key"] for row in source.wave(0, BUCKETS).to_pylist()}
        finally:
            source.close()
        planned = truth.pending(state, own, SNAPSHOTS, places)
        wanted = {key for key, one in planned.items() if one.operation != "delete"}
        for key, (name, _) in places.items():
            values = [images[at].get(key, "absent") for at in range(position, SNAPSHOTS + 1)]
            mirrored = [value not in ("absent", None) and int(value) < below for value in values]
            came_back = mirrored[-1] and not all(mirrored)
            if came_back and truth.hash(own, SNAPSHOTS, key) is not None:
                returned += name not in wanted
                wanted.add(name)
        assert found == wanted, (position, own, below)
    assert returned > 10
