"""A transactional destination sees each change once, whoever sends it and whatever ends a run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dbt_reverse_etl.warehouse import executors
from tests.support.delivery.histories import DEADLY, Bias, history
from tests.support.delivery.memory_sinks import TransactionalSink
from tests.support.delivery.reference import bucket
from tests.support.delivery.world import World
from tests.support.effort import scaled

KEYS = [f"k{number}" for number in range(24)]  # three in each bucket
OFTEN = ("batch.before", "batch.after", "batch.after", "wave.delivered", *DEADLY)
FAULTS = ("retryable", "unknown_applied", "unknown_lost")
WIDE = Bias(
    FAULTS, points=OFTEN, often=0.1, keys=KEYS, changes=16, batch_rows=(3, 8), wave_rows=24, scattered=0, specs=0
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has a few rows at hand, as those of a large wave have."""
    monkeypatch.setattr(executors, "_CHUNK", 4)


def twice(world: World, excused: set[int]) -> list[str]:
    """Changes that were applied more than once, but in these buckets."""
    rows = [row for source in world.planned for row in source.rows if row["_bucket"] not in excused]
    return sorted(
        {f"{row['key']} at {row['_changed']}" for row in rows if world.destination.applied[row["_event_id"]] > 1}
    )


def refused(world: World) -> set[int]:
    """Buckets of rows that were refused at some time."""
    return {bucket(key) for key in world.refused}


@pytest.mark.guarantee("Crashes and claims")
def test_over_random_histories_of_crashes_and_lost_commits_each_change_is_applied_once() -> None:
    start = random.SystemRandom().randrange(10**9)
    crashes, tasks = 0, 0
    for seed in range(start, start + scaled(600)):
        worlds: list[World] = []
        assert history(seed, TransactionalSink, WIDE, worlds.append) == [], f"seed {seed}"
        assert twice(worlds[0], set()) == [], f"seed {seed}"
        crashes += sum(actor.error is not None for actor in worlds[0].actors)
        tasks += worlds[0].destination.applied.total()
    assert crashes > scaled(600) / 9
    assert tasks > scaled(600) * 5


@pytest.mark.guarantee("Crashes and claims")
def test_with_refused_rows_only_changes_of_their_buckets_may_come_twice() -> None:
    start = random.SystemRandom().randrange(10**9)
    for seed in range(start, start + scaled(600)):
        share = random.Random(seed).choice([0.02, 0.1, 0.5, 1.0])
        bias = replace(WIDE, faults=(*FAULTS, "rejected"), often=share, reject_wait=random.Random(seed).choice([0, 60]))
        worlds: list[World] = []
        assert history(seed, TransactionalSink, bias, worlds.append) == [], f"seed {seed}"
        assert twice(worlds[0], refused(worlds[0])) == [], f"seed {seed}"
