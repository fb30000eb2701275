"""The first facts of a run: what was folded before it, stated again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import Any

from dbt_reverse_etl.delivery.counts import NO_COUNTS
from dbt_reverse_etl.delivery.facts import Claim, ClaimsSettled, Fact, RunStarted, WaveAcknowledged
from dbt_reverse_etl.delivery.ports import Job, LedgerPort
from dbt_reverse_etl.delivery.position import State

_RESTATED = ("specs", "positions", "claims", "abandoned", "known_from", "leftovers")


def run_started(job: Job, state: State, now: datetime, **stated: Any) -> RunStarted:
    """The start of the run after `state`; `stated` says what is otherwise than before."""
    restated: dict[str, Any] = {
        "sync_id": job.task.sync_id,
        "fence": state.fence + 1,
        "run_id": job.run_id,
        "at": now,
        "head": job.head,
        "spec": job.spec,
        **{name: getattr(state, name) for name in _RESTATED},
        "undelivered": tuple(state.undelivered.values()),
        "lease_until": now,
        "owner": job.owner,
        "sync": job.task.sync,
        "changelog": job.changelog,
        "invocation_id": job.invocation_id,
        "exposure": job.exposure,
        "mark": state.mark or job.run_id,
        **stated,
    }
    places = (*restated["positions"], *restated["claims"])
    used = {job.head, *(place.snapshot for place in places)}
    captures = {snapshot: uuid for snapshot, uuid in {**state.captures, **job.captures}.items() if snapshot in used}
    return RunStarted(**{"captures": captures, **restated})


def begin(started: RunStarted, ledger: LedgerPort) -> State | None:
    """Start the run, and return the fence before as it stands after it; None: another run has this fence."""
    before = ledger.start(started)
    return before and _caught_up(before, started.sync_id, ledger)


def _caught_up(state: State, sync_id: str, ledger: LedgerPort) -> State:
    """The state with what was recorded at the fence before it was stated: a run that was killed at once did not say it again."""
    began = []
    while state.only_began and state.fence > 1:
        older = ledger.read(sync_id, state.fence - 1)
        if not older.fence:  # a restored ledger lacks it
            break
        began.append(state)
        state = older
    return reduce(_on_top, reversed(began), state)


def _on_top(older: State, state: State) -> State:
    known = {claim.id for claim in older.claims}
    # Its own ones; and doubts, which a run that wakes late records at the newest fence.
    stated = (claim for claim in state.claims if claim.id not in known)
    own = tuple(claim for claim in stated if claim.id.startswith(f"{state.only_began}-") or claim.is_doubt)
    return replace(
        state,
        positions=older.positions,
        claims=older.claims + own,
        undelivered={**older.undelivered, **{key: state.undelivered[key] for key in state.found}},
        specs={**older.specs, **state.specs},
    )


def looked_back(started: RunStarted, before: State) -> tuple[Fact, ...]:
    """After a run that was killed at once: the fences before it hold nothing that this run does not know, so that the next one stops here."""
    return (_settled(started, 1, {}, (), ()),) if before.only_began else ()


def late_facts(started: RunStarted, state: State, before: State, *, transactional: bool) -> tuple[Fact, ...]:
    """Waves, claims and doubts that were recorded after `state` was read: nobody reads the facts of their fence any more.

    Args:
        state: as it was read, and stated again by `started`.
        before: as it was when this run began.
    """
    waves = _late_waves(started, state, before)
    known = {claim.id for claim in state.claims}
    claims = tuple(claim for claim in before.claims if claim.id not in known)
    if not claims:
        return waves
    if not transactional:  # any other sink may still be receiving what is under way
        claims = tuple(replace(claim, everything=True) for claim in claims)
    return (*waves, _settled(started, len(waves) + 1, before.specs, claims, ()))


def _late_waves(started: RunStarted, state: State, before: State) -> tuple[Fact, ...]:
    if not before.fence or not started.restates:
        return ()
    if (before.positions, before.undelivered) == (state.positions, state.undelivered):
        return ()
    known = tuple(claim.id for claim in state.claims)
    still_open = tuple(claim for claim in before.claims if claim.id in known)
    waves = (
        WaveAcknowledged(
            **vars(place),
            sync_id=started.sync_id,
            fence=started.fence,
            seq=number,
            at=started.at,
            counts=NO_COUNTS,
            undelivered=tuple(row for row in before.undelivered.values() if place.lo <= row.bucket < place.hi),
            closes=(),
            claims=(),
            lease_until=started.lease_until,
            replaced=bool(state.leftovers and not before.leftovers),
        )
        for number, place in enumerate(before.positions, 2)
    )
    return (_settled(started, 1, before.specs, still_open, known), *waves)


def _settled(
    started: RunStarted, seq: int, specs: Mapping[str, str], claims: tuple[Claim, ...], closes: tuple[str, ...]
) -> ClaimsSettled:
    return ClaimsSettled(started.sync_id, started.fence, seq, started.at, (), closes, claims, specs)
