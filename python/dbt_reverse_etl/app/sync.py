"""One sync: its state, its head and its sink, and what a push, a plan or a reconcile does with them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from dbt_reverse_etl.app.guards import asks_for_visible_rows, check_guards, failed_tests, violations
from dbt_reverse_etl.app.identity import Former, former_of, id_of, left_elsewhere, renamed
from dbt_reverse_etl.app.keys import stored_key
from dbt_reverse_etl.app.operations import carry_out
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.tasks import task_of
from dbt_reverse_etl.app.versions import newer_macros
from dbt_reverse_etl.base import owner
from dbt_reverse_etl.base.errors import ExitCode, PositionLost, Problem, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.clock import Clock, SystemClock
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import NOT_WELL, Claim, Range, RunStarted
from dbt_reverse_etl.delivery.fault_points import Step, no_step
from dbt_reverse_etl.delivery.health import Health, Standing, exit_code, explained, health, reached_its_end, standing
from dbt_reverse_etl.delivery.lost import remaining, why_lost
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports, Remote, RunResult, Source, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Bound, Watch, Watches
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.sinks.base import Mode, Sink, SinkTask, SparkSink
from dbt_reverse_etl.warehouse.executors import Executors, starts_tasks_twice
from dbt_reverse_etl.warehouse.head import Head, full_image, read_head, visible_rows
from dbt_reverse_etl.warehouse.held import History, Others, others, pruned_note
from dbt_reverse_etl.warehouse.ledger import DeltaLedger, Overview
from dbt_reverse_etl.warehouse.marks import name_ledger
from dbt_reverse_etl.warehouse.pending import Pending, PendingRows
from dbt_reverse_etl.warehouse.spec import Spec, given_spec, resolve
from dbt_reverse_etl.warehouse.whole_push import WholePush, one_wave

__all__ = ["Known", "OneSync", "Report", "Shared"]


@dataclass(frozen=True)
class Known:
    """The head of a changelog as the model's own result told it, so that a sync at rest asks nothing.

    Attributes:
        capture: uuid of the capture that made it, where that is known.
    """

    snapshot: int
    changelog: str
    capture: str = ""


_UNKNOWN = Known(0, "")


@dataclass
class Shared:
    """What all syncs of one push share.

    Attributes:
        overrides: see `guards.check_guards`.
        known: by unique id of the changelog model.
        resolved: all syncs of the project.
        reached: snapshots to which positions and claims in the ledger refer.
        project_dir: where files stand that a sync's options name.
        interrupt: once it is set, every push ends after the requests that are under way.
        step: called at each fault point.
        watch: hears the numbers of each run while it is under way.
    """

    spark: SparkSession
    ledger: DeltaLedger
    policy: Policy = field(default_factory=Policy)
    clock: Clock = field(default_factory=SystemClock)
    invocation_id: str = ""
    overrides: Sequence[str] = ()
    known: Mapping[str, Known] = field(default_factory=dict)
    resolved: Sequence[ResolvedSync] = ()
    reached: frozenset[int] = frozenset()
    project_dir: Path | None = None
    interrupt: threading.Event = field(default_factory=threading.Event)
    step: Step = no_step
    watch: Watch = field(default_factory=Watches)
    _heads: dict[tuple[str, int | None], Head | None] = field(default_factory=dict)

    @apart
    def head(self, relation: str, snapshot: int | None = None) -> Head | None:
        """The head of a changelog, or what was its head at a snapshot; asked once a push, for all syncs."""
        if (relation, snapshot) not in self._heads:
            head = self._heads[relation, snapshot] = read_head(self.spark, relation, snapshot, self.reached)
            if head is not None:
                self._heads[relation, head.snapshot] = head
        return self._heads[relation, snapshot]


class OneSync:
    """One sync, joined with its state and its head."""

    def __init__(self, shared: Shared, resolved: ResolvedSync, overview: Overview) -> None:
        self._shared, self._resolved, self._overview = shared, resolved, overview
        self._settings = resolved.sync.settings
        self._make_sink = partial(resolved.destination.sink, resolved.destination.settings)
        self.sink: Sink = self._make_sink()
        self.label = resolved.label
        self.id = id_of(resolved)
        self.state = overview.states.get(self.id, State())
        self._sources: list[PendingRows] = []
        self._notes: list[str] = []

    def push(self, only: str | None = None) -> Report:
        """`only`: a key as JSON; its row is sent and no other."""
        try:
            return self._push(only)
        finally:
            for source in self._sources:
                source.close()

    def _push(self, only: str | None) -> Report:
        known = self._known()
        if known is None:
            return self._without_snapshot(Status.IDLE)
        spec = self._spec(known)
        job = self._valid_job(known, spec)
        if self._is_overtaken(known, job):
            here = self._standing(self.state, self._allowed(self.state))
            return self._report(Status.IDLE, known, message="a later run has delivered more", standing=here)
        for request in self._overview.requests.get(self._resolved.sync.name, ()):
            carry_out(request, self.state, job, self._ports(spec, self._head), self._policy)
            self._begin_anew()
            job = self._job(known, spec)
        if not self.state.fence and (former := former_of(self._resolved, known.changelog, self._overview)):
            self._give_up(former, job, spec)
        moved = "" if self.state.fence else left_elsewhere(self._resolved, self._overview)
        stopped = self._stopped(spec)
        if only is not None:
            job = replace(job, only=stored_key(self._shared.spark, self._head(), self._resolved.sync.changelog, only))
        result = self._replay(known) or self._run(job, spec)
        at_head = reached_its_end(result.status) and only is None
        if only is not None and result.counts.skipped.total:
            self._note(f"held back: {result.counts.skipped.total} other rows, which the next push sends")
        allowed = self._allowed(result.state) if result.status == Status.IDLE else result.state.allowed
        here = self._standing(result.state, allowed)
        said = result.message or result.left or moved or self._nothing_matched(result) or (stopped if at_head else "")
        return self._report(
            result.status,
            known,
            exit_code=ExitCode.OTHER_CHANGELOG if result.left and at_head else exit_code(result.status, here.health),
            counts=result.counts,
            planned=result.planned,
            position=known.snapshot if at_head else self._position,
            message="; ".join(redact(note) for note in [said, *self._notes] if note),
            standing=here,
        )

    def _report(self, status: str, known: Known, **told: Any) -> Report:
        told = {"head": known.snapshot, "position": self._position, **told}
        return Report(self._resolved.sync.name, self.label, status, **told)

    def stopped(self, status: str, message: str) -> Standing:
        """How a sync stands whose push ended with an error."""
        state = self.state
        if status == Status.FAILED:  # the run may have acknowledged waves before
            state = State()
            with suppress(Exception):  # then nobody knows what it left
                state = self._shared.ledger.read(self.id)
        return self._standing(state, 0, refused=f"{status}: {message}")

    def health(self) -> Health:
        """As its newest run left it."""
        return health(self.state, self._allowed(self.state))

    def is_behind(self) -> bool:
        """See `Pusher.is_behind`."""
        head, state = self._shared.head(self._resolved.sync.changelog.relation_name), self.state
        if head is None:
            return self._position > 0
        is_at_head = state.changelog == head.changelog and {one.snapshot for one in state.positions} == {head.snapshot}
        is_as_given = all(one.given == given_spec(self._settings) for one in self._earlier)
        return not (is_at_head and is_as_given and self.health().is_well)

    def _standing(self, state: State, allowed: int | None, **more: Any) -> Standing:
        return standing(state, allowed, self._shared.clock.now(), park_doubt=self._policy.park_doubt, **more)

    def _allowed(self, state: State) -> int | None:
        """As `RunFinished.allowed`."""
        if self._left(state):
            return NOT_WELL
        limit = self._resolved.guards.max_undelivered
        if limit is None:
            return None
        # Only a share asks how many rows there are.
        return limit.rows_of(self._visible() if limit.percent and state.undelivered else 0)

    def _left(self, state: State) -> str:
        return remaining(self._job(_UNKNOWN, None), self.sink, state.leftovers) if state.leftovers else ""

    def _visible(self) -> int:
        """Rows of the head that the sync sees."""
        head, where = self._head(), self._settings.where
        if not where:
            return head.live_rows
        return visible_rows(self._shared.spark, self._resolved.sync.changelog.relation_name, head, where)

    def _give_up(self, former: Former, job: Job, spec: Spec) -> None:
        """Forget a position under a former name, if that was asked for; else refuse to begin anew beside it."""
        names, requests = self._overview.aliases[former.sync_id], self._overview.requests
        asked = [one for name in names for one in requests.get(name, ()) if one.operation == "forget"]
        if not asked:
            raise renamed(self._resolved, former)
        task = replace(job.task, sync_id=former.sync_id, sync=former.sync)
        mark = self._head().marks.get(former.sync_id, "")
        job = replace(job, task=task, exposure=former.exposure, mark=mark)
        carry_out(asked[-1], former.state, job, self._ports(spec, self._head), self._policy)
        self._begin_anew()

    @property
    def _position(self) -> int:
        return min(place.snapshot for place in self.state.positions)

    def _is_overtaken(self, known: Known, job: Job) -> bool:
        newest = max(place.snapshot for place in self.state.positions)
        return self.state.changelog == known.changelog and known.snapshot < newest <= job.newest

    def _without_snapshot(self, status: str) -> Report:
        """A changelog that is empty: nothing was captured yet, or it was taken back to that."""
        lost = self._lost(None)
        if lost is not None:
            return self._lost_report(lost)
        here = self._standing(self.state, self.state.allowed)
        message = "the changelog has no snapshot yet"
        return Report(self._resolved.sync.name, self.label, status, message=message, standing=here)

    def _lost_report(self, lost: PositionLost) -> Report:
        message = redact(str(lost))
        here = self.stopped(lost.status, message)
        return Report(self._resolved.sync.name, self.label, lost.status, lost.exit_code, message=message, standing=here)

    def _run(self, job: Job, spec: Spec) -> RunResult:
        job = replace(job, unsure=tuple((place.lo, place.hi) for place in self._unsure(self.state, spec)))
        ports = replace(self._ports(spec, self._head), guard=self._guard, full_load=partial(self._full_load, spec))
        result = self._watched(job, ports)
        if not result.given_up:
            return result
        self._begin_anew()
        ports = replace(self._ports(spec, self._head), guard=self._guard)
        changes = self._watched(replace(job, run_id=uuid.uuid4().hex), ports)
        return replace(changes, message="; ".join(filter(None, (result.message, changes.message))))

    def _replay(self, known: Known) -> RunResult | None:
        """An event says what was before it, so those of a crashed run are sent again as they were before newer ones. None: they are."""
        claims = self.state.claims if self._settings.mode is Mode.CHANGELOG else ()
        for snapshot, spec_id in sorted({(claim.snapshot, claim.spec) for claim in claims}):
            if snapshot == known.snapshot:
                continue
            spec = Spec.of(self.state.specs[spec_id])
            ports = self._ports(spec, partial(self._head, snapshot))
            result = self._watched(self._job(Known(snapshot, known.changelog), spec), ports)
            if not reached_its_end(result.status):
                return result
            self._begin_anew()
        return None

    def _watched(self, job: Job, ports: Ports) -> RunResult:
        seen = Bound(job.task.sync, self.label, job.run_id, job.invocation_id)
        return run(job, replace(ports, progress=self._shared.watch.begin(seen)), self._policy)

    @property
    def _policy(self) -> Policy:
        policy = one_wave(self._shared.policy) if isinstance(self.sink, SparkSink) else self._shared.policy
        return policy.parking_doubt() if self._settings.on_unknown == "park" else policy

    def _begin_anew(self) -> None:
        """For another run of the same push."""
        self.sink, self.state = self._make_sink(), self._shared.ledger.read(self.id)

    def plan(self, rows: int) -> Report:
        """The pending rows by operation, and a sample of their keys."""
        known = self._known()
        if known is None:
            return self._without_snapshot("planned")
        spec = self._spec(known)
        job = self._valid_job(known, spec)
        lost = why_lost(job, self.state, self.sink)
        if lost is not None:
            return self._lost_report(lost)
        if not self.state.fence and (former := former_of(self._resolved, known.changelog, self._overview)):
            found = str(renamed(self._resolved, former))
            return Report(self._resolved.sync.name, self.label, "renamed", ExitCode.OTHER_CHANGELOG, message=found)
        source = self._source(self.state.for_spec(spec.id, spec.text), spec, self._head())
        try:
            planned = source.planned().total
            sample = source.sample(rows).to_pylist() if rows else []
        finally:
            source.close()
        shown = tuple((row["_operation"], row["_key"]) for row in sample)
        message = "; ".join(filter(None, [self._left(self.state), self._stopped(spec), *self._notes]))
        return self._report("planned", known, planned=planned, sample=shown, message=message)

    def status(self) -> dict[str, Any]:
        """Plain values."""
        state, started = self.state, self._overview.started.get(self.id)
        head, missing = self._found_head()
        lag = max(0, head.snapshot - self._position) if head else 0
        refused = missing or self._refused(head, lag)
        here = self._standing(state, 0 if refused else self._allowed(state), refused=refused, lag=lag)
        return {
            "sync": self._resolved.sync.name,
            "sync_id": self.id,
            "destination": self.label,
            "mode": self._settings.mode.value,
            "health": here.health.value,
            "reason": here.reason,
            "position": self._position,
            "head": head.snapshot if head else 0,
            "lag": lag,
            "undelivered": here.undelivered,
            "no_match": here.no_match,
            "left": [asdict(one) for one in here.left],
            "details": explained(here),
            "in_doubt": sum(row.doubt for row in state.undelivered.values()),
            "open_claims": len(state.claims),
            "last_run": (state.status if state.finished else "unfinished") if started else "never",
            "last_run_at": started.at.isoformat(timespec="seconds") if started else "",
        }

    def _found_head(self) -> tuple[Head | None, str]:
        """The head, or why a sync that has delivered has none."""
        try:
            return self._shared.head(self._resolved.sync.changelog.relation_name), ""
        except ReverseEtlError as error:
            return None, f"no changelog: {redact(str(error))}" if self.state.fence else ""

    def _refused(self, head: Head | None, lag: int) -> str:
        """Why the newest push ended before a run began, or why the next one will; empty: nothing is in its way."""
        name, changelog = self._resolved.sync.name, self._resolved.sync.changelog
        lost, version = self._lost(head), newer_macros(head.package_version, changelog.relation_name) if head else None
        if lost or version:
            return redact(f"{lost.status}: {lost}" if lost else f"other_version: {version}")
        if head and not self.state.fence and (former := former_of(self._resolved, head.changelog, self._overview)):
            return redact(f"renamed: {renamed(self._resolved, former)}")
        if refusal := self._overview.refused(name):
            return f"{refusal.status}: {refusal.message}"
        if lag and (tests := self._overview.failing.get(changelog.unique_id)):
            return f"{failed_tests(changelog.name, tests)[0]}; a push is blocked until they pass"
        left = self._left(self.state)
        return f"leftovers: {left}" if left else ""

    def _lost(self, head: Head | None) -> PositionLost | None:
        """Why the position says nothing, with this head of the changelog."""
        known = _known_by(head) if head else replace(_UNKNOWN, changelog=self.state.changelog)
        return why_lost(self._job(known, None), self.state, self.sink)

    def _known(self) -> Known | None:
        changelog = self._resolved.sync.changelog
        if changelog.unique_id in self._shared.known:
            return self._shared.known[changelog.unique_id]
        head = self._shared.head(changelog.relation_name)
        return _known_by(head) if head else None

    def _head(self, snapshot: int | None = None) -> Head:
        """What is to be delivered: the newest snapshot, or one before it."""
        changelog = self._resolved.sync.changelog
        known = self._shared.known.get(changelog.unique_id)
        head = self._shared.head(changelog.relation_name, snapshot or (known.snapshot if known else None))
        if head is None or (known and known.changelog != head.changelog):
            found = "not the snapshot that this run captured: the changelog was reset meanwhile"
            raise ReverseEtlError(Problem(changelog.relation_name, found, "one writer at a time", "run dbt again"))
        if problem := newer_macros(head.package_version, changelog.relation_name):
            raise ReverseEtlError(problem)
        return head

    def _spec(self, known: Known) -> Spec:
        """At the snapshot that was delivered last, the columns are known; otherwise the header tells them."""
        places, earlier = self.state.positions, self._earlier
        delivered = (
            self.state.changelog == known.changelog and len(places) == 1 and places[0].snapshot == known.snapshot
        )
        if delivered and earlier[0].given == given_spec(self._settings):
            return earlier[0].after(earlier)
        return resolve(self._shared.spark, self._resolved.sync, self._head().columns).after(earlier)

    def _stopped(self, spec: Spec) -> str:
        """Which fields this push stops sending, and what becomes of them."""
        names = sorted({name for one in self._earlier for name in one.names} - spec.names)
        if not names:
            return ""
        but = " where no full load replaces them" if self._settings.owns_object else ""
        return f"no longer sends {', '.join(names)}, which the model or `fields` has no more; its values at the destination stay{but}"

    @property
    def _earlier(self) -> list[Spec]:
        """The specs through which the destination got what it holds; that of the first position comes first."""
        places: tuple[Range | Claim, ...] = (*self.state.positions, *self.state.claims)
        return [Spec.of(self.state.specs[place.spec]) for place in places if place.snapshot]

    def _task(self, spec: Spec | None) -> SinkTask:
        return task_of(self._resolved, self.id, spec, self._shared.project_dir)

    def _job(self, known: Known, spec: Spec | None) -> Job:
        said, captures = self._said(known), {known.snapshot: known.capture} if known.capture else {}
        return Job(
            run_id=uuid.uuid4().hex,
            changelog=known.changelog,
            head=known.snapshot,
            spec=spec.id if spec else "",
            spec_text=spec.text if spec else "",
            task=self._task(spec),
            owner=owner.this_process(),
            invocation_id=self._shared.invocation_id,
            exposure=self._resolved.sync.position_of,
            newest=self._newest(known),
            model=self._resolved.sync.changelog.name,
            mark=said.marks.get(self.id, "") if said else "",
            captures={**captures, **(said.captures if said else {})},
            replaces=self._settings.owns_object and self.sink.full_loads,
        )

    def _newest(self, known: Known) -> int:
        """The newest snapshot; asked only where positions lie beyond what is to be delivered."""
        if self.state.reached <= known.snapshot:
            return known.snapshot
        head = self._shared.head(self._resolved.sync.changelog.relation_name)
        return max(known.snapshot, head.snapshot) if head and head.changelog == known.changelog else known.snapshot

    def _said(self, known: Known) -> Head | None:
        """The head, for what it says of ledger and snapshots; not asked where a sync is at rest."""
        at_rest = {place.snapshot for place in self.state.positions} == {known.snapshot}
        if not known.snapshot or (at_rest and self.state.changelog == known.changelog):
            return None
        return self._shared.head(self._resolved.sync.changelog.relation_name, known.snapshot)

    def _name_ledger(self, started: RunStarted) -> None:
        relation = self._resolved.sync.changelog.relation_name
        self._note(name_ledger(self._shared.spark, relation, self._head(), started.sync_id, started.mark))

    def _note(self, text: str) -> None:
        self._notes += [text] if text and text not in self._notes else []

    def _valid_job(self, known: Known, spec: Spec) -> Job:
        job = self._job(known, spec)
        self.sink.validate(replace(job.task, full_load=self._settings.owns_object))
        return job

    def _ports(self, spec: Spec, head: Callable[[], Head]) -> Ports:
        def source_for(state: State) -> PendingRows:
            return self._kept(self._source(state, spec, head()))

        shared = self._shared
        return Ports(
            _Prefetched(shared.ledger, self.state, self._name_ledger),
            source_for,
            self.sink,
            shared.clock,
            owner_alive=owner.is_alive,
            step=shared.step,
            interrupted=shared.interrupt.is_set,
            executors=self._remote,
            allowed=self._allowed,
        )

    @property
    def _remote(self) -> Callable[[Any], Remote] | None:
        """What sends where the rows are; None: they come to the driver."""
        if is_remote():
            return None
        shared, sink = self._shared, self.sink
        if isinstance(sink, SparkSink):
            return lambda source: WholePush(source, sink, self._make_sink, shared.policy)
        if sink.distributable and not starts_tasks_twice(shared.spark):
            return lambda source: Executors(shared.spark, source, sink, self._make_sink, shared.policy)
        return None

    def _kept(self, source: PendingRows) -> PendingRows:
        self._sources.append(source)
        return source

    def _full_load(self, spec: Spec, changes: Source, state: State) -> PendingRows | None:
        """Where most rows changed it costs less to replace them all. Rows that are known to be refused would not be replaced."""
        owned = self._settings.owns_object and self.sink.full_loads
        if not owned or state.claims or state.undelivered:
            return None
        head = self._head()
        few = changes.planned().total.total <= self._settings.full_load_above.rows_of(head.live_rows)
        if few and not state.leftovers:
            return None
        return self._kept(self._source(State().for_spec(spec.id, spec.text), spec, head))

    def _source(self, state: State, spec: Spec, head: Head) -> PendingRows:
        modes = {place: Spec.of(state.specs[place.spec]).mode for place in state.positions}
        unsure = tuple(
            Claim("mode", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
            for place in self._unsure(state, spec)
        )
        deletes = spec.mode.deletes and any(not mode.deletes and place.snapshot for place, mode in modes.items())
        kept = self._kept_rows(head, spec) if deletes else None
        shared_by = self._others(head).filters if spec.mode.deletes else ()
        state = replace(state, claims=state.claims + unsure)
        relation = self._resolved.sync.changelog.relation_name
        extra = self.sink.extra_columns(self._task(spec))
        pending = Pending(relation, head, self.id, spec.id, spec, state, kept, extra=extra, shared_by=shared_by)
        if (at := pending.needs_base) is not None:
            pending = replace(pending, older_base=full_image(self._shared.spark, relation, at))
        return PendingRows(self._shared.spark, pending)

    def _history(self, head: Head) -> History:
        shared, relation = self._shared, self._resolved.sync.changelog.relation_name
        return History(shared.spark, shared.ledger, relation, head, self.id, self.state.known_from)

    def _kept_rows(self, head: Head, spec: Spec) -> str:
        """What an earlier mode delivered and did not delete."""
        history = self._history(head)
        self._note(
            pruned_note(history.pruned_up_to(), "nobody knows which rows that left the model before were delivered")
        )
        return history.held_view(spec)

    def _others(self, head: Head) -> Others:
        return others(self._shared.spark, self._resolved, self._shared.resolved, head.columns)

    @staticmethod
    def _unsure(state: State, spec: Spec) -> list[Range]:
        """Ranges of which it is not known what the destination holds: updates were not sent in insert_only, and some fields not for a while."""
        earlier = ((place, Spec.of(state.specs[place.spec])) for place in state.positions if place.snapshot)
        return [place for place, one in earlier if one.mode is Mode.INSERT_ONLY is not spec.mode or spec.resumes(one)]

    def _guard(self, planned: PerOperation, state: State) -> str:
        if not planned.total:
            return ""
        changelog, head, guards = self._resolved.sync.changelog, self._head(), self._resolved.guards
        visible = self._visible() if asks_for_visible_rows(guards, planned) else head.live_rows
        found = failed_tests(changelog.name, self._overview.failing.get(changelog.unique_id, ()))
        found += violations(guards, planned, visible, first=any(place.snapshot == 0 for place in state.positions))
        return check_guards(self._resolved.sync.name, found, planned, head.snapshot, self._shared.overrides)

    def _nothing_matched(self, result: RunResult) -> str:
        """Once: a wrong object or key looks like that."""
        counts = result.counts
        if not (self.state.first and counts.no_match.total and counts.no_match == counts.planned):
            return ""
        return "the destination has none of these rows: if that is not what you expect, look at object, fields and key"


class _Prefetched:
    """The ledger, but for the first read, which one query answered for all syncs. A run that started since then holds the next
    fence, so that this one cannot start. `began` hears of each start.
    """

    def __init__(self, ledger: DeltaLedger, state: State, began: Callable[[RunStarted], None]) -> None:
        self._ledger, self._state, self._began = ledger, state, began
        self.append, self.fence, self.restored_at = ledger.append, ledger.fence, ledger.restored_at

    def start(self, started: RunStarted) -> State | None:
        """As the ledger's."""
        before = self._ledger.start(started)
        if before is not None:
            self._began(started)
        return before

    def read(self, sync_id: str, fence: int | None = None) -> State:
        """As the ledger's."""
        return self._state if fence is None else self._ledger.read(sync_id, fence)


def _known_by(head: Head) -> Known:
    return Known(head.snapshot, head.changelog, head.captures.get(head.snapshot, ""))
