"""What was pruned: views and pushes that need it fail, and what a prune has to keep follows from the ledger."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Abandoned,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.position import State, fold, oldest_needed
from dbt_reverse_etl.warehouse.head import Head, full_image
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from dbt_reverse_etl.warehouse.pending import Pending, PendingRows
from tests.support.dbt import pending
from tests.support.dbt.pending import SNAPSHOTS, SPECS, Truth, bucket_of, change_rows, hashes, histories, states

__all__ = ["hashes"]  # a fixture
SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))


@pytest.fixture(scope="module")
def gaps(spark: SparkSession) -> str:
    """Snapshots 1 and 2 pruned, 3 a savepoint, 4 and 5 pruned, a full image at 6; a day each, with business labels."""
    table = "pruned_gaps.changelog"
    rows = []
    labels = {1: "a", 2: "b", 3: None, 4: "b", 5: "c", 6: "d", 7: "c"}  # the last is a late correction
    for n, label in labels.items():
        kind = "pruned" if n in (1, 2, 4, 5) else "snapshot"
        rows.append((kind, n, datetime(2024, 1, n), label, None, None))
    rows.append(("savepoint", 3, datetime(2024, 1, 3), None, 1, "saved"))
    rows.append(("checkpoint", 6, datetime(2024, 1, 6), None, 2, "full"))
    rows.append(("update_postimage", 7, datetime(2024, 1, 7), None, 2, "corrected"))
    frame = spark.createDataFrame(
        rows, "_change string, _snapshot_id bigint, _captured_at timestamp, label string, id int, v string"
    )
    spark.sql("create schema if not exists pruned_gaps")
    frame.selectExpr("* except (label)", "named_struct('label', label) as _header", "0L as _row_hash").write.format(
        "delta"
    ).mode("overwrite").saveAsTable(table)
    return table


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"timestamp": "2023-12-31"}, set()),
        ({"timestamp": "2024-01-02"}, None),
        ({"timestamp": "2024-01-03"}, {(1, "saved")}),
        ({"timestamp": "2024-01-04"}, None),
        ({"timestamp": "2024-01-05 12:00"}, None),
        ({"timestamp": "2024-01-06"}, {(2, "full")}),
        ({"label": "a"}, None),
        ({"label": "b"}, None),
        ({"label": "c"}, None),
        ({"label": "d"}, {(2, "corrected")}),
        ({"snapshot": 3}, {(1, "saved")}),
        ({"snapshot": 9}, {(2, "corrected")}),
    ],
    ids=str,
)
def test_as_of_a_time_or_a_label_that_was_pruned_is_an_error_and_never_the_image_of_a_savepoint_before_it(
    spark: SparkSession, gaps: str, asked: dict[str, Any], shown: set[tuple[int, str]] | None
) -> None:
    query = f"select id, v from {render('as_of', gaps, key='id', **asked)}"
    if shown is None:
        with pytest.raises(Exception, match="was pruned"):
            spark.sql(query).collect()
    else:
        assert {tuple(row) for row in spark.sql(query).collect()} == shown


BASE = 3  # in the pruned history, the oldest full image


@pytest.fixture(scope="module")
def pruned(spark: SparkSession) -> str:
    """The histories of test_pending, with everything below a full image pruned."""
    table = "pruned_histories.changelog"
    rows = [(*row, None) for row in change_rows(histories(pending.SEED), checkpoint=BASE) if row[1] >= BASE]
    rows += [("pruned" if n < BASE else "snapshot", n, None, None, None, max(BASE, 1)) for n in range(1, SNAPSHOTS + 1)]
    frame = spark.createDataFrame(
        rows, "_change string, _snapshot_id bigint, case int, key string, value int, base bigint"
    )
    frame = frame.selectExpr(
        "* except (base)", "named_struct('base', base) as _header", "cast(0 as bigint) as _row_hash"
    )
    spark.sql("create schema if not exists pruned_histories")
    frame.write.format("delta").mode("overwrite").saveAsTable(table)
    return table


@pytest.mark.full
def test_after_a_prune_every_ledger_plans_what_the_reference_plans_first_loads_that_crashed_and_refused_rows_included(
    spark: SparkSession, pruned: str, hashes: dict[Any, int | None]
) -> None:
    images = histories(pending.SEED)
    truth, places = Truth(images, hashes), bucket_of(spark, sorted({key for image in images for key in image}))
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    keys = {name: key for key, (name, _) in places.items()}
    older, crashed = 0, 0
    for number, (spec, before) in enumerate(itertools.islice(states(random.Random(SEED), truth, places), 5)):
        state = replace(
            before,
            positions=tuple(
                replace(at, snapshot=max(at.snapshot, BASE) if at.lo or number % 2 else 0) for at in before.positions
            ),
            claims=tuple(replace(claim, snapshot=max(claim.snapshot, BASE)) for claim in before.claims),
            undelivered={  # that a key stands in a full image is all that a first load knows of its last change
                name: replace(row, changed=max(row.changed, BASE))
                for name, row in before.undelivered.items()
                if row.changed >= BASE or keys[name] in images[BASE]
            },
        )
        for base in (BASE, SNAPSHOTS):  # of the head: the oldest one, and one that is newer than positions
            head = Head(SNAPSHOTS, "c", base, 10, ("case", "key"), columns, "0")
            asked = Pending(pruned, head, "abc", spec, SPECS[spec], state)
            if base == SNAPSHOTS and asked._needs_images and asked.needs_base is None:
                continue  # reads a full image that these histories do not hold
            older += asked.needs_base is not None
            crashed += asked._needs_images and state.positions[0].snapshot == 0
            found = plan(spark, asked)
            wanted = truth.pending(state, spec, SNAPSHOTS, places)
            assert found.keys() == wanted.keys(), (spec, base, state.positions, state.claims)
            for name, planned in wanted.items():
                row = found[name]
                assert (row["_operation"], row["_before_hash"], row["_maybe"], row["_doubt"], row["_asked_by"]) == (
                    planned.operation, planned.before_hash, planned.maybe, planned.doubt, planned.asked_by,
                ), (name, row, planned)  # fmt: skip
    assert older
    assert crashed


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("positions", [(1, 1), (0, 1)], ids=["changes", "images"])
def test_a_push_from_a_pruned_position_fails_and_plans_nothing(
    spark: SparkSession, pruned: str, positions: tuple[int, int]
) -> None:
    ranges = tuple(Range(lo, lo + BUCKETS // 2, at, "all") for lo, at in zip((0, BUCKETS // 2), positions, strict=True))
    state = State(1, "c", ranges, specs={"all": SPECS["all"].text})
    columns = (("case", "int"), ("key", "string"), ("value", "int"))
    head = Head(SNAPSHOTS, "c", BASE, 10, ("case", "key"), columns, "0")
    asked = Pending(pruned, head, "abc", "all", SPECS["all"], state)
    with pytest.raises(Exception, match=r"was pruned|, pruned"):
        plan(spark, asked)


def test_a_first_load_whose_snapshot_was_pruned_meanwhile_fails_and_loads_nothing(
    spark: SparkSession, pruned: str
) -> None:
    head = Head(2, "c", 1, 10, ("case", "key"), (("case", "int"), ("key", "string"), ("value", "int")), "0")
    state = State().for_spec("all", SPECS["all"].text)
    with pytest.raises(Exception, match="was pruned"):
        plan(spark, Pending(pruned, head, "abc", "all", SPECS["all"], state))


def plan(spark: SparkSession, asked: Pending) -> dict[str, Any]:
    """The planned rows, as a push asks for them."""
    if asked.needs_base is not None:
        asked = replace(asked, older_base=full_image(spark, asked.relation, asked.needs_base))
    source = PendingRows(spark, asked)
    try:
        return {row["_key"]: row for row in source.wave(0, BUCKETS).to_pylist()}
    finally:
        source.close()


def random_facts(rng: random.Random, sync: str) -> list[Fact]:
    """One run of a sync, as far as it came; waves are disjoint and claims are closed as runs close them."""

    def snapshot() -> int:
        return rng.randint(1, 99)

    def undelivered(lo: int, hi: int) -> tuple[Undelivered, ...]:
        found = []
        for n in range(rng.choice([0, 0, 2])):
            bucket = rng.randrange(lo, hi)
            found.append(
                Undelivered(
                    f"{lo}-{n}", bucket, 1, 2, False, False, snapshot(), "update", "rejected", "", 1, pending.NOW, None
                )
            )
        return tuple(found)

    cuts = sorted({0, BUCKETS, *rng.sample(range(1, BUCKETS), 2)})
    bounds = list(itertools.pairwise(cuts))
    claims = tuple(
        Claim(f"{sync}-old-{n}", *sorted(rng.sample(cuts, 2)), rng.choice([1, snapshot()]), "x")
        for n in range(rng.randint(0, 2))
    )
    own = [Claim(f"{sync}-own-{n}", lo, hi, 100, "x") for n, (lo, hi) in enumerate(bounds)]
    positions = tuple(Range(lo, hi, rng.choice([0, snapshot()]), "x") for lo, hi in bounds)
    abandoned = tuple(Abandoned(1, snapshot(), pending.NOW) for _ in range(rng.choice([0, 0, 1])))
    now, known = pending.NOW, tuple(claim.id for claim in claims)
    facts: list[Fact] = [
        RunStarted(
            sync,
            2,
            f"{sync}-run",
            now,
            100,
            "x",
            {},
            positions,
            (*claims, own[0]),
            undelivered(0, BUCKETS),
            now,
            "host:1",
            sync=sync,
            changelog="uuid",
            abandoned=abandoned,
        )
    ]
    if rng.random() < 0.6:
        late = tuple(Claim(f"{sync}-late", 0, 9, snapshot(), "x") for _ in range(rng.randint(0, 1)))
        parts = rng.choice([0, 0, 1, 2])  # what the settlement leaves in doubt it states again
        cuts = sorted(rng.sample(range(BUCKETS), 2 * parts))
        again = tuple(replace(claims[0], lo=cuts[2 * n], hi=cuts[2 * n + 1]) for n in range(parts if claims else 0))
        delivered = () if again else tuple(Range(one.lo, one.hi, one.snapshot, "x") for one in claims[:1])
        facts.append(ClaimsSettled(sync, 2, 1, now, delivered, known[:1], (*again, *late), {}))
    reached = rng.choice([0, 1, len(bounds), len(bounds)])
    for n, (lo, hi) in enumerate(bounds[:reached]):
        following = tuple(own[n + 1 : n + 2])
        facts.append(
            WaveAcknowledged(
                sync,
                2,
                n + 2,
                now,
                lo,
                hi,
                100,
                "x",
                NO_COUNTS,
                undelivered(lo, hi),
                (*known, own[n].id),
                following,
                now,
            )
        )
    if rng.random() < 0.2:
        facts.append(
            DoubtRecorded(sync, 2, now, (), (Claim(f"{sync}-doubt", 0, 9, snapshot(), "x", everything=True),), {})
        )
    if rng.random() < 0.7:
        facts.append(
            RunFinished(
                sync,
                2,
                9,
                now,
                "succeeded",
                NO_COUNTS,
                NO_ROWS,
                releases=tuple(claim.id for claim in own[reached : reached + 1]),
            )
        )
    return facts


def test_prune_keeps_what_the_folded_facts_of_every_sync_still_need_and_not_more_once_a_run_is_whole(
    spark: SparkSession,
) -> None:
    rng = random.Random(SEED)
    runs = {f"sync_{n}": random_facts(rng, f"sync_{n}") for n in range(100)}
    spark.sql("create schema if not exists prune_needs")
    spark.sql("drop table if exists prune_needs.ledger")
    ledger = DeltaLedger(spark, "prune_needs.ledger")
    ledger.create()
    earlier = replace(runs["sync_0"][0], fence=1, positions=(Range(0, BUCKETS, 1, "x"),))
    other = replace(runs["sync_0"][0], sync_id="other", sync="other", changelog="another changelog")
    broken = {"newer": ("run_paused", "{}"), "garbled": ("wave_acknowledged", "{")}
    begun = [replace(runs["sync_0"][0], sync_id=name, sync=name) for name in broken]
    unnamed = replace(runs["sync_0"][0], sync_id="unnamed", sync="unnamed", changelog="")
    ledger.append(earlier, other, unnamed, *begun, *itertools.chain.from_iterable(runs.values()))
    for name, (word, body) in broken.items():
        values = f"'{name}', 2, 9, '{word}', current_timestamp(), '', '', '{body}'"
        spark.sql(f"insert into prune_needs.ledger values ({values})")
    newest = spark.sql(render("_newest_runs", "prune_needs.ledger")).collect()
    query = render("snapshots_needed", "prune_needs.ledger", "uuid", newest)
    found = {row.sync: row for row in spark.sql(query).collect()}

    assert found.keys() == {*runs, "newer", "garbled", "unnamed"}
    assert not found["newer"].understood
    assert not found["garbled"].understood
    exact = 0
    for name, facts in runs.items():
        state = fold(facts)
        reached = tuple(place for place in state.positions if place.snapshot)  # position 0 holds nothing
        wanted = oldest_needed(replace(state, positions=(*reached, Range(0, 0, 1000, "x"))))
        assert found[name].understood
        assert (found[name].snapshot_id or 1000) <= wanted, (name, facts)
        whole = sum(isinstance(fact, WaveAcknowledged) for fact in facts) == 3
        assert not whole or found[name].snapshot_id == wanted, (name, facts)
        exact += found[name].snapshot_id == wanted
    assert exact > len(runs) * 0.7


def test_the_snapshots_of_some_days_begin_with_the_first_of_them_though_a_later_stamp_is_older(
    spark: SparkSession,
) -> None:
    for ages, first in [((180, 22, 12, 300, 1), 1), ((180, 40, 12, 1), 2), ((5, 4), 0), ((50, 40), 2)]:
        rows = ", ".join(f"({number}, {age})" for number, age in enumerate(ages, 1))
        spark.sql(f"select * from values {rows} as t (_snapshot_id, age)").selectExpr(
            "_snapshot_id", "current_timestamp() - make_interval(0, 0, 0, age) as _captured_at"
        ).createOrReplaceTempView("captured")
        assert spark.sql(render("_snapshot_of_days", "captured", 30)).collect()[0][0] == first
