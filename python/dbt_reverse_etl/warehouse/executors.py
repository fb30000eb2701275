"""Sends waves from tasks on Spark's executors: the same engine and the same sink, one of each in every task."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.facts import Undelivered
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.progress import Step, no_step
from dbt_reverse_etl.delivery.sending import NOTHING_SENT, Sent, send, without_applied
from dbt_reverse_etl.delivery.streams import Stripes, TaskStream
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.sinks.base import Applied, Limits, Sink, SinkTask, close_quietly
from dbt_reverse_etl.warehouse.pending import PendingRows
from dbt_reverse_etl.warehouse.shipping import reach_executors

_CHUNK = 50_000  # rows in the memory of a task; where a batch may hold more, those of one batch
_CHUNK_BYTES = 64 * 1024 * 1024  # of them
_MARGIN = timedelta(seconds=60)  # clocks differ, and a request that is under way needs its time
_ACKS = pa.schema([("sent", pa.string())])
_SENT = TypeAdapter(Sent)
_LACKING = re.compile(r"No module named '([\w.]+)'")


class Executors:
    """`delivery.ports.Remote`: one action of Spark for each wave, no exchange, an acknowledgement for each task.

    Args:
        rows: the pending rows; each key stands in one partition, and where `stripes` are found, each bucket.
        sink: that of the driver, which is asked and sends nothing.
        make_sink: pickled with its settings into the tasks; it stands in no plan and in no configuration of Spark.
    """

    def __init__(
        self, spark: SparkSession, rows: PendingRows, sink: Sink, make_sink: Callable[[], Sink], policy: Policy
    ) -> None:
        self._spark, self._rows, self._sink, self._make_sink, self._policy = spark, rows, sink, make_sink, policy
        self._stripes = rows.stripes() if sink.settles_buckets else None
        reach_executors(spark.sparkContext)

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        """As `Remote.send`."""
        limits = self._sink.limits(task)
        task = replace(task, texts=self._sink.texts(task), project_dir=None)
        rows = self._rows.frame(order.claim.lo, order.claim.hi)
        # No more than there are parts: a share that no task takes is a part of the budget that nobody uses.
        parts = min(self._spark.sparkContext.defaultParallelism, rows.rdd.getNumPartitions())
        tasks = max(1, min(limits.concurrency, parts))
        share, end = _share(limits, tasks), until() - _MARGIN
        work = Work(self._make_sink, order, task, share, self._policy, end, stripes=self._stripes)
        rows = rows.coalesce(tasks)
        with _explained(task.sync), _job_group(self._spark) as was_restarted:
            acks = rows.mapInArrow(work, "sent string").toArrow()
            sent = sum((_SENT.validate_json(text) for text in acks.column("sent").to_pylist()), NOTHING_SENT)
            return after_a_lost_attempt(sent) if was_restarted() else sent


def starts_tasks_twice(spark: SparkSession) -> bool:
    """Two attempts of one task that send at the same time may put an older value over a newer one."""
    return str(spark.conf.get("spark.speculation", "false")).strip().lower() == "true"  # a profile gives "True"


@contextmanager
def _explained(sync: str) -> Iterator[None]:
    """What is most often wrong with a new cluster; any other text of Spark may hold row values."""
    try:
        yield
    except PySparkException as error:
        lacking = _LACKING.search(str(error))
        if lacking is None:
            raise
        found = f"executors whose Python has no module {lacking[1]}"
        expected = "the packages of this environment on each executor, in the Python that PYSPARK_PYTHON names"
        next_step = "install them there, or ship them with spark.archives: docs/clusters.md"
        raise ReverseEtlError(Problem(sync, found, expected, next_step)) from None


@contextmanager
def _job_group(spark: SparkSession) -> Iterator[Callable[[], bool]]:
    """Gives the question whether Spark began a stage anew, with tasks that count their attempts from 0 again."""
    context, group = spark.sparkContext, f"dbt-reverse-etl {uuid.uuid4().hex}"
    context.setJobGroup(group, "dbt-reverse-etl: a wave")

    def was_restarted() -> bool:
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return any(stage.currentAttemptId > 0 for stage in stages if stage)

    try:
        yield was_restarted
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # takes it away


def _share(limits: Limits, tasks: int) -> Limits:
    """What one of several tasks that run at once may use of the budget of the sync."""
    rate = limits.requests_per_second
    share = None if rate is None else rate / tasks
    return replace(limits, concurrency=max(1, limits.concurrency // tasks), requests_per_second=share)


@dataclass(frozen=True)
class Work:
    """What one task does: called by Spark with the batches of its partition.

    Attributes:
        until: when tasks stop, by the driver's clock.
        stripes: the task has all rows of each bucket that it has, and they come bucket by bucket; None: that is not known.
    """

    make_sink: Callable[[], Sink]
    order: Order
    task: SinkTask
    limits: Limits
    policy: Policy
    until: datetime
    clock: Clock = field(default_factory=Clock)
    step: Step = no_step
    stripes: Stripes | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent = self.send(batches)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            sent = after_a_lost_attempt(sent)
        yield pa.RecordBatch.from_arrays([pa.array([_SENT.dump_json(sent).decode()])], schema=_ACKS)

    def send(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send every row, chunk by chunk, through one sink."""
        return sum(self._sent(batches), NOTHING_SENT)

    def _sent(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Sent]:
        clock, sink, stop = self.clock, None, None
        # A clock that has not come to the time of the order is behind that of the driver.
        until = self.until - max(self.order.now - clock.now(), timedelta())
        stream = TaskStream(self.stripes) if self.stripes else None
        try:
            for table in _chunks(batches, self.limits, stream.end if stream else _all_rows):
                if sink is None:
                    sink = self.make_sink()
                    sink.open(self.task)
                    before = sink.applied(self.order.claim.id) if stream else Applied()
                    engine = Engine(
                        sink,
                        self.task,
                        self.policy,
                        clock,
                        lambda: True,  # the driver holds the lease
                        interrupted=lambda: clock.now() >= until,
                        step=self.step,
                        limits=self.limits,
                        alone=False,
                    )
                chunk = stream.chunk(table) if stream else None
                rest, done = without_applied(table, before)
                sent = done + send(engine, self.order, rest, stop, chunk)
                stop = stop or sent.stop
                yield sent
        finally:
            if sink is not None:
                close_quietly(sink)


