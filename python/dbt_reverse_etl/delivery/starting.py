"""The first facts of a run: what was folded before it, stated again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from dbt_reverse_etl.delivery.counts import NO_COUNTS
from dbt_reverse_etl.delivery.facts import Claim, ClaimsSettled, Fact, RunStarted, WaveAcknowledged
from dbt_reverse_etl.delivery.ports import Job
from dbt_reverse_etl.delivery.position import State


def run_started(job: Job, state: State, now: datetime, **stated: Any) -> RunStarted:
    """The start of the run after `state`; `stated` says what is otherwise than before."""
    restated: dict[str, Any] = {
        "sync_id": job.task.sync_id,
        "fence": state.fence + 1,
        "run_id": job.run_id,
        "at": now,
        "head": job.head,
        "spec": job.spec,
        "specs": state.specs,
        "positions": state.positions,
        "claims": state.claims,
        "undelivered": tuple(state.undelivered.values()),
        "lease_until": now,
        "owner": job.owner,
        "sync": job.task.sync,
        "changelog": job.changelog,
        "invocation_id": job.invocation_id,
        "exposure": job.exposure,
        "abandoned": state.abandoned,
        "mark": state.mark or job.run_id,
        "known_from": state.known_from,
        "leftovers": state.leftovers,
        **stated,
    }
    places = (*restated["positions"], *restated["claims"])
    used = {job.head, *(place.snapshot for place in places)}
    captures = {snapshot: uuid for snapshot, uuid in {**state.captures, **job.captures}.items() if snapshot in used}
    return RunStarted(**{"captures": captures, **restated})


def late_claims(known: Collection[str], before: State, *, transactional: bool) -> tuple[Claim, ...]:
    """Claims of the run before, and doubts, that were recorded after its state was read.

    Args:
        known: ids of those that were read.
        before: as it was when this run began.
    """
    late = tuple(claim for claim in before.claims if claim.id not in known)
    # A transactional sink refuses what is under way; any other may still be receiving it.
    return late if transactional else tuple(replace(claim, everything=True) for claim in late)


def late_waves(started: RunStarted, state: State, before: State) -> tuple[Fact, ...]:
    """What the run before acknowledged after its state was read, stated again: nobody reads the facts of its fence any more.

    Args:
        state: as it was read, and stated again by `started`.
        before: as it was when this run began.
    """
    if not before.fence or (before.positions, before.undelivered) == (state.positions, state.undelivered):
        return ()
    told: dict[str, Any] = {"sync_id": started.sync_id, "fence": started.fence, "at": started.at}
    known = tuple(claim.id for claim in state.claims)
    still_open = tuple(claim for claim in before.claims if claim.id in known)
    settled = ClaimsSettled(**told, seq=1, delivered=(), closes=known, claims=still_open, specs=before.specs)
    waves = (
        WaveAcknowledged(
            **told,
            seq=number,
            lo=place.lo,
            hi=place.hi,
            snapshot=place.snapshot,
            spec=place.spec,
            counts=NO_COUNTS,
            undelivered=tuple(row for row in before.undelivered.values() if place.lo <= row.bucket < place.hi),
            closes=(),
            claims=(),
            lease_until=started.lease_until,
            replaced=bool(state.leftovers and not before.leftovers),
        )
        for number, place in enumerate(before.positions, 2)
    )
    return (settled, *waves)


def late_facts(started: RunStarted, state: State, before: State, *, transactional: bool) -> tuple[Fact, ...]:
    """Waves and claims that were recorded after `state` was read, stated again by an operation, which sends nothing."""
    waves = late_waves(started, state, before)
    claims = late_claims([claim.id for claim in state.claims], before, transactional=transactional)
    if not claims:
        return waves
    told: dict[str, Any] = {"sync_id": started.sync_id, "fence": started.fence, "at": started.at}
    seq = len(waves) + 1
    return (*waves, ClaimsSettled(**told, seq=seq, delivered=(), closes=(), claims=claims, specs=before.specs))
