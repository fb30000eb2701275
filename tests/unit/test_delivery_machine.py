"""The real run, engine and fold against random histories: one clean run later, the destination is the model.

Then each rule of `position.py` is switched off, and a bounded search must find a history that ends wrong.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import reference
from delivery_world import FAULTS, Killed, PlainSink, Plan, TransactionalSink, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reference import DictSource, Planned, Spec, bucket

from dbt_reverse_etl.delivery import position, run
from dbt_reverse_etl.delivery.facts import Undelivered
from dbt_reverse_etl.delivery.fault_points import FAULT_POINTS
from dbt_reverse_etl.outcome import Outcome

KEYS = [f"k{number}" for number in range(6)]
# A run that dies before it can record its doubt is what the promise names as left over.
DEADLY = [point for point in FAULT_POINTS if point != "lease.lost"]

keys = st.sampled_from(KEYS)
specs = st.builds(Spec, st.sampled_from([None, 2, 3, 5]), st.sampled_from([1, 2]))
scripts = st.dictionaries(keys, st.lists(st.sampled_from(FAULTS), min_size=1, max_size=3), max_size=3)
plans = st.builds(
    Plan,
    script=scripts,
    atomic=st.booleans(),
    batch_rows=st.integers(1, 3),
    wave_rows=st.integers(1, 4),
    breaker=st.booleans(),
    reject_wait=st.sampled_from([0, 60]),
    retry_now=st.booleans(),
)
times = st.integers(1, 3)


class DeliveryMachine(RuleBasedStateMachine):
    """Captures, runs with faults, deaths, sleep, pruning; at the end every sleeping run wakes, and one run is clean."""

    sink: type[PlainSink] = PlainSink

    @initialize(foreign=st.sets(keys))
    def begin(self, foreign: set[str]) -> None:
        self.world = World(self.sink, sorted(foreign))

    @rule(changes=st.dictionaries(keys, st.none() | st.integers(0, 19), max_size=3))
    def capture(self, changes: dict[str, int | None]) -> None:
        self.world.capture(changes)

    @rule(steps=st.integers(1, 3))
    def revert(self, steps: int) -> None:
        self.world.revert(steps)

    @rule(spec=specs)
    def change_filter_or_mapping(self, spec: Spec) -> None:
        self.world.use(spec)

    @rule(plan=plans)
    def push(self, plan: Plan) -> None:
        self.world.push(plan)

    @rule(plan=plans, point=st.sampled_from(DEADLY), nth=times, then=st.sampled_from(["killed", "interrupted"]))
    def push_that_ends_early(self, plan: Plan, point: str, nth: int, then: str) -> None:
        self.world.push(replace(plan, at=(point, nth), then=then))

    @rule(plan=plans, point=st.sampled_from(FAULT_POINTS), nth=times, lease_expires=st.booleans())
    def push_that_falls_asleep(self, plan: Plan, point: str, nth: int, lease_expires: bool) -> None:
        self.world.push(replace(plan, at=(point, nth), then="asleep"), lease_expires=lease_expires)

    @precondition(lambda self: self.world.sleeping)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        self.world.wake(data.draw(st.integers(0, len(self.world.sleeping) - 1)))

    @rule(seconds=st.sampled_from([30, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.sleep(seconds)

    @rule()
    def prune(self) -> None:
        self.world.prune()

    @invariant()
    def the_ledger_balances(self) -> None:
        assert not self.world.unbalanced()

    @invariant()
    def older_facts_change_nothing(self) -> None:
        assert position.fold(self.world.ledger.facts) == self.world.ledger.read("s")

    @invariant()
    def only_what_may_be_ours_is_deleted(self) -> None:
        assert not self.world.wrongly_deleted()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            assert settle(self.world) == []


class TransactionalMachine(DeliveryMachine):
    """The same against a sink that keeps its own records under a fence."""

    sink = TransactionalSink


MACHINE = settings(max_examples=250, stateful_step_count=25, deadline=None, derandomize=False, print_blob=True)
TestAPlainSinkConverges = DeliveryMachine.TestCase
TestAPlainSinkConverges.settings = MACHINE
TestATransactionalSinkConverges = TransactionalMachine.TestCase
TestATransactionalSinkConverges.settings = MACHINE


def settle(world: World) -> list[str]:
    """Let every run end, run once without faults, and say what is wrong."""
    while world.sleeping:
        world.wake(0)
    actor = world.push(Plan(retry_now=True))
    assert actor.result is not None
    assert actor.result.status in ("succeeded", "idle")
    return world.wrong(KEYS)


# --- random histories, quick enough to search for a history that ends wrong


@dataclass(frozen=True)
class Bias:
    """Where a search looks: the faults of rows, how runs end and where, how often the changelog is pruned."""

    faults: tuple[str, ...] = FAULTS[:4]
    thens: tuple[str, ...] = ("killed", "interrupted", "asleep")
    points: tuple[str, ...] = ("batch.before", "batch.after", "wave.delivered", *DEADLY)
    prune: float = 0.2
    often: float = 0.3
    reject_wait: int = 0


def history(
    seed: int, sink: type[PlainSink], bias: Bias, seen: Callable[[World], None] = lambda world: None
) -> list[str]:
    """Play one random history, and say what is wrong after it."""
    rnd = random.Random(seed)
    world = World(sink, [key for key in KEYS if rnd.random() < 0.4])
    for _ in range(rnd.randint(3, 12)):
        if rnd.random() < 0.7:
            world.capture({key: rnd.choice([None, *range(20)]) for key in rnd.sample(KEYS, rnd.randint(0, 3))})
        if rnd.random() < 0.25:
            world.revert(rnd.randint(1, 3))
        if rnd.random() < 0.15:
            world.use(Spec(rnd.choice([None, 2, 3, 5]), rnd.choice([1, 2])))
        if world.sleeping and rnd.random() < 0.4:
            world.wake(rnd.randrange(len(world.sleeping)))
        if rnd.random() < 0.7:
            world.push(random_plan(rnd, bias), lease_expires=rnd.random() < 0.6)
        if rnd.random() < bias.prune:
            world.prune()
    wrong = settle(world)
    seen(world)
    return wrong


def random_plan(rnd: random.Random, bias: Bias) -> Plan:
    plan = Plan(
        script={key: rnd.choices(bias.faults, k=rnd.randint(1, 3)) for key in KEYS if rnd.random() < bias.often},
        atomic=rnd.random() < 0.3,
        batch_rows=rnd.randint(1, 3),
        wave_rows=rnd.randint(1, 5),
        reject_wait=bias.reject_wait,
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


# --- each rule switched off


def before_through_the_current_spec(source: DictSource, key: str) -> int | None:
    place = next(place for place in source._state.positions if place.lo <= bucket(key) < place.hi)
    return source.projected(key, place.snapshot, source._spec.id)


real_apply, real_decide, real_failures, real_needed = (
    position.apply,
    reference.decide,
    run.not_delivered,
    position.oldest_needed,
)


def no_claims(state: position.State, fact: position.Fact) -> position.State:
    return replace(real_apply(state, fact), claims=())


def nothing_is_forced(
    before: int | None, after: int | None, claims: object = (), undelivered: Undelivered | None = None
) -> Planned | None:
    planned = real_decide(before, after, claims, undelivered)
    return None if planned is not None and planned.before_hash == after else planned


def every_doubt_may_delete(
    before: int | None, after: int | None, claims: object = (), undelivered: Undelivered | None = None
) -> Planned | None:
    planned = real_decide(before, after, claims, undelivered)
    if planned is None and after is None and (claims or undelivered):
        return Planned("delete", before, maybe=False, doubt=True)
    return planned


def only_attempted(table: object, failures: dict[int, object], *rest: object) -> list[Undelivered]:
    return real_failures(table, {row: failure for row, failure in failures.items() if failure.attempts}, *rest)


def without_abandoned_runs(state: position.State) -> int:
    return real_needed(replace(state, abandoned=()))


@dataclass(frozen=True)
class Mutation:
    rule: str
    patch: AbstractContextManager[object]
    bias: Bias = Bias()
    sink: type[PlainSink] = PlainSink


ASLEEP = Bias(thens=("asleep",), points=("batch.before",), often=0.1)
JOINING = Bias(faults=("unknown_applied", "rejected"), thens=("killed",), points=("state.read",), often=0.7)
STOPPING = Bias(faults=("fatal", "raised", "retryable"), thens=("killed",), points=("state.read",), often=0.2)
MUTATIONS = [
    Mutation("1 stored spec", mock.patch.object(DictSource, "before", before_through_the_current_spec)),
    Mutation("2 claims", mock.patch.object(position, "apply", no_claims)),
    Mutation("2 a doubt is sent even if nothing changed", mock.patch.object(reference, "decide", nothing_is_forced)),
    Mutation("3 careful deletes", mock.patch.object(reference, "decide", every_doubt_may_delete)),
    Mutation(
        "4 waiting rows are listed", mock.patch.object(run, "still_waiting", return_value=[]), Bias(reject_wait=60)
    ),
    Mutation("4 unsent rows are listed", mock.patch.object(run, "not_delivered", only_attempted), STOPPING),
    Mutation("5 outcomes join", mock.patch.object(Outcome, "then", lambda _, later: later), JOINING),
    Mutation("6 late facts doubt", mock.patch.object(run._Run, "_record_doubt"), ASLEEP),
    Mutation(
        "7 settle only closed",
        mock.patch.object(TransactionalSink, "_closed", staticmethod(lambda closed, left_out: True)),
        Bias(faults=("rejected", "retryable")),
        TransactionalSink,
    ),
    Mutation(
        "7 settle only with nothing left out",
        mock.patch.object(TransactionalSink, "_closed", staticmethod(lambda closed, left_out: closed)),
        Bias(faults=("rejected",), thens=("killed",), points=("batch.after", "wave.delivered"), often=0.5),
        TransactionalSink,
    ),
    Mutation(
        "8 pruning keeps positions",
        mock.patch.object(position, "oldest_needed", lambda state: state.head),
        Bias(prune=0.5),
    ),
    Mutation(
        "8 pruning keeps claims and unfinished runs",
        mock.patch.object(position, "oldest_needed", lambda state: min(place.snapshot for place in state.positions)),
        replace(ASLEEP, prune=0.7),
    ),
    Mutation(
        "8 pruning keeps runs that may still be asleep",
        mock.patch.object(position, "oldest_needed", without_abandoned_runs),
        replace(ASLEEP, prune=0.7),
    ),
]
BOUND = 1500  # histories


@pytest.mark.parametrize("mutation", [pytest.param(mutation, id=mutation.rule) for mutation in MUTATIONS])
def test_without_the_rule_a_history_ends_wrong_that_ends_well_with_it(mutation: Mutation) -> None:
    start = random.SystemRandom().randrange(10**9)
    with mutation.patch:
        seeds = range(start, start + BOUND)
        found = next((seed for seed in seeds if ends_wrong(seed, mutation.sink, mutation.bias)), None)
    assert found is not None, f"no counterexample from seed {start} on: the rule is not needed, or not tested"
    assert history(found, mutation.sink, mutation.bias) == [], f"seed {found}"


# A plain sink has nothing to settle (but see the last test), a transactional one refuses late requests by its fence.
SINKS = [(PlainSink, {"claims.settled", "claims.recorded"}), (TransactionalSink, {"doubt.recorded"})]


@pytest.mark.parametrize(("sink", "never"), SINKS)
def test_random_histories_end_well_and_come_by_every_fault_point(sink: type[PlainSink], never: set[str]) -> None:
    start = random.SystemRandom().randrange(10**9)
    reached: set[str] = set()
    for seed in range(start, start + 300):
        wrong = history(seed, sink, Bias(), lambda world: reached.update(*(actor.reached for actor in world.actors)))
        assert wrong == [], f"seed {seed}"
    # A search that never gets anywhere proves nothing.
    assert reached | never == set(FAULT_POINTS)


@pytest.mark.parametrize("point", DEADLY)
def test_a_run_can_be_killed_at_every_fault_point(point: str) -> None:
    assert any([killed_at(point, sink, seed) for sink in (PlainSink, TransactionalSink) for seed in range(12)])


def killed_at(point: str, sink: type[PlainSink], seed: int) -> bool:
    """Kill a run, or one that took over from it, at the point; whether they came that far. The end must be right."""
    rnd = random.Random(seed)
    world = World(sink, [key for key in KEYS if rnd.random() < 0.4])
    world.capture({key: rnd.randrange(20) for key in KEYS})
    # Of the runs that were taken over, only one that has recorded its doubt may die.
    dies = (point, 1) if point == "doubt.recorded" else None
    world.push(Plan(at=("batch.after", 1 + seed % 3), then="asleep" if seed % 2 else "killed", dies=dies))
    world.capture({key: rnd.choice([None, *range(20)]) for key in KEYS[:3]})
    world.push(Plan(at=(point, 1)))
    world.revert(2)
    while world.sleeping:
        world.wake(0)
    assert settle(world) == []
    return any(isinstance(actor.error, Killed) and point in actor.reached for actor in world.actors[:2])


def steps_of_the_code() -> set[str]:
    """The names in every call of a step, wherever it is made."""
    folder = Path(run.__file__).parent
    calls = [node for file in folder.glob("*.py") for node in ast.walk(ast.parse(file.read_text())) if is_step(node)]
    return {ast.literal_eval(call.args[0]) for call in calls}


def is_step(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("step", "_step")


def test_no_step_has_a_name_that_is_not_a_fault_point() -> None:
    assert steps_of_the_code() == set(FAULT_POINTS)


@pytest.mark.parametrize("rereads", [True, False], ids=["as it is", "without reading the fence before once more"])
def test_a_claim_that_was_recorded_while_the_next_run_planned_is_not_lost(
    rereads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not rereads:
        monkeypatch.setattr(run._Run, "_late_claims", lambda _: ())
    world = World(PlainSink)
    world.capture({"k0": 1, "k1": 6})
    world.push(Plan())
    world.capture({"k0": 2, "k1": 8})
    first = Plan(at=("batch.before", 1), then="asleep", dies=("batch.after", 2), wave_rows=1)
    world.push(first)
    world.capture({"k1": 6})
    # It is taken for dead, sends its second wave, and only then dies.
    world.push(Plan(at=("run.planned", 1), then="asleep"), lease_expires=False)
    world.wake(0)
    world.wake(0)
    assert (settle(world) == []) is rereads