def _all_rows(table: pa.Table, following: pa.RecordBatch) -> int:  # noqa: ARG001  (the shape of `TaskStream.end`)
    return int(table.num_rows)


def _chunks(
    batches: Iterable[pa.RecordBatch], limits: Limits, end: Callable[[pa.Table, pa.RecordBatch], int] = _all_rows
) -> Iterator[pa.Table]:
    """Tables of as many rows as a task may have; what `end` leaves of one begins the next."""
    most = max(_CHUNK, limits.rows)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        more, larger = rows + batch.num_rows, size + batch.nbytes
        if waiting and (
            more > most or larger > max(_CHUNK_BYTES, limits.bytes) or (more > _CHUNK and larger > limits.bytes)
        ):
            table = pa.Table.from_batches(waiting)
            stop = end(table, batch)
            yield table.slice(0, stop)
            table = table.slice(stop)
            waiting, more, larger = table.to_batches(), table.num_rows + batch.num_rows, table.nbytes + batch.nbytes
        waiting.append(batch)
        rows, size = more, larger
    if waiting:
        yield pa.Table.from_batches(waiting)


def after_a_lost_attempt(sent: Sent) -> Sent:
    """Nobody knows what the first attempt of this task applied: what was not delivered now is in doubt."""
    return replace(sent, undelivered=tuple(map(_in_doubt, sent.undelivered)), nothing_applied=False)


def _in_doubt(row: Undelivered) -> Undelivered:
    maybe = row.maybe or row.after_hash is not None
    return replace(row, outcome=Outcome.UNKNOWN.value, doubt=True, in_flight=True, maybe=maybe)
