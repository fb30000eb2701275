"""Do the positions of the ledger say what the destination holds? Not if changelog or ledger were lost, replaced or taken back."""

from __future__ import annotations

from dataclasses import replace

from dbt_reverse_etl.base.errors import (
    OtherChangelog,
    OtherLedger,
    PositionLost,
    Problem,
    RestoredChangelog,
    ReverseEtlError,
    SyncBusy,
)
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Sink
from dbt_reverse_etl.sinks.fence import NewerFence, OlderFence


def why_lost(job: Job, state: State, sink: Sink) -> PositionLost | None:
    """What changelog and ledger say of it, without a query; None: the positions hold."""
    return (
        _other_changelog(job, state, sink) or _restored_changelog(job, state, sink) or _unknown_mark(job, state, sink)
    )


def find_lost(job: Job, ports: Ports, state: State) -> PositionLost | None:
    """As `why_lost`, with what the ledger's history and the destination's record say.

    Raises:
        SyncBusy: another run has just started.
    """
    lost = why_lost(job, state, ports.sink) or cut_off(job, ports, state)
    try:
        vanished(job, ports, state)
    except OtherLedger as other:
        lost = lost or other
        lost.fence = other.fence
    return lost


def cut_off(job: Job, ports: Ports, state: State) -> OtherLedger | None:
    """A run that seems to have crashed, while a RESTORE of the ledger has cut off its end."""
    if state.finished or state.started_at is None:
        return None
    restored = ports.ledger.restored_at(state.started_at)
    if restored is None:
        return None
    return _other_ledger(job, ports.sink, f"the ledger was restored at {restored.isoformat()}", state.fence)


def vanished(job: Job, ports: Ports, state: State) -> Problem | None:
    """What the destination has lost of what was delivered.

    Raises:
        OtherLedger: its record tells of a run that the ledger does not know.
        SyncBusy: another run has just started.
    """
    # A run that delivered has opened the sink, which records its fence; one that sent nothing need not have.
    wrote = state.finished and state.counts.delivered.total > 0
    try:
        gone = ports.sink.missing(replace(job.task, fence=state.fence, first=state.first, wrote=wrote))
    except NewerFence as newer:
        if ports.ledger.fence(job.task.sync_id) > state.fence:
            raise busy(job, "another run that has just started") from None
        found = f"the destination's record is of run {newer.fence}"
        raise _other_ledger(job, ports.sink, found, state.fence, newer.fence) from None
    except OlderFence as older:
        return None if state.first else _taken_back(job, state, older.fence)
    if gone is None or state.first:
        return None
    next_step = f"restore it, or {_resync(job)} to send everything again"
    return Problem(job.task.sync, gone, "what earlier runs delivered", next_step)


def _taken_back(job: Job, state: State, fence: int) -> Problem:
    found = f"a destination that was put back: its record is of run {fence}, and run {state.fence} delivered rows"
    repair = f"dbt-reverse-etl reconcile --select {job.task.sync} --repair, then push"
    next_step = f"{repair}. Where it cannot, or finds nothing: {_resync(job)}, push, and then that repair, for rows that came back"
    return Problem(job.task.sync, found, f"the record of run {state.fence}", next_step)


def _resync(job: Job) -> str:
    return f"dbt run-operation resync --args '{{sync: {job.task.sync}}}'"


def not_started(job: Job, ports: Ports, started: RunStarted) -> ReverseEtlError:
    """Why the ledger did not take the start of a run."""
    newest = ports.ledger.fence(started.sync_id)
    if newest >= started.fence:
        return busy(job, "another run that has just started")
    # Delta remembers of a table that was restored what it had before, and skips the fences of runs that are gone.
    return _other_ledger(job, ports.sink, f"it had a run {started.fence} before", newest)


def _other_changelog(job: Job, state: State, sink: Sink) -> OtherChangelog | None:
    if state.changelog in ("", job.changelog):
        return None
    found = "a position of another changelog: it was dropped or reset, or the sync reads another model now"
    next_step = f"name the former model again, if there is one; else {_ways_out(job, sink)}"
    problem = Problem(job.task.sync, found, f"one of the changelog of {job.model}", next_step)
    return OtherChangelog(problem, "another changelog held its positions")


def _restored_changelog(job: Job, state: State, sink: Sink) -> RestoredChangelog | None:
    newest = max(job.head, job.newest)
    others = [snapshot for snapshot, uuid in state.captures.items() if job.captures.get(snapshot, uuid) != uuid]
    if state.reached <= newest and not others:
        return None
    found = f"a position at snapshot {state.reached} of a changelog whose newest is {newest}"
    if others:
        found = f"a position at snapshot {others[0]}, which is another one now"
    found += ": the changelog was taken back, by RESTORE or as an older copy"
    operation = f"--args '{{model: {job.model}}}'"
    undo = f"dbt run-operation undo_restore {operation}, which brings the snapshots back, then dbt run"
    reset = f"if dbt run fails, dbt run-operation reset {operation} and dbt run; then"
    next_step = f"{undo}; where it cannot: {reset} {_ways_out(job, sink)}"
    problem = Problem(job.task.sync, found, "a changelog that only grows", next_step)
    return RestoredChangelog(problem, "the changelog was taken back behind what was delivered")


def _unknown_mark(job: Job, state: State, sink: Sink) -> OtherLedger | None:
    # A run of a version that names no ledger leaves no mark.
    if job.mark in ("", state.mark) or (state.fence and not state.mark):
        return None
    return _other_ledger(job, sink, "the changelog names another ledger", state.fence)


def _other_ledger(job: Job, sink: Sink, evidence: str, fence: int, newer: int = 0) -> OtherLedger:
    known = f"no run after {fence}" if fence else "nothing"
    found = f"a ledger that knows {known} of it, while {evidence}: it was dropped, restored, or is another one"
    next_step = f"bring it back; or {_ways_out(job, sink)}"
    problem = Problem(job.task.sync, found, "the ledger that wrote the positions", next_step)
    return OtherLedger(problem, "another ledger held its positions", newer)


def _ways_out(job: Job, sink: Sink) -> str:
    resync = f"{_resync(job)} to send everything again{_remains(job, sink)}"
    return f"{resync}; or adopt if the destination holds the same rows"


def _remains(job: Job, sink: Sink) -> str:
    if not job.task.mode.deletes:
        return ""
    if job.task.owns_object:
        return ", which replaces the whole object"
    remain = ": rows that are gone from the model may remain"
    if sink.can_be_read():
        return f"{remain}; dbt-reverse-etl reconcile --select {job.task.sync} shows them, before and after"
    return f"{remain}, and a destination of type {sink.type} cannot be read to find them"


def remaining(job: Job, sink: Sink, reason: str) -> str:
    """What is said of a sync that may have left rows at the destination, until somebody has looked; else an empty text."""
    if not reason or not job.task.mode.deletes:
        return ""
    reconcile = f"dbt-reverse-etl reconcile --select {job.task.sync} --repair --leftovers"
    look = f"{reconcile} delete; or keep, where they are somebody else's"
    if not sink.can_be_read():
        look = f"delete at the destination what the model has no more, then {reconcile} keep"
    found = f"that rows which were delivered before may remain, for {reason}"
    return str(Problem(job.task.sync, found, "a destination that was compared with the model since", look))


def busy(
    job: Job,
    found: str,
    expected: str = "no other run of this sync",
    next_step: str = "wait for it to end, then push again",
) -> SyncBusy:
    """The error of a run that finds another one at work."""
    return SyncBusy(Problem(job.task.sync, found, expected, next_step))
