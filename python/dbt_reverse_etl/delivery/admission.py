"""May a run start, and has it anything to do? Asked before anything is planned or written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from dbt_reverse_etl.delivery.health import ended
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.errors import DestinationError, OtherChangelog, Problem, SyncBusy


def refuse(job: Job, ports: Ports, state: State) -> None:
    """Another changelog, another run, a destination that lost what it had: a run must not even start."""
    if state.changelog not in ("", job.changelog):
        raise OtherChangelog(
            Problem(
                job.task.sync,
                f"a position of changelog {state.changelog}",
                f"changelog {job.changelog}",
                f"{_operation('resync', job)} to send everything again, or adopt if the destination holds the same rows",
            )
        )
    refuse_second(job, ports, state)
    _refuse_vanished(job, ports, state)


def refuse_second(job: Job, ports: Ports, state: State) -> None:
    """While another run of this sync lives and holds its lease, none may start."""
    until = state.lease_until
    if not state.finished and until is not None and ports.clock.now() < until and ports.owner_alive(state.owner):
        raise busy(job, f"a run of {state.owner} with a lease until {until.isoformat()}")


def _refuse_vanished(job: Job, ports: Ports, state: State) -> None:
    if state.first:
        return
    # Asked even if nothing is pending: a position says nothing about a destination that was emptied.
    lost = ports.sink.missing(replace(job.task, first=False))
    if lost is not None:
        raise DestinationError(
            Problem(
                job.task.sync,
                lost,
                "what earlier runs delivered",
                f"restore it, or {_operation('resync', job)} to send everything again",
            )
        )


def _operation(name: str, job: Job) -> str:
    return f"dbt run-operation {name} --args '{{sync: {job.task.sync}}}'"


def busy(job: Job, found: str) -> SyncBusy:
    """The error of a run that finds another one at work."""
    return SyncBusy(Problem(job.task.sync, found, "no other run of this sync", "wait for it to end, then push again"))


def rests(job: Job, state: State, policy: Policy, now: datetime) -> bool:
    """Everything is delivered, or waits: there is no need to plan."""
    due = any(
        policy.retry_now or not row.waits(now, park_doubt=policy.park_doubt) for row in state.undelivered.values()
    )
    return ended(state) and state.is_at(job.head, job.spec) and not due
