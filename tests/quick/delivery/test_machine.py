"""The real run, engine and fold against random histories: one clean run later, the destination is the model."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dbt_reverse_etl.delivery import position, run
from dbt_reverse_etl.delivery.facts import WaveAcknowledged
from dbt_reverse_etl.delivery.gate import INTERRUPT
from tests.support.delivery.fault_points import FAULT_POINTS
from tests.support.delivery.histories import DEADLY, KEYS, Bias, history, settle
from tests.support.delivery.memory_sinks import FAULTS, PlainSink, TransactionalSink
from tests.support.delivery.reference import Spec
from tests.support.delivery.world import CHANGED, Killed, Plan, World
from tests.support.effort import scaled, until

keys = st.sampled_from(KEYS)
specs = st.builds(Spec, st.sampled_from([None, 2, 3, 5]), st.sampled_from([1, 2]))
scripts = st.dictionaries(keys | st.just("swap"), st.lists(st.sampled_from(FAULTS), min_size=1, max_size=3), max_size=3)
plans = st.builds(
    Plan,
    script=scripts,
    atomic=st.booleans(),
    batch_rows=st.integers(1, 3),
    wave_rows=st.integers(1, 4),
    breaker=st.booleans(),
    reject_wait=st.sampled_from([0, 60]),
    retry_now=st.booleans(),
    tasks=st.integers(0, 2),
    row_seconds=st.sampled_from([0, 0, 150, 400]),
    lost_attempts=st.booleans(),
    most_listed=st.sampled_from([0, 1, 10_000]),
    full_load=st.booleans(),
)
times = st.integers(1, 3)


class DeliveryMachine(RuleBasedStateMachine):
    """Captures, runs with faults, deaths, sleep, pruning; at the end every sleeping run wakes, and one run is clean."""

    sink: type[PlainSink] = PlainSink

    @initialize(foreign=st.sets(keys), retry_now=st.booleans())
    def begin(self, foreign: set[str], retry_now: bool) -> None:
        self.world, self.retry_now = World(self.sink, sorted(foreign)), retry_now

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

    @rule(key=keys, value=st.sampled_from([None, CHANGED]))
    def somebody_changes_a_row_of_ours(self, key: str, value: int | None) -> None:
        self.world.change_there(key, value)

    @rule(operation=st.sampled_from(["resync", "reconcile"]), wakes=st.booleans())
    def ask(self, operation: str, wakes: bool) -> None:
        def meanwhile() -> None:
            if wakes and self.world.sleeping:
                self.world.wake(0)

        self.world.ask(operation, meanwhile)

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
            assert settle(self.world, retry_now=self.retry_now) == []


class TransactionalMachine(DeliveryMachine):
    """The same against a sink that keeps its own records under a fence."""

    sink = TransactionalSink


MACHINE = settings(max_examples=scaled(250), stateful_step_count=25, deadline=None, derandomize=False, print_blob=True)
TestAPlainSinkConverges = DeliveryMachine.TestCase
TestAPlainSinkConverges.settings = MACHINE
TestATransactionalSinkConverges = TransactionalMachine.TestCase
TestATransactionalSinkConverges.settings = MACHINE


# A plain sink has nothing to settle (but see the last test), a transactional one refuses late requests by its fence.
SINKS = [(PlainSink, {"claims.settled", "claims.recorded"}), (TransactionalSink, {"doubt.recorded"})]


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize(("sink", "never"), SINKS)
def test_random_histories_end_well_and_come_by_every_fault_point(sink: type[PlainSink], never: set[str]) -> None:
    start = random.SystemRandom().randrange(10**9)
    reached: set[str] = set()

    def look(world: World) -> None:
        assert not world.unbalanced()
        reached.update(*(actor.reached for actor in world.actors))

    for seed in (start + number for number in until(750, lambda: reached | never == set(FAULT_POINTS))):
        wrong = history(seed, sink, Bias(asked=0.3, parked=0.3, reject_wait=60), look)
        assert wrong == [], f"seed {seed}"
    # A search that never gets anywhere proves nothing.
    assert reached | never == set(FAULT_POINTS)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_random_histories_of_tasks_that_outlive_their_lease_end_well(sink: type[PlainSink]) -> None:
    start = random.SystemRandom().randrange(10**9)
    bias, left = Bias(slow=0.6, thens=("killed", "asleep")), set[str]()
    interrupted = f"not sent: {INTERRUPT.reason}"
    for seed in (start + number for number in until(60, lambda: interrupted in left)):
        assert history(seed, sink, bias, lambda world: left.update(reasons(world))) == [], f"seed {seed}"
    assert interrupted in left


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_random_histories_of_operations_while_slow_runs_wake_end_well(sink: type[PlainSink]) -> None:
    start = random.SystemRandom().randrange(10**9)
    points = ("state.read", "run.planned", "batch.before", "batch.after", "wave.delivered")
    bias = Bias(asked=0.5, thens=("asleep",), points=points, often=0.1, specs=0.05, prune=0.05)
    for seed in range(start, start + scaled(300)):
        assert history(seed, sink, bias) == [], f"seed {seed}"


def reasons(world: World) -> set[str]:
    """Why rows were not delivered, as the ledger lists them."""
    waves = [fact for fact in world.ledger.facts if isinstance(fact, WaveAcknowledged)]
    return {row.reason for wave in waves for row in wave.undelivered}


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("point", DEADLY)
def test_a_run_can_be_killed_at_every_fault_point(point: str) -> None:
    died = sum(killed_at(point, sink, seed) for sink in (PlainSink, TransactionalSink) for seed in range(12))
    assert died


def killed_at(point: str, sink: type[PlainSink], seed: int) -> bool:
    """Kill a run, or one that took over from it, at the point; whether they came that far. The end must be right."""
    rnd = random.Random(seed)
    world = World(sink, [key for key in KEYS if rnd.random() < 0.4])
    world.capture({key: rnd.randrange(20) for key in KEYS})
    # Of the runs that were taken over, only one that has recorded its doubt may die.
    dies = (point, 1) if point == "doubt.recorded" else None
    world.push(Plan(at=("batch.after", 1 + seed % 3), then="asleep" if seed % 2 else "killed", dies=dies))
    world.capture({key: rnd.choice([None, *range(20)]) for key in KEYS[:3]})
    world.push(Plan(at=(point, 1), full_load=point == "full_load.loaded"))
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


@pytest.mark.guarantee("Crashes and claims")
def test_no_step_has_a_name_that_is_not_a_fault_point() -> None:
    assert steps_of_the_code() == set(FAULT_POINTS)
