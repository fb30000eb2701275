"""Operations that were asked for in the ledger: each is a run of its own that sends nothing and states the position anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, RunFinished, RunStarted
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.errors import Problem, SyncBusy
from dbt_reverse_etl.ledger import Request


def carry_out(request: Request, state: State, job: Job, ports: Ports) -> None:
    """Do what was asked, once.

    Raises:
        SyncBusy: another run has just started.
        DestinationError: of the sink.
    """
    started = _restated(request, state, job, ports.clock.now())
    if not ports.ledger.start(started):
        raise SyncBusy(
            Problem(job.task.sync, "another run that has just started", "no other run of this sync", "push again")
        )
    try:
        # A destination that lost its record may start anew with this fence.
        ports.sink.open(replace(job.task, fence=started.fence, first=True))
    finally:
        ports.sink.close()
    now, message = ports.clock.now(), f"{request.operation} was asked for"
    ports.ledger.append(
        RunFinished(started.sync_id, started.fence, 1, now, request.operation, NO_COUNTS, NO_ROWS, message)
    )


def _restated(request: Request, state: State, job: Job, now: datetime) -> RunStarted:
    same = state.changelog in ("", job.changelog)
    kept = request.operation == "resync" and same
    positions: tuple[Range, ...] = (Range(0, BUCKETS, 0, job.spec),)
    claims: tuple[Claim, ...] = ()
    if request.operation == "adopt":
        positions = (Range(0, BUCKETS, job.head, job.spec),)
    elif kept:
        positions = state.positions if state.fence else positions
        claims = _everything(request, positions) + state.claims
    return RunStarted(
        sync_id=job.task.sync_id,
        fence=state.fence + 1,
        run_id=request.id,
        at=now,
        head=job.head,
        spec=job.spec,
        specs={**state.specs, job.spec: job.spec_text},
        positions=positions,
        claims=claims,
        undelivered=tuple(state.undelivered.values()) if kept else (),
        lease_until=now,
        owner=job.owner,
        sync=job.task.sync,
        changelog=job.changelog,
        invocation_id=job.invocation_id,
    )


def _everything(request: Request, positions: tuple[Range, ...]) -> tuple[Claim, ...]:
    """Every key that may have been delivered is in doubt, and so is sent again."""
    return tuple(
        Claim(f"{request.id}-{n}", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
        for n, place in enumerate(positions)
        if place.snapshot
    )
