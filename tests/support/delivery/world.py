"""A small world for the real run: an in-memory ledger, dict images, a clock, runs that die, sleep and wake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa

from dbt_reverse_etl.app.operations import carry_out, deliver_again
from dbt_reverse_etl.app.reconcile import Differences, undelivered_of
from dbt_reverse_etl.base.errors import DestinationError, SyncBusy
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.delivery import position
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import Claim, Fact, RunFinished, RunStarted, WaveAcknowledged
from dbt_reverse_etl.delivery.policy import Policy, Rejections
from dbt_reverse_etl.delivery.ports import Job, Ports, RunResult, Source
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.sending import NOTHING_SENT, Sent
from dbt_reverse_etl.delivery.streams import Stripes
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch, Mode, SinkTask
from dbt_reverse_etl.warehouse.executors import _MARGIN, Work, after_a_lost_attempt
from dbt_reverse_etl.warehouse.overview import Request
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.compared import differing
from tests.support.delivery.memory_sinks import Destination, PlainSink, Script
from tests.support.delivery.reference import BIN, SCHEMA, Changelog, DictSource, Image, PrunedError, Spec

FOREIGN = -1  # the value of a row that somebody else put into the destination
CHANGED = -2  # the value that somebody else gives a row of ours


class Killed(BaseException):
    """The process ends here; nothing may catch it."""


class MemoryLedger:
    """One list of facts; the start of a run is atomic on its fence."""

    def __init__(self, seen: Callable[[Fact], None] = lambda fact: None) -> None:
        self.facts: list[Fact] = []
        self._seen = seen
        self.restored: datetime | None = None

    def read(self, sync_id: str, fence: int | None = None) -> State:
        wanted = self.fence(sync_id) if fence is None else fence
        return position.fold(fact for fact in self.facts if fact.sync_id == sync_id and fact.fence == wanted)

    def start(self, started: RunStarted, before: State | None = None) -> State | None:
        """`before`: what was read before, which the ledger of the warehouse need not read again."""
        if started.fence <= self.fence(started.sync_id):
            return None
        self.append(started)
        return self.read(started.sync_id, started.fence - 1)

    def append(self, *facts: Fact) -> None:
        for fact in facts:
            self._seen(fact)
            self.facts.append(fact)

    def restored_at(self, since: datetime) -> datetime | None:
        return self.restored if self.restored and self.restored >= since else None

    def fence(self, sync_id: str) -> int:
        return max((f.fence for f in self.facts if isinstance(f, RunStarted) and f.sync_id == sync_id), default=0)


@dataclass
class Plan:
    """How one run goes.

    Attributes:
        script: what the sink does to each attempt of a row.
        at: the fault point, and at its which occurrence something happens.
        then: what happens there: `killed`, `interrupted` or `asleep`.
        dies: the fault point, and its which occurrence, at which a run that slept is killed after all.
    """

    script: Script = field(default_factory=dict)
    at: tuple[str, int] | None = None
    then: str = "killed"
    dies: tuple[str, int] | None = None
    atomic: bool = False
    batch_rows: int = 2
    wave_rows: int = 3
    breaker: bool = False
    reject_wait: int = 0  # seconds until a rejected row is tried again
    retry_now: bool = False
    tasks: int = 0  # that send a wave from executors; 0: the driver sends it
    whole_buckets: bool = True  # each task has all rows of the buckets that it has
    row_seconds: float = 0  # that each row takes them
    lost_attempts: bool = False  # the first attempt of each task is lost after it has sent its rows
    most_listed: int = 10_000
    full_load: bool = False


class Actor:
    """One run in a thread of its own, which may fall asleep at a fault point and wake up much later."""

    def __init__(self, name: str, plan: Plan, body: Callable[[Actor], RunResult]) -> None:
        self.name, self._plan, self._body = name, plan, body
        self._seen: dict[str, int] = {}
        self.reached: set[str] = set()
        self._turn, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.result: RunResult | None = None
        self.error: BaseException | None = None
        self.asleep = self._woken = self.interrupted = False

    def start(self) -> None:
        """Run until the end or until it falls asleep."""
        if self._plan.at is not None and self._plan.then == "asleep":
            self._thread.start()
            self._turn.wait()
        else:
            self._run()
        self._raise()

    def wake(self) -> None:
        """Let it run to its end."""
        self.asleep, self._woken = False, True
        self._wake.set()
        self._thread.join()
        self._raise()

    def step(self, name: str) -> None:
        self._seen[name] = self._seen.get(name, 0) + 1
        self.reached.add(name)
        if self._woken and self._plan.dies == (name, self._seen[name]):
            raise Killed
        if self._plan.at != (name, self._seen[name]):
            return
        if self._plan.then == "killed":
            raise Killed
        if self._plan.then == "interrupted":
            self.interrupted = True
            return
        self.asleep = True
        self._turn.set()
        self._wake.wait()

    def _run(self) -> None:
        try:
            self.result = self._body(self)
        except BaseException as error:
            self.error = error
        self._turn.set()

    def _raise(self) -> None:
        # A run that slept before it planned may have read a state that is long over.
        expected = (Killed, SyncBusy, DestinationError, *((PrunedError,) if self._woken else ()))
        if self.error is not None and not isinstance(self.error, expected):
            raise self.error


@dataclass(frozen=True)
class Nearby:
    """`delivery.ports.Remote` without Spark: the real work of a task, one task after the other."""

    source: Source
    sink: PlainSink
    plan: Plan
    policy: Policy
    actor: Actor
    clock: FakeClock

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        rows = self.source.wave(order.claim.lo, order.claim.hi).sort_by("_bucket")
        limits, stripes = self.sink.limits(task), Stripes(4) if self.plan.whole_buckets else None
        step = self.actor.step
        work = Work(
            self._make_sink, order, task, limits, self.policy, until() - _MARGIN, self.clock, step, stripes=stripes
        )
        parts = [self._part(rows, number).to_batches(max_chunksize=2) for number in range(self.plan.tasks)]
        return sum((self._attempts(work, part) for part in parts), NOTHING_SENT)

    def _part(self, rows: pa.Table, task: int) -> pa.Table:
        buckets = rows.column("_bucket").to_pylist()
        of_row = [bucket // BIN for bucket in buckets] if self.plan.whole_buckets else range(rows.num_rows)
        return rows.take(
            pa.array([row for row, part in enumerate(of_row) if part % self.plan.tasks == task], pa.int64())
        )

    def _attempts(self, work: Work, part: list[pa.RecordBatch]) -> Sent:
        if not self.plan.lost_attempts:
            return work.send(part)
        work.send(part)
        return after_a_lost_attempt(work.send(part))

    def _make_sink(self) -> PlainSink:
        made = type(self.sink)()
        made.destination, made.script = self.sink.destination, self.sink.script
        made.atomic, made.batch_rows = self.sink.atomic, self.sink.batch_rows
        deliver = made.deliver

        def slowly(batch: Batch) -> Delivery:
            self.clock.sleep(self.plan.row_seconds * batch.rows.num_rows)
            return deliver(batch)

        made.deliver = slowly  # type: ignore[method-assign]
        return made


def no_source(state: State) -> Source:
    """Of an operation, which plans nothing."""
    raise AssertionError


class World:
    """The truth, the ledger, the destination, and every run that was ever started."""

    def __init__(self, sink: type[PlainSink], foreign: Sequence[str] = ()) -> None:
        self.clock = FakeClock()
        self.changelog = Changelog()
        self.ledger = MemoryLedger(self._note)
        self.spec = Spec(5, 2)
        self.specs = {self.spec.id: self.spec}
        self.destination = Destination(rows=dict.fromkeys(foreign, FOREIGN))
        self.foreign = dict(self.destination.rows)
        self.may_be_written: set[str] = set()
        self.miscounted: list[RunResult] = []
        self.planned: list[DictSource] = []
        self.changed_there: set[str] = set()  # keys whose row somebody else changed since a reconcile compared it
        self.refused: set[str] = set()  # keys that the destination refuses in some run
        self.sleeping: list[Actor] = []
        self.actors: list[Actor] = []
        self._sink = sink
        self._sources: dict[str, DictSource] = {}
        self._alive: set[str] = set()
        self._runs = 0

    def capture(self, changes: Mapping[str, int | None]) -> None:
        image = {**self.changelog.images[-1], **changes}
        self.changelog.capture({key: value for key, value in image.items() if value is not None})

    def revert(self, steps: int) -> None:
        """A new snapshot that is as an earlier one was; only images that are still there can come back."""
        self.changelog.capture(self.changelog.images[max(self.changelog.pruned, self.changelog.head - steps)])

    def use(self, spec: Spec) -> None:
        self.spec = spec
        self.specs[spec.id] = spec

    def prune(self) -> None:
        self.changelog.prune(position.oldest_needed(self.ledger.read("s").for_spec(self.spec.id, "")))

    def push(self, plan: Plan, *, lease_expires: bool = True) -> Actor:
        """Start a run. Runs that sleep are taken over: their lease expires, or they are wrongly taken for dead."""
        if self.sleeping:
            if lease_expires:
                self.clock.sleep(Policy().lease.total_seconds())
            else:
                self._alive.clear()
        self._runs += 1
        actor = Actor(f"run{self._runs}", plan, lambda me: self._body(me, plan))
        self._alive.add(actor.name)
        self.actors.append(actor)
        self.destination.taken.clear()
        actor.start()
        if not (self._sink.transactional or plan.full_load or plan.lost_attempts) and actor.result is not None:
            self._compare_counts(actor.result)
        if actor.asleep:
            self.sleeping.append(actor)
        else:
            self._alive.discard(actor.name)
        return actor

    def change_there(self, key: str, value: int | None) -> None:
        """Somebody else gives a row of ours another value, or deletes it; nothing happens where there is none."""
        if key in self._ours():
            self.changed_there.add(key)
            del self.destination.rows[key]
            self.destination.rows |= {} if value is None else {key: value}

    def ask(self, operation: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """A `resync`, or a `reconcile` with its repair, on top of a state that was read before something happened."""
        state = self.ledger.read("s").for_spec(self.spec.id, "{}")
        self._runs += 1
        name, sink = f"asked{self._runs}", self._sink()
        sink.destination = self.destination
        job = self._job(name)
        ports = Ports(self.ledger, no_source, sink, self.clock, lambda owner: owner in self._alive)
        compared = bool(state.fence and state.finished and state.is_at(job.head, job.spec))
        found = differing(self.destination.rows, self.image(), state, self.changelog, self._ours()) if compared else []
        unexplained = {one.key for one in found} - self.changed_there
        assert not unexplained, f"{unexplained} differ, and nobody changed them"
        meanwhile()
        with suppress(SyncBusy):
            if operation == "resync":
                carry_out(Request(name, "sync", operation, self.clock.now()), state, job, ports, Policy())
            elif compared:
                differences = Differences(len(self.destination.rows), {"wrong": len(found)}, found)
                deliver_again(undelivered_of(differences, "sync", self.clock.now()), state, job, ports, "")
                self.changed_there &= {*state.undelivered}

    def _ours(self) -> set[str]:
        return {key for key in self.may_be_written if self.destination.rows.get(key, FOREIGN) != FOREIGN}

    def wake(self, index: int) -> Actor:
        actor = self.sleeping.pop(index)
        actor.wake()
        self._alive.discard(actor.name)
        return actor

    def image(self) -> Image:
        """What the destination should hold of ours."""
        values = {key: self.spec.project(value) for key, value in self.changelog.images[-1].items()}
        return {key: value for key, value in values.items() if value is not None}

    def wrong(self, keys: Sequence[str]) -> list[str]:
        """After a clean run: what differs from the model, and what was done to rows that are not ours."""
        found = []
        wanted = self.image()
        for key in keys:
            have, want = self.destination.rows.get(key), wanted.get(key)
            if want is not None and have != want:
                found.append(f"{key} is {have}, not {want}")
            ours_is_gone = have is None and (key in self.may_be_written or self.destination.swaps > 0)
            if want is None and have != self.foreign.get(key) and not ours_is_gone:
                found.append(f"{key} is {have}, but not in the model")
        return found + self.wrongly_deleted()

    def wrongly_deleted(self) -> list[str]:
        return [f"{key} was deleted" for key in self.destination.deleted if key not in self.may_be_written]

    def unbalanced(self) -> list[Fact | RunResult]:
        """Counts that do not add up, or are not those of the destination."""
        ends = [fact for fact in self.ledger.facts if isinstance(fact, RunFinished)]
        waves = [fact for fact in self.ledger.facts if isinstance(fact, WaveAcknowledged)]
        wrong: list[Fact] = [end for end in ends if not end.counts.balanced or end.counts.planned != end.planned]
        return [*wrong, *(wave for wave in waves if not wave.counts.balanced), *self.miscounted]

    def _compare_counts(self, result: RunResult) -> None:
        if result.counts.delivered != PerOperation(**self.destination.taken):
            self.miscounted.append(result)

    def _body(self, actor: Actor, plan: Plan) -> RunResult:
        sink = self._sink()
        sink.destination, sink.atomic, sink.batch_rows = self.destination, plan.atomic, plan.batch_rows
        sink.script = {key: [*words] for key, words in plan.script.items()}
        self.refused |= {key for key, words in plan.script.items() if "rejected" in words}
        rejections = Rejections(first=timedelta(seconds=plan.reject_wait), attempts=2, age=timedelta(0))
        if plan.breaker:
            rejections = replace(rejections, breaker_rows=0, breaker_share=0.3)
        # Waves keep their size, so that small worlds have several.
        waves = WaveSize(plan.wave_rows, grow_below=-1)
        policy = Policy(
            waves=waves,
            executor_waves=waves,
            executors_from=0,
            rejections=rejections,
            retry_now=plan.retry_now,
            most_listed=plan.most_listed,
        )
        job = self._job(actor.name)
        spec, known = self.spec, dict(self.specs)

        def source_for(state: State) -> DictSource:
            self._sources[actor.name] = DictSource(self.changelog, state, job.head, spec, known)
            self.planned.append(self._sources[actor.name])
            return self._sources[actor.name]

        def full_load(changes: Source, state: State) -> DictSource | None:
            return (
                None
                if state.claims or state.undelivered or not plan.full_load
                else source_for(State().for_spec(spec.id, "{}"))
            )

        ports = Ports(
            self.ledger,
            source_for,
            sink,
            self.clock,
            lambda owner: owner in self._alive,
            actor.step,
            lambda: 0.5,
            interrupted=lambda: actor.interrupted,
            executors=(lambda source: Nearby(source, sink, plan, policy, actor, self.clock)) if plan.tasks else None,
            full_load=full_load,
        )
        return run(job, ports, policy)

    def _job(self, name: str) -> Job:
        task = SinkTask("s", "sync", 0, "object", Mode.MIRROR, ("key",), SCHEMA)
        return Job(name, "uuid", self.changelog.head, self.spec.id, "{}", task, owner=name)

    def _note(self, fact: Fact) -> None:
        claims: tuple[Claim, ...] = getattr(fact, "claims", ())
        for claim in claims:
            source = self._sources.get(claim.id.split("-")[0])
            rows = source.rows if source else []
            written = [r for r in rows if claim.lo <= r["_bucket"] < claim.hi and r["value"] is not None]
            self.may_be_written |= {r["key"] for r in written}
