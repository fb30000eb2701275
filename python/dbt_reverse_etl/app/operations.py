"""Operations that were asked for in the ledger: each is a run of its own that sends nothing and states the position anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dbt_reverse_etl.base.errors import OtherChangelog, OtherLedger, PositionLost
from dbt_reverse_etl.delivery.admission import refuse_second
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import BUCKETS, NOT_WELL, Claim, Range, RunFinished, RunStarted, Undelivered
from dbt_reverse_etl.delivery.lost import find_lost, not_started, remaining
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.position import State, abandoned_by, apply
from dbt_reverse_etl.delivery.starting import begin, late_facts, run_started
from dbt_reverse_etl.sinks.base import close_quietly
from dbt_reverse_etl.warehouse.overview import Request


def carry_out(request: Request, state: State, job: Job, ports: Ports, policy: Policy) -> None:
    """Do what was asked, once.

    Raises:
        SyncBusy: another run is under way.
        OtherLedger: the ledger was restored after this was asked, and so may have forgotten that it was carried out.
        DestinationError: of the sink.
    """
    refuse_second(job, ports, state, policy)
    started = _begin(request, state, job, ports, policy)
    try:
        # A destination that lost its record may start over with this fence.
        task = replace(job.task, fence=started.fence, first=True, adopted=request.operation == "adopt")
        ports.sink.open(task)
    finally:
        close_quietly(ports.sink)
    _end(started, job, ports, request.operation, f"{request.operation} was asked for")


def as_carried_out(request: Request, state: State, job: Job, lost: PositionLost | None, now: datetime) -> State:
    """The state after what was asked, which nobody has carried out yet."""
    fence = state.fence + 1
    return apply(state, run_started(job, state, now, fence=fence, **_restated(request, state, job, lost, fence)))


def deliver_again(rows: Sequence[Undelivered], state: State, job: Job, ports: Ports, leftovers: str) -> None:
    """Say that these rows are undelivered, whatever was acknowledged: the next push sends them.

    Args:
        leftovers: as in `RunStarted`, from now on.

    Raises:
        SyncBusy: another run has just started.
        OtherLedger: the ledger was restored.
    """
    kept, now = (*state.undelivered.values(), *rows), ports.clock.now()
    started = run_started(job, state, now, undelivered=kept, leftovers=leftovers, found=tuple(row.key for row in rows))
    before = begin(started, ports.ledger)
    if before is None:
        raise not_started(job, ports, started)
    _state_late(started, state, before, ports)
    _end(started, job, ports, "reconcile", f"reconcile found {len(rows)} rows that differ")


def _begin(request: Request, state: State, job: Job, ports: Ports, policy: Policy) -> RunStarted:
    """The start that the ledger took. One that was restored skips the fences that it had before, so they are passed over."""
    now = ports.clock.now()
    abandoned = abandoned_by(state, now, policy.abandoned_for)
    lost, step = find_lost(job, ports, state), 1
    if isinstance(lost, OtherLedger) and _was_asked_before(request, ports):
        raise lost
    fence = max(state.fence, lost.fence if lost else 0) + step
    while True:
        stated = _restated(request, state, job, lost, fence)
        started = run_started(job, state, now, fence=fence, abandoned=abandoned, **stated)
        before = begin(started, ports.ledger)
        if before is not None:
            if lost is None:
                _state_late(started, state, before, ports)
            return started
        found = not_started(job, ports, started)
        if not isinstance(found, OtherLedger) or _was_asked_before(request, ports):
            raise found
        lost, step = lost or found, step * 2
        fence += step


def _was_asked_before(request: Request, ports: Ports) -> bool:
    """Before the ledger was restored, which then may have forgotten that it was carried out."""
    return ports.ledger.restored_at(request.at) is not None


def _restated(request: Request, state: State, job: Job, lost: PositionLost | None, fence: int) -> dict[str, Any]:
    adopted = request.operation == "adopt"
    adopted_at = min(request.snapshot, job.head) if request.changelog == job.changelog else job.head
    stated: dict[str, Any] = {
        "run_id": request.id,
        "specs": {**state.specs, job.spec: job.spec_text},
        "positions": (Range(0, BUCKETS, adopted_at if adopted else 0, job.spec),),
        "claims": (),
        "undelivered": (),
        "restates": False,
    }
    if adopted:
        stated["leftovers"] = ""
    if lost is not None:
        nothing_left = adopted or (isinstance(lost, OtherChangelog) and not state.delivered_any)
        return {**stated, "mark": request.id, "known_from": fence, "leftovers": "" if nothing_left else lost.reason}
    if request.operation == "resync":
        positions = state.positions if state.fence else stated["positions"]
        claims = _everything(request, positions) + state.claims
        kept = tuple(state.undelivered.values())
        return {**stated, "positions": positions, "claims": claims, "undelivered": kept, "restates": True}
    return stated


def _state_late(started: RunStarted, state: State, before: State, ports: Ports) -> None:
    if late := late_facts(started, state, before, transactional=ports.sink.transactional):
        ports.ledger.append(*late)


def _end(started: RunStarted, job: Job, ports: Ports, status: str, message: str) -> None:
    allowed, now = NOT_WELL if remaining(job, ports.sink, started.leftovers) else 0, ports.clock.now()
    finished = RunFinished(started.sync_id, started.fence, 1, now, status, NO_COUNTS, NO_ROWS, message, allowed=allowed)
    ports.ledger.append(finished)


def _everything(request: Request, positions: tuple[Range, ...]) -> tuple[Claim, ...]:
    """Every key that may have been delivered is in doubt, and so is sent again."""
    return tuple(
        Claim(f"{request.id}-{n}", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
        for n, place in enumerate(positions)
        if place.snapshot
    )
