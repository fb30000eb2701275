"""The first fact of a run: what was folded before it, stated again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dbt_reverse_etl.delivery.facts import RunStarted
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
