"""Random head images and ledgers, and what the reference says is pending."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.spec import Spec
from tests.support.delivery.reference import asked_by, decide

CASES = 150

SNAPSHOTS = 5

KEYS = 6

SEED = 20240607

FIELDS = (("case", "case", "int"), ("key", "id", "string"), ("value", "number", "int"))

SPECS = {
    "all": Spec(FIELDS, None, Mode.MIRROR),
    "filtered": Spec(FIELDS, "value % 3 <> 0", Mode.MIRROR),
    "renamed": Spec((*FIELDS[:2], ("value", "amount", "int")), None, Mode.MIRROR),
    "narrow": Spec(FIELDS[:2], None, Mode.MIRROR),
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
def hashes(spark: SparkSession) -> dict[tuple[str, str, int, str, int | None], int | None]:
    """The hash of each possible row through each spec, of the fields that another one sends, too; by Spark's own evaluation of the macro."""
    found: dict[tuple[str, str, int, str, int | None], int | None] = {}
    values = "select explode(array(cast(null as int), 0, 1, 2, 3, 4, 5)) as value"
    keys = f"select case, key, value from ({values}), (select explode(sequence(0, {CASES - 1})) as case), (select explode(array('a','b','c','d','e','f')) as key)"
    for (name, spec), (other, by) in itertools.product(SPECS.items(), repeat=2):
        sent = {field for _, field, _ in by.fields}
        shared = replace(spec, fields=tuple(field for field in spec.fields if field[1] in sent))
        query = f"select case, key, value, {sql.render('_projection', **shared.projection)} as hash from ({keys})"
        found.update({(name, other, row.case, row.key, row.value): row.hash for row in spark.sql(query).collect()})
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

    def hash(self, spec: str, snapshot: int, key: tuple[int, str], by: str | None = None) -> int | None:
        image = self._images[snapshot]
        return self._hashes[(spec, by or spec, *key, image[key])] if key in image else None

    def pending(
        self, state: State, spec: str, head: int, places: dict[tuple[int, str], tuple[str, int]]
    ) -> dict[str, Any]:
        found = {}
        for key, (name, bucket) in places.items():
            place = next(place for place in state.positions if place.lo <= bucket < place.hi)
            over = [claim for claim in state.claims if claim.lo <= bucket < claim.hi]
            claims = [(self.hash(c.spec, c.snapshot, key, spec), c.everything, c.ordered) for c in over]
            before = self.hash(place.spec, place.snapshot, key, spec) if place.snapshot else None
            planned = decide(before, self.hash(spec, head, key), claims, state.undelivered.get(name))
            if planned is not None:
                found[name] = replace(planned, asked_by=asked_by(over, state.undelivered.get(name)))
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
                f"c{n}",
                lo,
                lo + half // 2,
                rnd.randint(1, SNAPSHOTS),
                rnd.choice(specs),
                everything=rnd.random() < 0.3,
                ordered=rnd.random() < 0.3,
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
                    "update", "rejected", "test", 1, NOW, None, rnd.choice((None, "repair")),
                )  # fmt: skip
        texts = {name: one.text for name, one in SPECS.items()}
        yield spec, State(fence=1, changelog="c", positions=ranges, claims=claims, undelivered=undelivered, specs=texts)


def truth_changed(truth: Truth, key: tuple[int, str], snapshot: int) -> int:
    """The snapshot of the last change of a key up to a snapshot; 0: it never was there."""
    images = truth._images
    return next(
        (s for s in range(snapshot, 0, -1) if images[s].get(key, "absent") != images[s - 1].get(key, "absent")), 0
    )


class Played:
    """A destination of two fields, A (half of the value) and B (its rest), in plain Python; and what each half of the buckets got.

    Attributes:
        kept: its rows.
        sent: of each half, the fields of its last push.
        stopped: of each half, the fields that it got before and not with its last push.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, int | None]] = {}
        self.sent: list[set[str]] = [set(), set()]
        self.stopped: list[set[str]] = [set(), set()]

    def wanted(self, image: Image, key: tuple[int, str], fields: set[str]) -> dict[str, int | None] | None:
        """The row as the model has it, or None."""
        if key not in image:
            return None
        value = image[key]
        parts = {"A": None, "B": None} if value is None else {"A": value // 2, "B": value % 2}
        return {field: parts[field] for field in fields}

    def differs(self, name: str, wanted: dict[str, int | None] | None) -> bool:
        """Whether it does not hold what it should; a field that it never got is NULL."""
        have = self.kept.get(name)
        if have is None or wanted is None:
            return have is not wanted
        return any(have.get(field) != value for field, value in wanted.items())

    def comes_back(self, bucket: int, wanted: dict[str, int | None] | None, fields: set[str]) -> bool:
        """Whether a field of the row was not kept up for a while."""
        return wanted is not None and not fields.isdisjoint(self.stopped[bucket >= BUCKETS // 2])

    def take(self, rows: dict[str, dict[str, Any]], fields: set[str]) -> None:
        """Write what is sent."""
        for name, row in rows.items():
            if row["_operation"] == "delete":
                del self.kept[name]
            else:
                self.kept.setdefault(name, {}).update({field: row[field] for field in fields})

    def end(self, through: int, fields: set[str]) -> None:
        """The push is over, for all buckets or the first half of them."""
        stopped = set().union(*self.sent, *self.stopped) - fields
        for half in (0, 1) if through == BUCKETS else (0,):
            self.sent[half], self.stopped[half] = fields, stopped
