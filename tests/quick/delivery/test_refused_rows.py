"""Rows that the destination refuses, again and again, hold no other row back, however many they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.facts import PARKED
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.sinks.base import Batch
from tests.support.delivery.desk import Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.world import Plan, World
from tests.support.effort import scaled

DAY = timedelta(days=1).total_seconds()


class Choosy(PlainSink):
    """Refuses the rows whose value it does not like, and remembers the order in which rows came."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.came: list[str] = []
        self.batch_rows = 100

    def deliver(self, batch: Batch) -> Delivery:
        rows = batch.rows.to_pylist()
        self.came += [row["key"] for row in rows]
        for row in rows:
            if row["key"] not in self.bad:
                self.destination.put(row)
        refused = [index for index, row in enumerate(rows) if row["key"] in self.bad]
        return Delivery(tuple(RowResult(index, Outcome.REJECTED, "bad address") for index in refused))


class Crm(Desk):
    """An API with 4 990 people, of whom 841 have an address that it refuses."""

    def __init__(self, people: int = 4_990, bad: int = 841) -> None:
        super().__init__(Choosy)
        self.policy = Policy()
        self.people = {f"k{number}": number for number in range(people)}
        self.bad = random.Random(7).sample(sorted(self.people), bad)
        self.api.bad = {*self.bad}
        self.push(self.people)

    @property
    def api(self) -> Choosy:
        assert isinstance(self.sink, Choosy)
        return self.sink

    def change(self, number: int, by: int = 10_000) -> set[str]:
        """So many healthy people."""
        some = random.Random(by).sample(sorted({*self.people} - self.api.bad), number)
        self.people.update({key: self.people[key] + by for key in some})
        return {*some}

    def healthy(self) -> dict[str, int]:
        return {key: value for key, value in self.people.items() if key not in self.api.bad}


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("retry", [False, True], ids=["push", "retry"])
def test_after_the_back_off_healthy_rows_that_changed_are_all_delivered_and_come_before_those_that_are_refused(
    retry: bool,
) -> None:
    crm = Crm()
    assert crm.sink.destination.rows == crm.healthy()
    crm.clock.sleep(600)
    changed, crm.api.came = crm.change(49), []
    gone = [key for key in sorted(crm.healthy()) if key not in changed][:5]
    for key in gone:
        del crm.people[key]
    crm.policy = replace(crm.policy, retry_now=retry)
    result = crm.push(crm.people)
    assert (result.counts.delivered.update, result.counts.delivered.delete) == (49, 5)
    assert {*crm.api.came[:54]} == {*changed, *gone}
    assert crm.sink.destination.rows == crm.healthy()
    assert result.counts.rejected.total == 841, "an attempt of each, which counts"
    assert {row.attempts for row in crm.state().undelivered.values()} == {2}


@pytest.mark.guarantee("Refusals and outages")
def test_rows_that_are_refused_for_a_day_are_parked_and_others_never_wait_for_it() -> None:
    crm = Crm(1_000, 400)
    for hour in range(60):
        crm.clock.sleep(3_600)
        crm.change(3, hour + 1)
        crm.push(crm.people)
        assert crm.sink.destination.rows == crm.healthy()
    rows = crm.state().undelivered.values()
    assert {*crm.bad} == {row.key for row in rows}
    assert {row.outcome for row in rows} == {PARKED}
    assert {row.reason for row in rows} == {"bad address"}


