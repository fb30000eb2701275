"""What a run is going to send: its rows, the waves in which they go, and from where."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow.compute as pc

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, OneRow, Ports, Remote, Source
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.delivery.undelivered import KEY
from dbt_reverse_etl.delivery.waves import ONE_WAVE, Histogram, Waves, WaveSize
from dbt_reverse_etl.sinks.base import OPERATION, SparkSink


@dataclass(frozen=True)
class Plan:
    """What a run is going to send.

    Attributes:
        remote: sends the waves from where the rows are; None: the driver does.
        override: what let the plan pass its guards.
        full_load: all rows, in place of whatever the object holds.
        first: the first bucket.
    """

    source: Source
    histogram: Histogram
    waves: Waves
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
        else _of_all(ports, policy, state, source, after_crash=after_crash)
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
    in_spark = ports.executors is not None and isinstance(ports.sink, SparkSink)
    remote = ports.executors(whole) if ports.executors and in_spark else None
    waves = Waves(histogram, ONE_WAVE)
    return replace(made, source=whole, histogram=histogram, waves=waves, remote=remote, full_load=True)


def _of_all(ports: Ports, policy: Policy, state: State, source: Source, *, after_crash: bool) -> Plan:
    histogram = source.planned()
    override = ports.guard(histogram.total, state)
    far = ports.executors is not None and histogram.total.total >= policy.executors_from
    remote = ports.executors(source) if ports.executors and far else None
    size = policy.executor_waves if far else _driver_waves(policy, after_crash=after_crash)
    return Plan(source, histogram, Waves(histogram, size), remote, override)


def _driver_waves(policy: Policy, *, after_crash: bool) -> WaveSize:
    """After a run that ended within a wave, the first one is no larger than the ledger can list: the sync gets on, however it ends."""
    return replace(policy.waves, rows=min(policy.waves.rows, policy.most_listed)) if after_crash else policy.waves


def _of_one(job: Job, row: OneRow, ports: Ports, state: State, source: Source) -> Plan:
    pending = source.wave(row.bucket, row.bucket + 1)
    operations = pending.filter(pc.equal(pending.column(KEY), row.key)).column(OPERATION).to_pylist()
    if not operations:
        found, expected = "a key of which nothing is pending", "a row that the destination does not have as it is now"
        raise ReverseEtlError(Problem(job.task.sync, found, expected, "`plan` shows pending keys"))
    override = ports.guard(PerOperation.of(operations), state)
    histogram = source.planned_in(row.bucket)
    return Plan(source, histogram, Waves(histogram, ONE_WAVE, row.bucket), override=override, first=row.bucket)
