"""The SQL of `pending` decides as the reference does, over every case and over random histories."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dbt_reverse_etl import sql
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.spark import Head, Pending, PendingRows, _bytes_of
from dbt_reverse_etl.spec import Spec
from tests.unit.reference import decide

pytestmark = pytest.mark.spark

CASES = 150
SNAPSHOTS = 5
KEYS = 6
SEED = 20240607
FIELDS = (("case", "case", "int"), ("key", "id", "string"), ("value", "number", "int"))
SPECS = {
    "all": Spec(FIELDS, None, Mode.MIRROR),
    "filtered": Spec(FIELDS, "value % 3 <> 0", Mode.MIRROR),
    "renamed": Spec((*FIELDS[:2], ("value", "amount", "int")), None, Mode.MIRROR),
}
NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
Image = dict[tuple[int, str], int | None]


def histories(seed: int) -> list[Image]:
    """Head images by snapshot; NULL values, deletes and re-inserts included."""
    rnd = random.Random(seed)
    image: Image = {}
    images = [image]
    for _ in range(SNAPSHOTS):
        image = dict(image)
        for case, key in itertools.product(range(CASES), "abcdef"[:KEYS]):
            luck = rnd.random()
            if luck < 0.25:
                image[case, key] = rnd.choice([None, *range(6)])
            elif luck < 0.35:
                image.pop((case, key), None)
        images.append(image)
    return images


def change_rows(images: list[Image], checkpoint: int) -> Iterator[tuple[Any, ...]]:
    for snapshot, (before, after) in enumerate(itertools.pairwise(images), 1):
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key, "absent"), after.get(key, "absent")
            if old == new:
                continue
            if old == "absent":
                yield ("insert", snapshot, *key, new)
            elif new == "absent":
                yield ("delete", snapshot, *key, old)
            else:
                yield ("update_preimage", snapshot, *key, old)
                yield ("update_postimage", snapshot, *key, new)
        if snapshot == checkpoint:
            for key, value in sorted(after.items()):
                yield ("checkpoint", snapshot, *key, value)


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


@pytest.fixture(scope="module")
def hashes(spark: SparkSession) -> dict[tuple[str, int, str, int | None], int | None]:
    """The hash of each possible row through each spec, by Spark's own evaluation of the macro."""
    found: dict[tuple[str, int, str, int | None], int | None] = {}
    values = "select explode(array(cast(null as int), 0, 1, 2, 3, 4, 5)) as value"
    keys = f"select case, key, value from ({values}), (select explode(sequence(0, {CASES - 1})) as case), (select explode(array('a','b','c','d','e','f')) as key)"
    for name, spec in SPECS.items():
        query = f"select case, key, value, {sql.render('_projection', **spec.projection)} as hash from ({keys})"
        found.update({(name, row.case, row.key, row.value): row.hash for row in spark.sql(query).collect()})
    return found


def bucket_of(spark: SparkSession, keys: list[tuple[int, str]]) -> dict[tuple[int, str], tuple[str, int]]:
    frame = spark.createDataFrame(keys, "case int, key string")
    name = sql.render("_key_json", ["case", "key"])
    rows = frame.selectExpr(
        "case", "key", f"{name} as name", f"cast(pmod(xxhash64({name}), 65536) as int) as bucket"
    ).collect()
    return {(row.case, row.key): (row.name, row.bucket) for row in rows}


class Truth:
    """What the reference says of every key."""

    def __init__(self, images: list[Image], hashes: dict[Any, int | None]) -> None:
        self._images, self._hashes = images, hashes

    def hash(self, spec: str, snapshot: int, key: tuple[int, str]) -> int | None:
        image = self._images[snapshot]
        return self._hashes[(spec, *key, image[key])] if key in image else None

    def pending(
        self, state: State, spec: str, head: int, places: dict[tuple[int, str], tuple[str, int]]
    ) -> dict[str, Any]:
        found = {}
        for key, (name, bucket) in places.items():
            place = next(place for place in state.positions if place.lo <= bucket < place.hi)
            claims = [(self.hash(c.spec, c.snapshot, key), c.everything) for c in state.claims if c.lo <= bucket < c.hi]
            before = self.hash(place.spec, place.snapshot, key) if place.snapshot else None
            planned = decide(before, self.hash(spec, head, key), claims, state.undelivered.get(name))
            if planned is not None:
                found[name] = planned
        return found


def states(
    rnd: random.Random, truth: Truth, places: dict[tuple[int, str], tuple[str, int]]
) -> Iterator[tuple[str, State]]:
    """Ledgers as crashes, refusals, zombies and edits leave them."""
    half = BUCKETS // 2
    for number in range(32):
        specs = ["all"] if number % 3 else list(SPECS)
        spec = rnd.choice(specs)
        ranges = tuple(
            Range(lo, hi, rnd.randint(0, SNAPSHOTS), rnd.choice(specs)) for lo, hi in ((0, half), (half, BUCKETS))
        )
        crashed = number % 4 == 0  # before its end, and no row was refused
        if crashed:
            ranges = (Range(0, half, SNAPSHOTS, spec), replace(ranges[1], snapshot=number // 4 % SNAPSHOTS))
        claims = tuple(
            Claim(
                f"c{n}", lo, lo + half // 2, rnd.randint(1, SNAPSHOTS), rnd.choice(specs), everything=rnd.random() < 0.3
            )
            for n, lo in enumerate(rnd.sample([0, half, half + 100], rnd.randint(0, 2)))
        )
        undelivered = {}
        for key, (name, bucket) in places.items():
            place = ranges[0] if bucket < half else ranges[1]
            changed = truth_changed(truth, key, place.snapshot)
            if rnd.random() < 0.1 and changed and not crashed:
                at = rnd.randint(0, place.snapshot)
                undelivered[name] = Undelivered(
                    name, bucket, truth.hash(place.spec, at, key), None, rnd.random() < 0.5, rnd.random() < 0.5, changed,
                    "update", "rejected", "test", 1, NOW, None,
                )  # fmt: skip
        texts = {name: one.text for name, one in SPECS.items()}
        yield spec, State(fence=1, changelog="c", positions=ranges, claims=claims, undelivered=undelivered, specs=texts)


def truth_changed(truth: Truth, key: tuple[int, str], snapshot: int) -> int:
    """The snapshot of the last change of a key up to a snapshot; 0: it never was there."""
    images = truth._images
    return next(
        (s for s in range(snapshot, 0, -1) if images[s].get(key, "absent") != images[s - 1].get(key, "absent")), 0
    )


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


def test_the_size_of_rows_is_known_from_texts_and_guessed_from_a_share_of_nested_values(spark: SparkSession) -> None:
    rows = spark.range(64).selectExpr(
        "cast(id as int) as _bucket", "repeat('x', 1000) as `a.text`", "if(id > 5, null, cast('yz' as binary)) as bytes",
        "array(repeat('n', 500)) as nested",
    )  # fmt: skip
    known = rows.agg(F.sum(_bytes_of(rows))).collect()[0][0]
    assert known == 64 * (4 * 8 + 1000) + 6 * 2 + 64 * 502
