"""The push of one sync, and the plan of it: what is pending, and a run that delivers it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.utils import is_remote

from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.guards import asks_for_visible_rows, check_guards, failed_tests, violations
from dbt_reverse_etl.app.identity import Former, asked_elsewhere, former_of, id_of, left_elsewhere, renamed, requests_of
from dbt_reverse_etl.app.keys import stored_key
from dbt_reverse_etl.app.operations import as_carried_out, carry_out
from dbt_reverse_etl.app.preview import preview
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.sync import OneSync
from dbt_reverse_etl.base import owner
from dbt_reverse_etl.base.errors import ExitCode, PositionLost, Problem, ReverseEtlError
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.admission import refuse_second
from dbt_reverse_etl.delivery.counts import NO_COUNTS, PerOperation
from dbt_reverse_etl.delivery.facts import Claim, Range, RunStarted
from dbt_reverse_etl.delivery.health import exit_code, reached_its_end
from dbt_reverse_etl.delivery.lost import why_lost
from dbt_reverse_etl.delivery.ports import Job, Ports, Remote, RunResult, Source, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Bound
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.sinks.base import Mode, SparkSink
from dbt_reverse_etl.warehouse.executors import Executors, starts_tasks_twice
from dbt_reverse_etl.warehouse.head import Head, full_image, name_ledger, read_head
from dbt_reverse_etl.warehouse.held import beside, mirrors
from dbt_reverse_etl.warehouse.ledger import Prefetched
from dbt_reverse_etl.warehouse.overview import Request
from dbt_reverse_etl.warehouse.pending import Pending, PendingRows
from dbt_reverse_etl.warehouse.spec import Spec
from dbt_reverse_etl.warehouse.whole_push import WholePush


class SyncPush(OneSync):
    """One sync that is pushed or planned."""

    _begun = 0  # fence of the run of this push that is under way
    _may_have_begun = False  # it, although a signal may have cut the start in two
    _replayed = NO_COUNTS  # by runs of this push before it

    def push(self, only: str | None = None) -> Report:
        """`only`: a key as JSON; its row is sent and no other."""
        try:
            with owner.at_work() as self._owner:
                return self._push(only)
        finally:
            if only is not None:
                self._keep_block(self.fence)
            for source in self._sources:
                source.close()

    def _push(self, only: str | None) -> Report:
        known = self._known()
        if known is None:
            return self._without_snapshot(Status.IDLE)
        if not self.state.finished:  # the overview may be hours old, and the run have a new lease or an end
            self.state = self._shared.ledger.read(self.id, self.state.fence)
        requests = self._requests(known.changelog)
        spec = self._spec(known, anew=_begins_anew(requests))
        job = self._valid_job(known, spec)
        if self._is_overtaken(known, job):
            refuse_second(job, self._ports(spec, self._head), self.state, self._policy)
            return self._left_to_a_later_run(known)
        if self._is_behind_others(known, spec):
            return self._superseded(known, "another sync of this object was pushed at a newer snapshot")
        if former := self._former(known, requests):
            self._give_up(former, job, spec)
        for request in requests:
            carry_out(request, self.state, job, self._ports(spec, self._head), self._policy)
            self._begin_anew()
            job = self._job(known, spec)
        moved = left_elsewhere(self._resolved, self._overview, self.state)
        stopped = self._stopped(spec)
        if only is not None:
            self._refuse_before_older_events(known)
            job = replace(job, only=stored_key(self._shared.spark, self._head(), self._changelog, only))
        result = self._replay(known) or self._run(job, spec)
        at_head = reached_its_end(result.status) and only is None
        if only is not None and result.counts.skipped.total:
            self._note(f"held back: {result.counts.skipped.total} other rows, which the next push sends")
        allowed = self._allowed(result.state) if result.status == Status.IDLE else result.state.allowed
        here = self._standing(result.state, allowed)
        failed = f"{result.message} (at {self.sink.address})" if result.status == Status.FAILED else result.message
        said = failed or result.left or moved or self._nothing_matched(result) or (stopped if at_head else "")
        return self._report(
            result.status,
            known,
            exit_code=ExitCode.OTHER_CHANGELOG if result.left and at_head else exit_code(result.status, here.health),
            counts=self._replayed + result.counts,
            planned=self._replayed.planned + result.planned,
            position=known.snapshot if at_head else self.state.position,
            message="; ".join(redact(note) for note in [said, *self._notes] if note),
            standing=here,
        )

    def _report(self, status: str, known: HeadOfModel, **told: Any) -> Report:
        told = {"head": known.snapshot, "position": self.state.position, **told}
        return Report(self._name, self.label, status, **told)

    def _former(self, known: HeadOfModel, requests: Iterable[Request]) -> Former | None:
        """What a first load would leave behind. An adopt begins none."""
        if self.state.fence or any(one.operation == "adopt" for one in requests):
            return None
        return former_of(self._resolved, known.changelog, self._overview)

    def _give_up(self, former: Former, job: Job, spec: Spec) -> None:
        request = self._forget_of(former)
        task = replace(job.task, sync_id=former.sync_id, sync=former.sync)
        mark = self._head().marks.get(former.sync_id, "")
        job = replace(job, task=task, exposure=former.exposure, mark=mark)
        carry_out(request, former.state, job, self._ports(spec, self._head), self._policy)
        self._begin_anew()

    def _forget_of(self, former: Former) -> Request:
        """What gives up the position under the former name. Raises Renamed: nobody asked for it."""
        names, requests = self._overview.aliases[former.sync_id], self._overview.requests
        project = former.exposure.rpartition(".")[0]
        mine = [self._resolved.sync.unique_id, *(f"{project}.{name}" for name in names)]
        asked = [one for name in names for one in requests.get(name, ()) if one.concerns(mine, self._relation)]
        forgets = [one for one in asked if one.operation == "forget"]
        if not forgets:
            raise renamed(self._resolved, former)
        return forgets[-1]

    def _is_overtaken(self, known: HeadOfModel, job: Job) -> bool:
        """Whether a later run has delivered, or may have delivered, rows of a newer snapshot, which nobody reads for an older one."""
        return self.state.changelog == known.changelog and known.snapshot < self.state.reached <= job.newest

    def _is_behind_others(self, known: HeadOfModel, spec: Spec) -> bool:
        """Whether a sync beside this mirror was pushed further: a delete of before could take a row that it has delivered since."""
        if not spec.mode.deletes or self.state.is_at(known.snapshot, spec.id):
            return False
        found = [self._shared.ledger.read(id_of(one)) for one in beside(self._resolved, self._shared.resolved)]
        newest = max((one.reached for one in found if one.changelog == known.changelog), default=0)
        if newest <= known.snapshot:
            return False
        head = read_head(self._shared.spark, self._relation)
        return head is not None and newest <= head.snapshot  # else the changelog was taken back since

    def _left_to_a_later_run(self, known: HeadOfModel) -> Report:
        """Send nothing: it would put older values over newer ones. The exit code counts what the later run left."""
        if self.state.position < known.snapshot:
            return self._superseded(known, "a later run has delivered a part of a newer snapshot")
        here = self._standing(self.state, self._allowed(self.state))
        code, message = exit_code(Status.IDLE, here.health), "a later run has delivered more"
        return self._report(Status.IDLE, known, exit_code=code, message=message, standing=here)

    def _superseded(self, known: HeadOfModel, found: str) -> Report:
        here, message = self._standing(self.state, self._allowed(self.state)), f"{found}: the next push sends the rest"
        return self._report(Status.SUPERSEDED, known, exit_code=ExitCode.FAILED, message=message, standing=here)

    def _without_snapshot(self, status: str) -> Report:
        """A changelog that is empty: nothing was captured yet, or it was taken back to that."""
        if (lost := self._lost(None)) is not None:
            return self._lost_report(lost)
        here = self._standing(self.state, self.state.allowed)
        message = "the changelog has no snapshot yet; `dbt run` with this target captures one"
        return Report(self._name, self.label, status, message=message, standing=here)

    def _lost_report(self, lost: PositionLost) -> Report:
        return self.stopped(lost.push_status, lost.exit_code, redact(str(lost)))

    def stopped(self, status: str, code: ExitCode, message: str) -> Report:
        """Of a push that ended with an error: the ledger has what its run delivered before."""
        state = self._state_after(status)
        run = state if state.fence == self._begun else State()
        counts, here = self._replayed + run.counts, self._standing(state, 0, refused=f"{status}: {message}")
        reached = (counts, counts.planned, run.head, state.position)
        return Report(self._name, self.label, status, code, *reached, message=message, standing=here)

    def interrupted(self) -> Report:
        """Of a push that a signal ended in a query of the warehouse."""
        message = f"interrupted: it had not begun to send{' newer events' if self._replayed.planned.total else ''}"
        untouched = partial(self.untouched, Status.INTERRUPTED, ExitCode.INTERRUPTED, message)
        report = self.unsettled() if self._may_have_begun else untouched()
        return replace(report, counts=self._replayed, planned=self._replayed.planned)

    def _run(self, job: Job, spec: Spec) -> RunResult:
        guard = partial(self._guard, of_one_row=job.only is not None)
        ports = replace(self._ports(spec, self._head), guard=guard, full_load=partial(self._full_load, spec))
        result = self._watched(job, ports)
        if not result.given_up:
            return result
        self._begin_anew()
        ports = replace(self._ports(spec, self._head), guard=self._guard)
        changes = self._watched(replace(job, run_id=uuid.uuid4().hex), ports)
        return replace(changes, message="; ".join(filter(None, (result.message, changes.message))))

    def _replay(self, known: HeadOfModel) -> RunResult | None:
        """An event says what was before it, so those of a crashed run are sent again as they were before newer ones. None: they are."""
        newest = self.state.reached  # a position or a claim beyond the snapshot of a run would be taken back
        for spec_id in self.state.unsettled_events(known.snapshot) if self._settings.mode is Mode.CHANGELOG else ():
            spec = Spec.of(self.state.specs[spec_id])
            ports = self._ports(spec, partial(self._head, newest))
            result = self._watched(self._job(HeadOfModel(newest, known.changelog), spec), ports)
            if not reached_its_end(result.status):
                return result
            self._replayed += result.counts
            self._begin_anew()
        return None

    def _refuse_before_older_events(self, known: HeadOfModel) -> None:
        if self._settings.mode is Mode.CHANGELOG and any(one.snapshot != known.snapshot for one in self.state.claims):
            found, expected = "events of an interrupted run, which go before those of this row", "none"
            raise ReverseEtlError(Problem(self._name, found, expected, "dbt-reverse-etl push"))

    def _watched(self, job: Job, ports: Ports) -> RunResult:
        seen = Bound(job.task.sync, self.label, job.run_id, job.invocation_id)
        return run(job, replace(ports, progress=self._shared.watch.begin(seen)), self._policy)

    def _requests(self, changelog: str) -> Sequence[Request]:
        """What was asked for of this changelog: an adopt of one that was replaced since says nothing of it."""
        for one in asked_elsewhere(self._resolved, self._overview, self._shared.resolved):
            then = "so nothing was done here: if it was meant for this sync, ask again"
            self._note(f"{one.operation} was asked for {one.place}, {then}")
        asked = requests_of(self._resolved, self._overview, self._shared.resolved, changelog)
        if asked and asked[-1].changelog not in ("", changelog):
            self._note("adopt was asked for a changelog that was replaced since, so nothing was adopted: ask again")
        return [one for one in asked if one.changelog in ("", changelog)]

    def _begin_anew(self) -> None:
        """For another run of the same push."""
        self._begun, self._may_have_begun = 0, False
        self.sink, self.state = self._make_sink(), self._shared.ledger.read(self.id)

    def plan(self, rows: int) -> Report:
        """The pending rows by operation, a sample of their keys, and what would block a push of them."""
        known = self._known(is_plan=True)
        if known is None:
            return self._without_snapshot("planned")
        requests = self._requests(known.changelog)
        spec = self._spec(known, anew=_begins_anew(requests))
        job = self._valid_job(known, spec)
        lost = why_lost(job, self.state, self.sink)
        if lost is not None and not requests:
            return self._lost_report(lost)
        if self._is_overtaken(known, job):
            return replace(self._left_to_a_later_run(known), status="planned", exit_code=ExitCode.OK)
        here = self._as_it_is(self._head())
        if former := self._former(known, requests):
            said = f"{self._forget_of(former).operation} of {former.sync}"
            self._note(f"{said} was asked for: the next push carries it out first")
        for request in requests:
            self._note(f"{request.operation} was asked for: the next push carries it out first")
            self.state = as_carried_out(request, self.state, job, lost, self._shared.clock.now())
            lost = None
        state = self.state.for_spec(spec.id, spec.text)
        source = self._source(state, spec, self._head())
        try:
            ports = replace(self._ports(spec, self._head), guard=self._guard)
            found = preview(source, state, ports, self._policy, spec.mode, rows, known.snapshot)
        finally:
            source.close()
        moved = "" if requests else left_elsewhere(self._resolved, self._overview, self.state, planned=True)
        notes = [self._left(self.state), moved, self._stopped(spec), *self._notes, found["message"]]
        return self._report("planned", known, standing=here, **found | {"message": "; ".join(filter(None, notes))})

    def _ports(self, spec: Spec, head: Callable[[], Head]) -> Ports:
        shared = self._shared
        return Ports(
            Prefetched(shared.ledger, self.state, partial(setattr, self, "_may_have_begun", True), self._name_ledger),
            lambda state: self._source(state, spec, head()),
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

    @property
    def fence(self) -> int:
        """Of the run that this push began, or of the newest one that it knew."""
        return max(self._begun, self.state.fence)

    def _name_ledger(self, started: RunStarted) -> None:
        if started.sync_id == self.id:  # not what forgets a former one
            self._begun = started.fence
        self._note(name_ledger(self._shared.spark, self._relation, self._head(), started.sync_id, started.mark))

    def _full_load(self, spec: Spec, changes: Source, state: State) -> PendingRows | None:
        """Where most rows changed it costs less to replace them all. Rows that are known to be refused would not be replaced."""
        owned = self._settings.owns_object and self.sink.full_loads
        if not owned or state.claims or state.undelivered:
            return None
        head = self._head()
        few = changes.planned().total.total <= self._settings.full_load_above.rows_of(head.live_rows)
        if few and not state.leftovers:
            return None
        return self._source(State().for_spec(spec.id, spec.text), spec, head)

    def _source(self, state: State, spec: Spec, head: Head) -> PendingRows:
        unsure = tuple(
            Claim("mode", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
            for place in self._unsure(state, spec)
        )
        stayed = spec.mode.deletes and any(not one.mode.deletes for _, one in _earlier(state))
        kept = self._kept_rows(head, spec) if stayed else None
        shared_by = self._others(head).filters if spec.mode.deletes else ()
        mirrored_by = mirrors(self._shared.spark, self._resolved, self._shared.resolved, head.columns)
        state = replace(state, claims=state.claims + unsure)
        others: dict[str, Any] = {"shared_by": shared_by, "mirrored_by": mirrored_by}
        extra = self.sink.extra_columns(self._task(spec))
        pending = Pending(self._relation, head, self.id, spec.id, spec, state, kept, extra=extra, **others)
        if (at := pending.needs_base) is not None:
            pending = replace(pending, older_base=full_image(self._shared.spark, self._relation, at))
        self._sources.append(PendingRows(self._shared.spark, pending))
        return self._sources[-1]

    def _kept_rows(self, head: Head, spec: Spec) -> str:
        """What an earlier mode delivered and did not delete."""
        history = self._history(head)
        self._note(history.pruned_note("were delivered"))
        return history.held_view(spec)

    @staticmethod
    def _unsure(state: State, spec: Spec) -> list[Range]:
        """Ranges where nobody knows what this sync left at the destination."""
        return [place for place, one in _earlier(state) if spec.sends_all_after(one)]

    def _guard(self, tried: PerOperation, refused: PerOperation, state: State, *, of_one_row: bool = False) -> str:
        """Counts say nothing of one row that the operator named, nor of `refused` ones; a failed test may be about these very rows."""
        if not tried.total:
            return ""
        planned = tried - refused
        head, guards = self._head(), self._resolved.guards
        tests = failed_tests(self._changelog.name, self._overview.failing.get(self._relation, ()))
        found: list[str] = []
        if not of_one_row and planned.total:
            first = any(place.snapshot == 0 for place in state.positions)
            visible = self._visible() if asks_for_visible_rows(guards, planned, first=first) else head.live_rows
            found = violations(guards, planned, visible, first=first)
        # Names of tests have no bound: an alert cuts them, and no violation.
        named, retry = (self._name, [*found, *tests], planned, head.snapshot), self._policy.retry_now
        return check_guards(*named, self._shared.overrides, of_one_row=of_one_row, retry=retry)

    def _nothing_matched(self, result: RunResult) -> str:
        """Once: a wrong object or key looks like that."""
        counts = result.counts
        if not (self.state.first and counts.no_match.total and counts.no_match == counts.planned):
            return ""
        return "the destination has none of these rows: if that is not what you expect, look at object, fields and key"


def _begins_anew(requests: Iterable[Request]) -> bool:
    return any(one.operation in ("adopt", "forget") for one in requests)


def _earlier(state: State) -> list[tuple[Range, Spec]]:
    return [(place, Spec.of(state.specs[place.spec])) for place in state.positions if place.snapshot]
