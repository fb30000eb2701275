"""Operations that were asked for in the ledger: each is a run of its own that sends nothing and states the position anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dbt_reverse_etl.delivery.admission import refuse_second
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, RunFinished, RunStarted, Undelivered
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, LedgerPort, Ports
from dbt_reverse_etl.delivery.position import State, abandoned_by
from dbt_reverse_etl.errors import Problem, SyncBusy
from dbt_reverse_etl.ledger import Request


def carry_out(request: Request, state: State, job: Job, ports: Ports, policy: Policy) -> None:
    """Do what was asked, once.

    Raises:
        SyncBusy: another run is under way.
        DestinationError: of the sink.
    """
    refuse_second(job, ports, state)
    now = ports.clock.now()
    abandoned = abandoned_by(state, now, policy.abandoned_for)
    started = replace(_restated(request, state, job, now), abandoned=abandoned)
    _start(started, ports.ledger)
    try:
        # A destination that lost its record may start anew with this fence.
        ports.sink.open(replace(job.task, fence=started.fence, first=True))
    finally:
        ports.sink.close()
    message = f"{request.operation} was asked for"
    ports.ledger.append(_finished(started, ports.clock.now(), request.operation, message))


def deliver_again(rows: Sequence[Undelivered], state: State, job: Job, ledger: LedgerPort, now: datetime) -> None:
    """Say that these rows are undelivered, whatever was acknowledged: the next push sends them.

    Raises:
        SyncBusy: another run has just started.
    """
    kept = (*state.undelivered.values(), *rows)
    started = _run(
        state, job, now, job.run_id, state.positions, undelivered=kept, specs=state.specs, abandoned=state.abandoned
    )
    _start(started, ledger)
    ledger.append(_finished(started, now, "reconcile", f"reconcile found {len(rows)} rows that differ"))


def _start(started: RunStarted, ledger: LedgerPort) -> None:
    if not ledger.start(started):
        expected = "no other run of this sync"
        raise SyncBusy(Problem(started.sync, "another run that has just started", expected, "push again"))


def _finished(started: RunStarted, now: datetime, status: str, message: str) -> RunFinished:
    return RunFinished(started.sync_id, started.fence, 1, now, status, NO_COUNTS, NO_ROWS, message)


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
    undelivered = tuple(state.undelivered.values()) if kept else ()
    specs = {**state.specs, job.spec: job.spec_text}
    return _run(state, job, now, request.id, positions, claims=claims, undelivered=undelivered, specs=specs)


def _run(state: State, job: Job, now: datetime, run_id: str, positions: tuple[Range, ...], **stated: Any) -> RunStarted:
    return RunStarted(
        sync_id=job.task.sync_id,
        fence=state.fence + 1,
        run_id=run_id,
        at=now,
        head=job.head,
        spec=job.spec,
        positions=positions,
        lease_until=now,
        owner=job.owner,
        sync=job.task.sync,
        changelog=job.changelog,
        invocation_id=job.invocation_id,
        exposure=job.exposure,
        **{"claims": (), **stated},
    )


def _everything(request: Request, positions: tuple[Range, ...]) -> tuple[Claim, ...]:
    """Every key that may have been delivered is in doubt, and so is sent again."""
    return tuple(
        Claim(f"{request.id}-{n}", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
        for n, place in enumerate(positions)
        if place.snapshot
    )
