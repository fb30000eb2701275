"""What a run is going to send: its rows, the waves in which they go, and from where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.delivery.counts import NO_ROWS, PerOperation
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, OneRow, Ports, Remote, Source
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.delivery.undelivered import KEY, InDoubt, in_mode, refused_before, split, was_refused
from dbt_reverse_etl.delivery.wave import count_operations
from dbt_reverse_etl.delivery.waves import ONE_WAVE, Histogram, Waves
from dbt_reverse_etl.sinks.base import OPERATION, Mode, SparkSink

_NO_ROWS = pa.table({KEY: pa.array([], pa.string()), OPERATION: pa.array([], pa.string())})


@dataclass(frozen=True)
class Counted:
    """What is pending, as a push and a plan of it count it.

    Attributes:
        attempted: rows that a run that is planned now attempts; by it and `refused` the guards judge.
        refused: those of them that the destination has refused before with this value: they have passed the guards.
        wait: those that the ledger lists, and that such a run does not attempt, with the columns of `Source.listed`.
        far: they are so many that they are sent from where they are.
        at: when they were counted.
    """

    histogram: Histogram
    attempted: PerOperation
    refused: PerOperation
    wait: pa.Table
    far: bool
    at: datetime


@dataclass(frozen=True)
class Plan:
    """What a run is going to send.

    Attributes:
        remote: sends the waves from where the rows are; None: the driver does.
        override: what let the plan pass its guards.
        full_load: all rows, in place of whatever the object holds.
        first: the first bucket.
        at: when it was made, by which the guards have counted who waits.
    """

    source: Source
    histogram: Histogram
    waves: Waves
    at: datetime
    remote: Remote | None = None
    override: str = ""
    full_load: bool = False
    first: int = 0


def plan(job: Job, ports: Ports, policy: Policy, state: State, *, after_crash: bool) -> Plan:
    """Count what is pending, and let the guards judge it.

    Raises:
        GuardBlocked: the plan does not pass the guards.
        ReverseEtlError: of the one row of the job nothing is pending.
    """
    source = ports.source_for(state)
    made = (
        _of_one(job, job.only, ports, state, source)
        if job.only
        else _of_all(job, ports, policy, state, source, after_crash=after_crash)
    )
    ports.progress(Number.PLANNED, made.histogram.total.total)
    ports.step("run.planned")
    return made


def as_full_load(made: Plan, job: Job, ports: Ports, state: State) -> Plan:
    """The whole image in place of the changes where the sync may; before the sink is opened, which must know it."""
    whole = None if job.only else ports.full_load(made.source, state)
    if whole is None:
        return made
    histogram = whole.planned()
    ports.progress(Number.PLANNED, histogram.total.total)
    remote = ports.executors(whole) if ports.executors and isinstance(ports.sink, SparkSink) else None
    waves = Waves(histogram, ONE_WAVE)
    return replace(made, source=whole, histogram=histogram, waves=waves, remote=remote, full_load=True)


def count(source: Source, state: State, ports: Ports, policy: Policy, mode: Mode) -> Counted:
    """The pending rows, and those of them that a run attempts now."""
    now, histogram = ports.clock.now(), source.planned()
    far = ports.executors is not None and histogram.total.total >= policy.executors_from
    whole = far and isinstance(ports.sink, SparkSink)  # Spark itself writes every row, those that wait, too
    wait, refused = _not_counted(source, state, policy, mode, now, all_sent=whole or policy.retry_now)
    waiting, again = (count_operations(rows.column(OPERATION)) for rows in (wait, refused))
    return Counted(histogram, histogram.total - waiting, again, wait, far, now)


def _not_counted(  # noqa: PLR0913  (each is a fact about the plan)
    source: Source, state: State, policy: Policy, mode: Mode, now: datetime, *, all_sent: bool
) -> tuple[pa.Table, pa.Table]:
    """What the guards need not count of the rows that the ledger lists: those that wait, and those that were refused before.

    What waits and is not listed, as claims may leave it, is not among it.
    """
    known = {key: in_mode(mode, row) for key, row in state.undelivered.items()}
    if not any(was_refused(row) or row.waits(now, park_doubt=policy.park_doubt) for row in known.values()):
        return _NO_ROWS, _NO_ROWS
    rows, wait = source.listed(), _NO_ROWS
    if not all_sent:
        rows, wait = split(rows, known, now, InDoubt.of(state.claims, policy))
    return wait, refused_before(rows, known)[1]


def _of_all(  # noqa: PLR0913  (each is a part of the run)
    job: Job, ports: Ports, policy: Policy, state: State, source: Source, *, after_crash: bool
) -> Plan:
    counted = count(source, state, ports, policy, job.task.mode)
    override = ports.guard(counted.attempted, counted.refused, state)
    remote = ports.executors(source) if ports.executors and counted.far else None
    size = policy.executor_waves if counted.far else policy.waves
    if after_crash and not counted.far:  # no larger than the ledger can list: the sync gets on, however the run ends
        size = replace(size, rows=min(size.rows, policy.most_listed))
    return Plan(source, counted.histogram, Waves(counted.histogram, size), counted.at, remote, override)


def _of_one(job: Job, row: OneRow, ports: Ports, state: State, source: Source) -> Plan:
    pending = source.wave(row.bucket, row.bucket + 1)
    operations = pending.filter(pc.equal(pending.column(KEY), row.key)).column(OPERATION).to_pylist()
    if not operations:
        found, expected = "a key of which nothing is pending", "a row that the destination does not have as it is now"
        raise ReverseEtlError(Problem(job.task.sync, found, expected, "`plan` shows pending keys"))
    override = ports.guard(PerOperation.of(operations), NO_ROWS, state)
    histogram = source.planned_in(row.bucket)
    waves = Waves(histogram, ONE_WAVE, row.bucket)
    return Plan(source, histogram, waves, ports.clock.now(), override=override, first=row.bucket)
