"""Sends the waves of one run: from the driver or from tasks, as changes or as a full load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.facts import Claim
from dbt_reverse_etl.delivery.gate import LeaseLost, Stop, StopKind
from dbt_reverse_etl.delivery.lease import Lease
from dbt_reverse_etl.delivery.planning import Plan
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports, Remote
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.sending import NOTHING_SENT, Sent, send
from dbt_reverse_etl.delivery.streams import in_buckets, whole_claim
from dbt_reverse_etl.delivery.undelivered import InDoubt, Order, in_mode
from dbt_reverse_etl.delivery.wave import count_operations
from dbt_reverse_etl.delivery.waves import Waves
from dbt_reverse_etl.sinks.base import OPERATION, Batch, SinkTask, sent_columns
from dbt_reverse_etl.sinks.buckets import BatchBuckets

_OUT_OF_TIME = Stop(
    StopKind.UNAVAILABLE,
    "a wave of the executors did not end within its lease: the destination got slower, or their clocks are ahead of the driver's; the next push begins with a small wave",
)


@dataclass(frozen=True)
class WaveSender:
    """The parts of one run that send.

    Attributes:
        task: with what the run filled in.
        begin: called before the first request of a claim.
    """

    job: Job
    ports: Ports
    policy: Policy
    state: State
    task: SinkTask
    engine: Engine
    lease: Lease
    plan: Plan
    begin: Callable[[Claim], None]

    def send(self, claim: Claim) -> Sent:
        """Send the rows of a claim. Raises LeaseLost; ReverseEtlError where the stream holds other rows than the plan."""
        listed, mode = self.state.undelivered, self.task.mode
        known = {key: in_mode(mode, row) for key, row in listed.items() if claim.lo <= row.bucket < claim.hi}
        order = Order(
            claim,
            known,
            self.ports.clock.now(),
            self.policy.rejections,
            self.policy.retry_now,
            InDoubt.of(self.state.claims, self.policy),
            self.job.only.key if self.job.only else None,
            waits_at=self.plan.at,
        )
        if self.plan.remote is not None:
            return self._whole_or_nothing(self._send_from_executors(self.plan.remote, order))
        if self.task.full_load:
            return self._send_full_load(order)
        table, chunk = self._read(claim.lo, claim.hi), None
        if self.ports.sink.settles_buckets:
            table, chunk = in_buckets(table), whole_claim(claim.lo, claim.hi)
        self._look_at_lease()
        self.begin(claim)
        return send(self.engine, order, table, chunk=chunk)

    def _read(self, lo: int, hi: int) -> pa.Table:
        with self.lease.kept():
            table = self.plan.source.wave(lo, hi)
        self._refuse_other_rows((lo, hi), count_operations(table.column(OPERATION)))
        self.ports.step("wave.read")
        return table

    def _send_full_load(self, order: Order) -> Sent:
        """Load everything, as many rows at a time as fit into memory; nobody sees it before the swap."""
        self.begin(order.claim)
        sent, parts = NOTHING_SENT, Waves(self.plan.histogram, self.policy.waves)
        while sent.stop is None and not sent.undelivered and (part := parts.next_range(None)) is not None:
            table = self._read(*part)
            self._look_at_lease()
            sent += send(self.engine, order, table)
        if sent.stop is None and not sent.undelivered:
            self.ports.step("full_load.loaded")
            self._look_at_lease()
            with self.lease.kept():
                self.ports.sink.swap(order.claim.id)
        return self._whole_or_nothing(sent)

    def _whole_or_nothing(self, sent: Sent) -> Sent:
        if not self.task.full_load or (sent.stop is None and not sent.undelivered):
            return sent
        planned = self.plan.histogram.total
        reason = sent.stop.reason if sent.stop else f"{len(sent.undelivered)} rows were not taken"
        stop = Stop(sent.stop.kind if sent.stop else StopKind.REJECTIONS, f"the full load was given up: {reason}")
        return Sent(Counts(planned=planned, failed=planned), (), nothing_applied=True, stop=stop)

    def _send_from_executors(self, remote: Remote, order: Order) -> Sent:
        self._look_at_lease()
        self.begin(order.claim)
        with self.lease.kept():  # a MERGE of everything does not look at it
            sent = self._in_time(remote.send(order, self.task, lambda: self.lease.until))
        self._refuse_other_rows((order.claim.lo, order.claim.hi), sent.counts.planned)
        if self.ports.sink.transactional and sent.stop is None:
            # No task knows whether another one left a row out, so the record is closed here.
            nothing = self.plan.source.wave(0, 0).select(sent_columns(self.ports.sink, self.task))
            left_out = len(sent.undelivered)
            closed = self.ports.sink.deliver(Batch(nothing, order.claim.id, left_out=left_out, buckets=BatchBuckets()))
            if closed.stop is not None:
                raise LeaseLost
        return sent

    def _in_time(self, sent: Sent) -> Sent:
        """Tasks that were about to outlive the lease left rows unsent: where the ledger can list them, the run goes on."""
        if sent.stop is None or sent.stop.kind is not StopKind.INTERRUPTED or self.ports.interrupted():
            return sent
        listed = len(sent.undelivered) <= self.policy.most_listed
        return replace(sent, stop=None if listed else _OUT_OF_TIME)

    def _look_at_lease(self) -> None:
        if not self.lease.held():
            raise LeaseLost

    def _refuse_other_rows(self, buckets: tuple[int, int], found: PerOperation) -> None:
        planned = self.plan.histogram.rows(*buckets)
        if found != planned:
            # Acknowledging it would lose the missing rows: an empty answer may be a cancelled query.
            rows = f"{found.total} rows in the buckets {buckets[0]} to {buckets[1]}"
            next_step = "push again; if it stays so, run `check` and report it"
            raise ReverseEtlError(Problem(self.job.task.sync, rows, f"{planned.total} as planned", next_step))
