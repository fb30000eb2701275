"""May a run start, and has it anything to do? Asked before anything is planned or written."""

from __future__ import annotations

from datetime import datetime, timedelta

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.delivery.health import ended
from dbt_reverse_etl.delivery.lost import busy, cut_off, vanished, why_lost
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.position import State

_SKEW = timedelta(minutes=1)  # of two clocks that are right


def refuse(job: Job, ports: Ports, state: State, policy: Policy) -> None:
    """Positions that say nothing, another run, a destination that lost what it had: a run must not even start."""
    if lost := why_lost(job, state, ports.sink):
        raise lost
    refuse_second(job, ports, state, policy)
    if lost := cut_off(job, ports, state):
        raise lost
    # Asked even if nothing is pending: a position says nothing about a destination that was emptied.
    if gone := vanished(job, ports, state):
        raise DestinationError(gone)


def refuse_second(job: Job, ports: Ports, state: State, policy: Policy) -> None:
    """While another run of this sync lives and holds its lease, none may start: also by a wrong clock, for nobody knows which one is."""
    until, now = state.lease_until, ports.clock.now()
    if state.finished or until is None or until <= now or not ports.owner_alive(state.owner):
        return
    found = f"a run of {state.owner} with a lease until {until.isoformat()}"
    if until - now <= policy.lease + _SKEW:
        raise busy(job, found)
    expected = f"at most {policy.lease} from now, {now.isoformat()}: one of the two clocks is wrong"
    next_step = "set the clock of this machine or of that one right; if its run is gone, this sync goes on at the end of the lease"
    raise busy(job, found, expected, next_step)


def rests(job: Job, state: State, policy: Policy, now: datetime) -> bool:
    """Everything is delivered, or waits: there is no need to plan."""
    rows = state.undelivered.values()
    due = any(policy.retry_now or not row.waits(now, park_doubt=policy.park_doubt) for row in rows)
    return ended(state) and state.is_at(job.head, job.spec) and not due
