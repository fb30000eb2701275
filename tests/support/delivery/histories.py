"""Random histories of captures, runs, deaths and sleep, quick enough to search for one that ends wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dbt_reverse_etl.delivery.facts import LONGEST_WAIT, PARKED
from tests.support.delivery.fault_points import FAULT_POINTS
from tests.support.delivery.memory_sinks import FAULTS, PlainSink
from tests.support.delivery.reference import Spec
from tests.support.delivery.world import CHANGED, Plan, World

KEYS = [f"k{number}" for number in range(6)]
# A run that dies before it can record its doubt is what the promise names as left over.
DEADLY = [point for point in FAULT_POINTS if point != "lease.lost"]


def settle(world: World, keys: Sequence[str] = KEYS, *, retry_now: bool = True) -> list[str]:
    """Let every run end, run once without faults, and say what is wrong; what somebody else changed is repaired after that.

    Args:
        retry_now: parked rows are sent, too; if not, so much time passes that no other row waits.
    """
    while world.sleeping:
        world.wake(0)
    parked = clean_run(world, retry_now=retry_now)
    wrong = world.wrong([key for key in keys if key not in parked | world.changed_there])
    if not wrong and world.changed_there - parked:
        world.ask("reconcile")
        parked = clean_run(world, retry_now=retry_now)
        wrong = world.wrong([key for key in keys if key not in parked])
    return wrong


def clean_run(world: World, *, retry_now: bool) -> set[str]:
    """Push once without faults; the keys of parked rows."""
    if not retry_now:
        world.clock.sleep(LONGEST_WAIT.total_seconds())
    actor = world.push(Plan(retry_now=retry_now))
    assert actor.result is not None
    left = world.ledger.read("s").undelivered
    assert actor.result.status in (("succeeded", "idle", "partial") if left else ("succeeded", "idle"))
    assert all(row.outcome == PARKED for row in left.values())
    return {*left}


@dataclass(frozen=True)
class Bias:
    """Where a search looks: the faults of rows, how runs end and where, how often the changelog is pruned, and tasks are slow.

    Attributes:
        changes: most rows that a snapshot changes.
        batch_rows: fewest and most.
        scattered: how often tasks share buckets.
        asked: how often there is an operation, and somebody else changes a row of ours.
        parked: how often a minute passes, and the last push sends no parked row.
        specs: how often filter or mapping change. A change of another spec has another id, and again the first one if that comes back.
    """

    faults: tuple[str, ...] = FAULTS[:4]
    thens: tuple[str, ...] = ("killed", "interrupted", "asleep")
    points: tuple[str, ...] = ("batch.before", "batch.after", "wave.delivered", *DEADLY)
    prune: float = 0.2
    often: float = 0.3
    reject_wait: int = 0
    slow: float = 0
    keys: Sequence[str] = tuple(KEYS)
    changes: int = 3
    batch_rows: tuple[int, int] = (1, 3)
    wave_rows: int = 5
    scattered: float = 0.2
    specs: float = 0.15
    asked: float = 0
    parked: float = 0


def history(
    seed: int, sink: type[PlainSink], bias: Bias, seen: Callable[[World], None] = lambda world: None
) -> list[str]:
    """Play one random history, and say what is wrong after it."""
    rnd = random.Random(seed)
    world = World(sink, [key for key in bias.keys if rnd.random() < 0.4])
    for _ in range(rnd.randint(3, 12)):
        if rnd.random() < 0.7:
            some = rnd.sample(bias.keys, rnd.randint(0, bias.changes))
            world.capture({key: rnd.choice([None, *range(20)]) for key in some})
        if rnd.random() < 0.25:
            world.revert(rnd.randint(1, 3))
        if rnd.random() < bias.specs:
            world.use(Spec(rnd.choice([None, 2, 3, 5]), rnd.choice([1, 2])))
        wake_one(rnd, world, 0.4)
        if rnd.random() < bias.asked:
            world.change_there(rnd.choice(bias.keys), rnd.choice([None, CHANGED]))
        if rnd.random() < bias.asked:
            world.ask(rnd.choice(["resync", "reconcile"]), lambda: wake_one(rnd, world, 0.5))
        if rnd.random() < bias.parked:
            world.clock.sleep(60)
        if rnd.random() < 0.7:
            world.push(random_plan(rnd, bias), lease_expires=rnd.random() < 0.6)
        if rnd.random() < bias.prune:
            world.prune()
    wrong = settle(world, bias.keys, retry_now=rnd.random() >= bias.parked)
    seen(world)
    return wrong


def wake_one(rnd: random.Random, world: World, often: float) -> None:
    if world.sleeping and rnd.random() < often:
        world.wake(rnd.randrange(len(world.sleeping)))


def random_plan(rnd: random.Random, bias: Bias) -> Plan:
    plan = Plan(
        script={key: rnd.choices(bias.faults, k=rnd.randint(1, 3)) for key in bias.keys if rnd.random() < bias.often},
        atomic=rnd.random() < 0.3,
        batch_rows=rnd.randint(*bias.batch_rows),
        wave_rows=rnd.randint(1, bias.wave_rows),
        reject_wait=bias.reject_wait,
        tasks=rnd.choice([0, 0, 2]),
        whole_buckets=rnd.random() >= bias.scattered,
        lost_attempts=rnd.random() < 0.3,
        most_listed=rnd.choice([0, 10_000]),
        full_load=rnd.random() < 0.3,
    )
    if rnd.random() < 0.2:
        plan.script["swap"] = [rnd.choice(["unknown_applied", "unknown_lost"])]
    if bias.slow and rnd.random() < bias.slow:
        # A lease is over after a few rows, or in the middle of a request.
        plan = replace(
            plan, tasks=2, row_seconds=rnd.choice([150, 400, 800]), most_listed=rnd.choice([0, 1, 2, 10_000])
        )
    if rnd.random() < 0.5:
        plan = replace(plan, at=(rnd.choice(bias.points), rnd.choice([1, 1, 2])), then=rnd.choice(bias.thens))
    return plan


def ends_wrong(seed: int, sink: type[PlainSink], bias: Bias) -> bool:
    """Only a wrong destination counts: a history in which the broken rule makes the code itself fail proves little."""
    try:
        return history(seed, sink, bias) != []
    except (AssertionError, ValueError, KeyError):
        return False
