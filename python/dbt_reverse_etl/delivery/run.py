"""One run of one sync: the only place that sequences claim, send, acknowledge.

The order of the steps carries the promises:

- a claim is in the ledger before the first request under it;
- an acknowledgement and the next wave's claim are one commit, and the lease is confirmed after it;
- claims of a crashed run are settled before anything is planned, for the plan depends on them;
- after the sync was claimed, the fence before is read once more: a run that was taken for dead may have written meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import reduce

from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.admission import refuse, rests
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS, Counts
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Heartbeat,
    RunFinished,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.gate import INTERRUPT, LeaseLost, Stop, StopKind
from dbt_reverse_etl.delivery.health import ended, reached_its_end, reasons
from dbt_reverse_etl.delivery.lease import Lease
from dbt_reverse_etl.delivery.lost import not_started, remaining
from dbt_reverse_etl.delivery.planning import Plan, as_full_load, plan
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports, RunResult, Status
from dbt_reverse_etl.delivery.position import State, abandoned_by, apply
from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.settlement import Settlement, settlement
from dbt_reverse_etl.delivery.starting import begin, late_facts, looked_back, run_started
from dbt_reverse_etl.delivery.wave_sender import WaveSender
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.base import close_quietly
from dbt_reverse_etl.sinks.ranges import coarse, singles

_NOTHING = Histogram((NO_ROWS,))
_OVERTAKEN = "another run sent rows of a newer snapshot meanwhile: the next push sends the rest"
_MOST_DOUBTS = 16  # each is a column of the query that plans the next push


def run(job: Job, ports: Ports, policy: Policy) -> RunResult:
    """Deliver what is pending.

    Raises:
        SyncBusy: another run holds the sync; nothing was written.
        PositionLost: the position belongs to another changelog or ledger; nothing was written.
        GuardBlocked: the plan does not pass the guards; nothing was sent.
        DestinationError: what earlier runs delivered has vanished; nothing was written.
        Exception: of the source, the sink's `open`, `settle`, `finish`, or the ledger; the run is recorded as failed.
    """
    state = ports.ledger.read(job.task.sync_id).for_spec(job.spec, job.spec_text)
    ports.step("state.read")
    refuse(job, ports, state, policy)
    if job.only is None and rests(job, state, policy, ports.clock.now()):
        return RunResult(Status.IDLE, state.fence, state=state, left=remaining(job, ports.sink, state.leftovers))
    return _Run(job, ports, policy, state).execute()


class _Run:
    def __init__(self, job: Job, ports: Ports, policy: Policy, state: State) -> None:
        self._job, self._ports, self._policy, self._state = job, ports, policy, state
        self._recorded = state  # what the ledger says after each fact of this run
        self._ledger, self._clock, self._step, self._sink = ports.ledger, ports.clock, ports.step, ports.sink
        self._sync_id = job.task.sync_id
        self._fence = state.fence + 1
        self._task = replace(job.task, fence=self._fence, first=state.first)
        self._seq = 0
        self._own: list[str] = []  # ids of this run's claims
        self._known = {claim.id for claim in state.claims}
        self._sent: Claim | None = None  # a request may be under way or unrecorded
        self._unrecorded: WaveAcknowledged | None = None  # of the last wave: it is recorded with the end of the run
        self._counts, self._counted_to = NO_COUNTS, 0
        self._plan: Plan | None = None
        self._given_up = False

    def execute(self) -> RunResult:
        claim = None
        if not (self._sink.transactional and self._state.claims):
            made = self._make_plan()
            if self._nothing_to_do():
                return RunResult(Status.IDLE, self._state.fence, state=self._state, left=self._left())
            self._plan = made = as_full_load(made, self._job, self._ports, self._state)
            self._task = replace(self._task, full_load=made.full_load)
            claim = self._next_claim()
        self._start(claim)
        try:
            ending = self._deliver_or_record(claim)
            return self._finish(*ending)
        except LeaseLost as lost:
            return self._leave(lost)
        finally:
            close_quietly(self._sink)

    def _deliver_or_record(self, claim: Claim | None) -> tuple[str, str]:
        try:
            return self._deliver(claim)
        except LeaseLost:
            raise
        except Exception as error:
            if self._ports.interrupted():  # a query that was cancelled
                return Status.INTERRUPTED, INTERRUPT.reason
            # The text of a foreign exception may hold row values.
            self._finish(Status.FAILED, str(error) if isinstance(error, ReverseEtlError) else type(error).__name__)
            raise

    def _make_plan(self) -> Plan:
        made = plan(self._job, self._ports, self._policy, self._state, after_crash=bool(self._known))
        self._plan, self._counted_to = made, made.first
        return made

    @property
    def _histogram(self) -> Histogram:
        return self._plan.histogram if self._plan else _NOTHING

    def _nothing_to_do(self) -> bool:
        at = ended(self._state) and self._state.is_at(self._job.head, self._job.spec)
        return at and self._histogram.total.total == 0

    def _next_claim(self, took: float | None = None) -> Claim | None:
        found = self._plan.waves.next_range(took) if self._plan else None
        if found is None:
            return None
        claim = Claim(f"{self._job.run_id}-{len(self._own)}", *found, self._job.head, self._job.spec)
        self._own.append(claim.id)
        return claim

    def _start(self, claim: Claim | None) -> None:
        state, job, now = self._state, self._job, self._clock.now()
        started = run_started(
            job,
            state,
            now,
            claims=state.claims + ((claim,) if claim else ()),
            lease_until=now + self._policy.lease,
            abandoned=abandoned_by(state, now, self._policy.abandoned_for),
            override=self._plan.override if self._plan else "",
        )
        before = begin(started, self._ledger)
        if before is None:
            raise not_started(job, self._ports, started)
        self._late = late_facts(started, state, before, transactional=self._sink.transactional)
        self._looked_back = () if self._late else looked_back(started, before)
        self._recorded = apply(state, started)
        self._lease = Lease(self._clock, self._policy.lease, started.lease_until, mine=self._mine, beat=self._beat)

    def _mine(self) -> bool:
        return self._ledger.fence(self._sync_id) == self._fence

    def _beat(self, until: datetime) -> None:
        self._ledger.append(Heartbeat(self._sync_id, self._fence, self._clock.now(), until))

    def _deliver(self, claim: Claim | None) -> tuple[str, str]:
        self._step("run.started")
        if first := self._late or self._looked_back:
            self._seq = len(first)
            self._record(*first)
            self._state = reduce(apply, first, self._state)
            self._known |= {claim.id for claim in self._state.claims}
        if self._state.reached > self._job.head:
            return Status.FAILED, _OVERTAKEN
        self._ports.progress(Number.FENCE, self._fence)
        is_planned_anew = claim is None or bool(self._late)
        if is_planned_anew:
            self._task = replace(self._task, full_load=False)  # a second plan holds changes alone
        self._task = replace(self._task, sends_all=self._state.sends_all)
        with self._lease.kept():
            self._sink.open(self._task)
            self._step("sink.opened")
            if is_planned_anew:
                claim = self._settle(claim)
        engine = Engine(
            self._sink,
            self._task,
            self._policy,
            self._clock,
            self._lease.held,
            step=self._step,
            random=self._ports.random,
            interrupted=self._ports.interrupted,
            alone=not self._task.full_load,
            progress=self._ports.progress,
        )
        made = self._plan or self._make_plan()
        sender = WaveSender(
            self._job, self._ports, self._policy, self._state, self._task, engine, self._lease, made, self._begin
        )
        while claim is not None:
            if self._ports.interrupted():
                return Status.INTERRUPTED, INTERRUPT.reason
            claim, stopped = self._deliver_wave(sender, claim)
            if stopped is not None:
                return stopped
        self._step("waves.done")
        with self._lease.kept():
            self._sink.finish(self._sent.id if self._sent else "", complete=self._is_complete())
        self._step("sink.finished")
        left = self._left()
        return (Status.SUCCEEDED if self._counts.complete and not left else Status.PARTIAL), left

    def _is_complete(self) -> bool:
        state = self._reached()
        return state.is_at(self._job.head, self._job.spec) and not state.undelivered

    def _reached(self) -> State:
        """What the ledger will say once the last wave is in it."""
        return apply(self._recorded, self._unrecorded) if self._unrecorded else self._recorded

    def _left(self) -> str:
        return "" if self._task.full_load else remaining(self._job, self._sink, self._state.leftovers)

    def _begin(self, claim: Claim) -> None:
        self._sent = claim

    def _settle(self, unsent: Claim | None) -> Claim | None:
        """Record what became of the open claims, plan on top of it, and claim the first wave; one commit."""
        known = self._ask_sink(self._state.claims) if self._sink.transactional else Settlement()
        closes = known.closes + ((unsent.id,) if unsent else ())
        settled = ClaimsSettled(*self._next_head(), known.delivered, closes, known.in_doubt, self._state.specs)
        self._step("claims.settled")
        self._state = apply(self._state, settled)
        self._make_plan()
        claim = self._next_claim()
        first = (claim,) if claim else ()
        self._record(replace(settled, claims=known.in_doubt + first))
        self._step("claims.recorded")
        # A run that began before this commit knows nothing of its claim.
        if not self._lease.confirm(self._lease.until):
            raise LeaseLost
        return claim

    def _ask_sink(self, claims: tuple[Claim, ...]) -> Settlement:
        # What a lost run or a resync left is no claim of a batch: the sink knows nothing of it.
        claims = tuple(claim for claim in claims if not claim.everything)
        return settlement(claims, self._sink.settle([claim.id for claim in claims]))

    def _deliver_wave(self, sender: WaveSender, claim: Claim) -> tuple[Claim | None, tuple[str, str] | None]:
        """Send one wave and acknowledge it; the next claim, and how the run ends if it must end here."""
        began = self._clock.monotonic()
        self._ports.progress(Number.WAVE, self._histogram.rows(claim.lo, claim.hi).total)
        sent = sender.send(claim).redacted()
        self._step("wave.delivered")
        self._count(claim, sent)
        stop = sent.stop or self._unavailable(claim, sent)
        self._given_up = self._task.full_load and stop is not None and stop.kind is StopKind.REJECTIONS
        if stop is None:
            following = self._next_claim(self._clock.monotonic() - began)
            self._unrecorded = self._acknowledgement(claim, sent, following)
            if following is not None:
                self._acknowledge()
            return following, None
        if sent.nothing_applied:
            self._sent = None
        elif len(sent.undelivered) <= self._policy.most_listed and not self._is_settled_later(sent):
            self._unrecorded = self._acknowledgement(claim, sent, None)
        # Otherwise the claim stays open: it puts its rows in doubt more cheaply than a list of all of them.
        return None, (Status.INTERRUPTED if stop.kind is StopKind.INTERRUPTED else Status.FAILED, stop.reason)

    def _is_settled_later(self, sent: Sent) -> bool:
        """Nobody knows of some rows, and a record that tells of all of them will answer the next run."""
        if self._sink.settles_buckets:
            return sent.any_unknown
        unknown = all(row.outcome == Outcome.UNKNOWN.value for row in sent.undelivered)
        nothing_else = bool(sent.undelivered) and not sent.counts.delivered.total
        return self._sink.transactional and unknown and nothing_else

    def _unavailable(self, claim: Claim, sent: Sent) -> Stop | None:
        """A run that brought nothing over, for no row's fault, has met a destination that is down."""
        if self._is_settled_later(sent):
            return Stop(StopKind.UNAVAILABLE, "the destination did not say what became of a wave").after(sent.trouble)
        if (
            claim.hi < BUCKETS
            or self._counts.delivered.total
            or not (sent.counts.failed.total and sent.nothing_applied)
        ):
            return None
        return Stop(StopKind.UNAVAILABLE, "the destination did not take a single row").after(sent.trouble)

    def _count(self, claim: Claim, sent: Sent) -> None:
        self._counts += sent.counts
        self._counted_to = claim.hi
        self._ports.progress(Number.COUNTED, self._counts.planned.total)

    def _acknowledgement(self, claim: Claim, sent: Sent, following: Claim | None) -> WaveAcknowledged:
        return WaveAcknowledged(
            *self._next_head(),
            lo=claim.lo,
            hi=claim.hi,
            snapshot=claim.snapshot,
            spec=claim.spec,
            counts=sent.counts,
            undelivered=sent.undelivered,
            closes=(*sorted(self._known), claim.id),
            claims=(following,) if following else (),
            lease_until=self._lease.extended(),
            replaced=self._task.full_load,
        )

    def _acknowledge(self, *end: Fact) -> None:
        """Record the wave, with the end of the run after the last one: one commit."""
        wave, self._unrecorded = self._unrecorded, None
        self._record(*((wave,) if wave else ()), *end)
        if end:
            self._step("run.finished")
        else:
            self._step("wave.acknowledged")
        # What was sent may have come too late: a run that was taken for dead while it lived does not know it yet.
        if self._sent is not None and not self._lease.confirm(wave.lease_until if wave else self._lease.until):
            raise LeaseLost
        self._sent = None if wave else self._sent

    def _leave(self, lost: LeaseLost) -> RunResult:
        """The lease is lost: acknowledge nothing, and leave a doubt where a request of this run may land late."""
        self._step("lease.lost")
        claim = self._sent
        if claim is not None and not self._sink.transactional:
            places = [(claim.lo, claim.hi)] if lost.buckets is None else coarse(singles(lost.buckets), _MOST_DOUBTS)
            self._record_doubt(tuple(claim.doubt(number, lo, hi) for number, (lo, hi) in enumerate(places)))
        message = "the lease was lost: another run may hold the sync"
        return self._result(Status.SUPERSEDED, self._counts, message)

    def _record_doubt(self, doubts: tuple[Claim, ...]) -> None:
        while True:
            # Facts of an old fence are not read: the doubt must stand at the newest one.
            fence = self._ledger.fence(self._sync_id)
            closes, specs = tuple(self._own[-2:]), {self._job.spec: self._job.spec_text}
            self._ledger.append(DoubtRecorded(self._sync_id, fence, self._clock.now(), closes, doubts, specs))
            self._step("doubt.recorded")
            if self._ledger.fence(self._sync_id) == fence:
                return

    def _finish(self, status: str, message: str) -> RunResult:
        counts, planned = self._counts + self._not_counted(), self._histogram.total
        if not (counts.balanced and counts.planned == planned):
            status, message = Status.FAILED, f"the run does not balance: {planned} planned, {counts} counted; {message}"
        message = redact(message)  # of an error, too, which may quote a secret
        state, sent = self._reached(), self._sent.id if self._sent and not self._unrecorded else None
        finished = RunFinished(
            *self._next_head(),
            status,
            counts,
            planned,
            message=message or (redact(reasons(state)) if status == Status.PARTIAL else ""),
            releases=tuple(claim for claim in self._own[-2:] if claim != sent),
            allowed=self._ports.allowed(state) if reached_its_end(status) else 0,
        )
        self._acknowledge(finished)
        return self._result(status, counts, message)

    def _result(self, status: str, counts: Counts, message: str) -> RunResult:
        facts = (self._histogram.total, message, self._given_up, self._recorded, self._left())
        return RunResult(status, self._fence, counts, *facts)

    def _record(self, *facts: Fact) -> None:
        self._ledger.append(*facts)
        self._recorded = reduce(apply, facts, self._recorded)

    def _not_counted(self) -> Counts:
        """The rows of the waves that the run did not reach, and of one whose outcome it does not know."""
        rest = self._histogram.rows(self._counted_to, BUCKETS)
        if self._sent is None or self._sent.lo != self._counted_to:
            return Counts(planned=rest, skipped=rest)
        failed = self._histogram.rows(self._sent.lo, self._sent.hi)
        return Counts(planned=rest, failed=failed, skipped=rest - failed)

    def _next_head(self) -> tuple[str, int, int, datetime]:
        """What the next fact begins with: sync, fence, number and time."""
        self._seq += 1
        return self._sync_id, self._fence, self._seq, self._clock.now()
