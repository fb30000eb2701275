"""One sync, joined with its state in the ledger and the head of its changelog: what it sends, and how it stands."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from dbt_reverse_etl.app.context import UNKNOWN_HEAD, HeadOfModel, PushContext
from dbt_reverse_etl.app.guards import failed_tests
from dbt_reverse_etl.app.identity import former_of, id_of, renamed
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.tasks import task_of
from dbt_reverse_etl.app.versions import newer_macros
from dbt_reverse_etl.base import owner
from dbt_reverse_etl.base.errors import ExitCode, PositionLost, Problem, ReverseEtlError, mistake
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.facts import NOT_WELL, Claim, Range
from dbt_reverse_etl.delivery.health import NEVER_PUSHED, Health, Standing, explained, health, standing
from dbt_reverse_etl.delivery.lost import remaining, why_lost
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Sink, SinkTask, SparkSink
from dbt_reverse_etl.warehouse.head import Head, visible_rows
from dbt_reverse_etl.warehouse.held import History, Others, others
from dbt_reverse_etl.warehouse.overview import REFUSED, Overview
from dbt_reverse_etl.warehouse.pending import PendingRows
from dbt_reverse_etl.warehouse.spec import Spec, given_spec, resolve
from dbt_reverse_etl.warehouse.whole_push import one_wave
from dbt_reverse_etl.warehouse.zone import refuse_another


class OneSync:
    """One sync, joined with its state and its head."""

    def __init__(self, shared: PushContext, resolved: ResolvedSync, overview: Overview) -> None:
        self._shared, self._resolved, self._overview = shared, resolved, overview
        self._settings, self._name = resolved.sync.settings, resolved.sync.name
        self._changelog, self._relation = resolved.sync.changelog, resolved.sync.changelog.relation_name
        self._make_sink: Callable[[], Sink] = partial(resolved.destination.sink, resolved.destination.settings)
        self.sink: Sink = self._make_sink()
        self.label = resolved.label
        self.id = id_of(resolved)
        self._owner = owner.this_process()
        self.state = overview.states.get(self.id, State())
        self._sources: list[PendingRows] = []
        self._notes: list[str] = []

    def health(self) -> Health:
        """As its newest run left it."""
        return health(self.state, self._allowed(self.state))

    def is_behind(self) -> bool:
        """See `Pusher.is_behind`."""
        head, state = self._shared.head(self._relation), self.state
        if head is None:
            return self.state.position > 0
        is_at_head = state.changelog == head.changelog and {one.snapshot for one in state.positions} == {head.snapshot}
        is_as_given = all(one.given == given_spec(self._settings) for one in self._earlier)
        return not (is_at_head and is_as_given and self.health().is_well)

    def status(self) -> dict[str, Any]:
        """Plain values."""
        state, started = self.state, self._overview.started.get(self.id)
        head, missing = self._found_head()
        here = self._as_it_is(head, missing)
        return {
            "sync": self._name,
            "sync_id": self.id,
            "destination": self.label,
            "mode": self._settings.mode.value,
            "health": here.health.value,
            "reason": here.reason,
            "position": self.state.position,
            "head": head.snapshot if head else 0,
            "lag": self._lag(head),
            "undelivered": here.undelivered,
            "no_match": here.no_match,
            "left": [asdict(one) for one in here.left],
            "details": explained(here),
            "in_doubt": sum(row.doubt for row in state.undelivered.values()),
            "open_claims": len(state.claims),
            "last_run": (state.status if state.finished else "unfinished") if started else "never",
            "last_run_at": started.at.isoformat(timespec="seconds") if started else "",
        }

    def untouched(self, status: str, code: ExitCode, message: str) -> Report:
        """Of a push that left the sync as the overview found it. Asks neither Spark nor the changelog: after a signal there is no time for it."""
        state, refusal = self.state, self._overview.refused(self._name, self.id)
        known = self._shared.known.get(self._changelog.unique_id)
        refused = f"{refusal.status}: {refusal.message}" if refusal else ""
        here = NEVER_PUSHED
        if state.fence or refused:
            lag = max(0, known.snapshot - state.position) if known else 0
            here = self._standing(state, state.allowed, refused=refused, lag=lag)
        report = Report(self._name, self.label, status, code, position=state.position, message=message, standing=here)
        return replace(report, sync_id=self.id, relation=self._relation, fence=state.fence)

    def unsettled(self) -> Report:
        """Of a push that may have sent rows before a signal ended it."""
        message = "interrupted: it did not end in time: the next push settles what it sent"
        report = self.untouched(Status.INTERRUPTED, ExitCode.INTERRUPTED, message)
        return replace(report, standing=Standing(Health.UNSETTLED, reason=message))

    def _state_after(self, status: str) -> State:
        """Of a push that ended with an error: a run that failed may have acknowledged waves before."""
        if status != Status.FAILED:
            return self.state
        with suppress(Exception):
            return self._shared.ledger.read(self.id)
        return State()  # nobody knows what it left

    def _found_head(self) -> tuple[Head | None, str]:
        """The head, or why a sync that has delivered has none."""
        try:
            return self._shared.head(self._relation), ""
        except ReverseEtlError as error:
            return None, f"no changelog: {redact(str(error))}" if self.state.fence else ""

    def _refused(self, head: Head | None, lag: int) -> str:
        """Why the newest push ended before a run began, or why the next one will; empty: nothing is in its way."""
        lost, version = self._lost(head), newer_macros(head.package_version, self._relation) if head else None
        if lost or version:
            return redact(f"{lost.push_status}: {lost}" if lost else f"other_version: {version}")
        if head and not self.state.fence and (former := former_of(self._resolved, head.changelog, self._overview)):
            return redact(f"renamed: {renamed(self._resolved, former)}")
        if refusal := self._overview.refused(self._name, self.id):
            return f"{refusal.status}: {refusal.message}"
        if lag and (tests := self._overview.failing.get(self._relation)):
            return f"{failed_tests(self._changelog.name, tests)[0]}; a push is blocked until they pass"
        left = self._left(self.state)
        return f"leftovers: {left}" if left else ""

    def _keep_block(self, fence: int) -> None:
        """A refusal holds until the next run. A run of one row, or of none, does not change why the sync is blocked."""
        shared, refusal = self._shared, self._overview.refused(self._name, self.id)
        if refusal and refusal.status == "blocked" and refusal.fence != fence:
            with suppress(Exception):  # what was done is done, whatever the ledger takes
                kept = {self._name: replace(refusal, fence=fence)}
                shared.ledger.record(REFUSED, kept, shared.invocation_id, shared.clock.now())

    def _lost(self, head: Head | None) -> PositionLost | None:
        """Why the position says nothing, with this head of the changelog."""
        known = HeadOfModel.of(head) if head else replace(UNKNOWN_HEAD, changelog=self.state.changelog)
        return why_lost(self._job(known, None), self.state, self.sink)

    @property
    def _policy(self) -> Policy:
        policy = one_wave(self._shared.policy) if isinstance(self.sink, SparkSink) else self._shared.policy
        return policy.parking_doubt() if self._settings.on_unknown == "park" else policy

    def _as_it_is(self, head: Head | None, missing: str = "") -> Standing:
        """Before the next push. `missing`: why there is no head."""
        lag = self._lag(head)
        refused = missing or self._refused(head, lag)
        return self._standing(self.state, 0 if refused else self._allowed(self.state), refused=refused, lag=lag)

    def _lag(self, head: Head | None) -> int:
        return max(0, head.snapshot - self.state.position) if head else 0

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
        return remaining(self._job(UNKNOWN_HEAD, None), self.sink, state.leftovers) if state.leftovers else ""

    def _visible(self) -> int:
        """Rows of the head that the sync sees."""
        head, where = self._head(), self._settings.where
        return visible_rows(self._shared.spark, self._relation, head, where) if where else head.live_rows

    def _known(self, *, is_plan: bool = False) -> HeadOfModel | None:
        """None: the changelog has no snapshot; in a plan also for a sync that never ran and whose changelog has no table yet."""
        if self._changelog.unique_id in self._shared.known:
            return self._shared.known[self._changelog.unique_id]
        try:
            head = self._shared.head(self._relation)
        except ReverseEtlError:
            if self.state.fence or not is_plan:
                raise
            return None
        return HeadOfModel.of(head) if head else None

    def _head(self, snapshot: int | None = None) -> Head:
        """What is to be delivered: the newest snapshot, or one before it."""
        known = self._shared.known.get(self._changelog.unique_id)
        head = self._shared.head(self._relation, snapshot or (known.snapshot if known else None))
        if head is None or (known and known.changelog != head.changelog):
            found = "not the snapshot that this run captured: the changelog was reset meanwhile"
            raise ReverseEtlError(Problem(self._relation, found, "one writer at a time", "run dbt again"))
        if problem := newer_macros(head.package_version, self._relation):
            raise ReverseEtlError(problem)
        return head

    def _spec(self, known: HeadOfModel, *, anew: bool = False) -> Spec:
        """At the snapshot that was delivered last, the columns are known; otherwise the header tells them.

        Args:
            anew: the position is about to be given up, so that nothing need fit the pushes before.
        """
        places, earlier = self.state.positions, self._earlier
        if not anew:
            self._refuse_another_zone(*earlier)
        is_ours = self.state.changelog == known.changelog
        delivered = is_ours and len(places) == 1 and places[0].snapshot == known.snapshot
        if not anew and delivered and earlier[0].given == given_spec(self._settings):
            spec = earlier[0]
        else:
            spec = resolve(self._shared.spark, self._resolved.sync, self._head().columns)
        task = self._task(None)
        spec = replace(spec, key_form=self.sink.key_form(task), key_place=self.sink.key_place(task)).after(earlier)
        # Of another changelog, with a key of its own, the positions say nothing anyway.
        if not anew and is_ours:
            self._refuse_another_key(spec, earlier)
        return spec

    def _refuse_another_key(self, spec: Spec, earlier: Iterable[Spec]) -> None:
        """The destination would take each row for another one, and the deletes would miss those that it has."""

        def said(one: Spec) -> str:
            form = spec.key_form if one.key_form is None else one.key_form
            return " ".join([", ".join(one.key(self._changelog.key)), *([f"({form})"] if form else [])])

        now = said(spec)
        before = next((key for one in earlier if (key := said(one)) != now), None)
        if before is not None:
            found, expected = f"{now} as the key", f"{before}, as in the pushes before"
            next_step = "change it back; or sync to a new object; or adopt, if the destination has changed it too; or forget: a first load, and its rows under the former key stay"
            raise mistake(f"{self._name}: fields", found, expected, next_step)

    def _refuse_another_zone(self, *earlier: Spec) -> None:
        if zones := {one.zone for one in earlier} - {""}:
            refuse_another(self._shared.spark, self._name, zones)

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

    def _job(self, known: HeadOfModel, spec: Spec | None) -> Job:
        said, captures = self._said(known), {known.snapshot: known.capture} if known.capture else {}
        return Job(
            run_id=uuid.uuid4().hex,
            changelog=known.changelog,
            head=known.snapshot,
            spec=spec.id if spec else "",
            spec_text=spec.text if spec else "",
            task=self._task(spec),
            owner=self._owner,
            invocation_id=self._shared.invocation_id,
            exposure=self._resolved.sync.position_of,
            newest=self._newest(known),
            model=self._changelog.name,
            mark=said.marks.get(self.id, "") if said else "",
            captures={**captures, **(said.captures if said else {})},
        )

    def _newest(self, known: HeadOfModel) -> int:
        """The newest snapshot; asked only where positions lie beyond what is to be delivered."""
        if self.state.reached <= known.snapshot:
            return known.snapshot
        head = self._shared.head(self._relation)
        return max(known.snapshot, head.snapshot) if head and head.changelog == known.changelog else known.snapshot

    def _said(self, known: HeadOfModel) -> Head | None:
        """The head, for what it says of ledger and snapshots; not asked where a sync is at rest."""
        at_rest = {place.snapshot for place in self.state.positions} == {known.snapshot}
        if not known.snapshot or (at_rest and self.state.changelog == known.changelog):
            return None
        return self._shared.head(self._relation, known.snapshot)

    def _note(self, text: str) -> None:
        self._notes += [text] if text and text not in self._notes else []

    def _valid_job(self, known: HeadOfModel, spec: Spec) -> Job:
        job = self._job(known, spec)
        self.sink.validate(replace(job.task, full_load=self._settings.owns_object))
        return job

    def _history(self, head: Head) -> History:
        shared = self._shared
        return History(shared.spark, shared.ledger, self._relation, head, self.id, self.state.known_from)

    def _others(self, head: Head) -> Others:
        return others(self._shared.spark, self._resolved, self._shared.resolved, head.columns)