@pytest.mark.guarantee("Refusals and outages")
def test_rows_that_are_refused_before_the_breaker_stops_the_sync_wait_and_the_next_push_goes_on() -> None:
    crm = Crm(1_000, 0)
    crm.api.bad = {*random.Random(3).sample(sorted(crm.people), 700)}
    for key in crm.people:
        crm.people[key] += 1
    pushes = 0
    while crm.sink.destination.rows.items() & crm.healthy().items() != crm.healthy().items():
        before, crm.api.came = crm.state().undelivered, []
        result = crm.push(crm.people if not pushes else None)
        pushes += 1
        assert pushes <= 1 + 700 // 50
        assert result.status in (Status.FAILED, Status.PARTIAL)
        assert not {key for key, row in before.items() if row.attempts} & {*crm.api.came}, "they wait"
        assert all(row.next_attempt_at for row in crm.state().undelivered.values() if row.attempts)


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
@pytest.mark.parametrize("tasks", [0, 2], ids=["driver", "executors"])
def test_whatever_share_is_refused_every_other_row_is_delivered_within_some_pushes_and_they_are_parked_in_the_end(
    sink: type[PlainSink], tasks: int
) -> None:
    start = random.SystemRandom().randrange(10**9)
    for seed in range(start, start + scaled(40)):
        rnd = random.Random(seed)
        keys = [f"k{number}" for number in range(rnd.randint(5, 60))]
        share = rnd.choice([0.0, 0.05, 0.17, 0.5, 0.8, 1.0])
        bad = [key for key in keys if rnd.random() < share]
        world = World(sink)
        for _ in range(rnd.randint(1, 4)):
            world.capture({key: rnd.choice([None, *range(1, 40)]) for key in keys if rnd.random() < 0.7})
            world.push(plan(rnd, bad, tasks))
            world.clock.sleep(rnd.choice([0, 60, 7_200]))
        needed = pushes_until_delivered(world, rnd, bad, tasks)
        assert needed <= 4 + len(bad), f"seed {seed}"
        for _ in range(2 * len(bad) + 10):
            world.clock.sleep(DAY)
            world.push(plan(rnd, bad, tasks))
        left = world.ledger.read("s").undelivered
        assert {row.outcome for row in left.values()} <= {PARKED}, f"seed {seed}"
        assert {*left} <= {*bad}, f"seed {seed}"


class ByHalf(Choosy):
    """Applies a delete of what it does not like, and refuses it all the same, as a topic takes an event and not its tombstone."""

    def deliver(self, batch: Batch) -> Delivery:
        rows = batch.rows.to_pylist()
        half = tuple(i for i, row in enumerate(rows) if row["key"] in self.bad and row["_operation"] == "delete")
        self.came += [row["key"] for row in rows]
        for row in rows:
            self.destination.put(row)
        return Delivery(tuple(RowResult(i, Outcome.REJECTED, "half of it") for i in half), in_part=half)


@pytest.mark.guarantee("Refusals and outages")
def test_a_delete_that_is_refused_by_half_waits_and_a_row_that_comes_back_as_it_was_is_sent_again() -> None:
    desk = Desk(ByHalf)
    assert isinstance(desk.sink, ByHalf)
    desk.push({"k1": 1, "k2": 2})
    desk.sink.bad, desk.sink.came = {"k1"}, []
    desk.push({"k2": 2})
    for _ in range(5):
        desk.push()
    assert desk.sink.came == ["k1"], "it waits"
    assert {row.outcome for row in desk.state().undelivered.values()} == {Outcome.REJECTED}
    desk.push({"k1": 1, "k2": 2})
    assert desk.sink.destination.rows == {"k1": 1, "k2": 2}
    assert not desk.state().undelivered


def plan(rnd: random.Random, bad: Sequence[str], tasks: int) -> Plan:
    """Of a push into a destination that refuses these rows whenever they come, one alone or with its batch."""
    script = {key: ["rejected"] * 99 for key in bad}
    size = {"batch_rows": rnd.randint(1, 8), "wave_rows": rnd.choice([3, 30])}
    listed = rnd.choice([30, 10_000])
    return Plan(
        script, breaker=True, reject_wait=60, tasks=tasks, atomic=rnd.random() < 0.5, most_listed=listed, **size
    )


def pushes_until_delivered(world: World, rnd: random.Random, bad: Sequence[str], tasks: int) -> int:
    wanted = {key: value for key, value in world.image().items() if key not in bad}
    for number in range(200):
        if wanted.items() <= world.destination.rows.items() and not {*world.destination.rows} - {*wanted, *bad}:
            return number
        world.push(plan(rnd, bad, tasks))
        world.clock.sleep(30)
    raise AssertionError("some healthy rows were never delivered")
