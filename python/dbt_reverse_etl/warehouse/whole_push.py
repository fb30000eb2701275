"""Sends all rows of a push at once, to a destination that Spark itself writes: they never leave Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, malformed
from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.gate import Stop, StopKind
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.delivery.waves import ONE_WAVE
from dbt_reverse_etl.sinks.base import Sink, SinkTask, SparkSink, sent_columns
from dbt_reverse_etl.warehouse.executors import Work
from dbt_reverse_etl.warehouse.pending import PendingRows, operations_of

_STOPS = {Outcome.FATAL: StopKind.FATAL, Outcome.REJECTED: StopKind.REJECTIONS}


def one_wave(policy: Policy) -> Policy:
    """Whatever the number of rows."""
    return replace(policy, executors_from=0, executor_waves=ONE_WAVE)


class WholePush:
    """`delivery.ports.Remote` for a `SparkSink`: all rows, or none; where single rows are refused, batch by batch."""

    def __init__(self, rows: PendingRows, sink: SparkSink, make_sink: Callable[[], Sink], policy: Policy) -> None:
        self._rows, self._sink, self._make_sink, self._policy = rows, sink, make_sink, policy

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        """As `Remote.send`. Raises DestinationError: nobody knows whether the rows arrived."""
        rows = self._rows.frame(order.claim.lo, order.claim.hi)
        planned = operations_of(rows)
        if not planned.total and not task.full_load:  # an empty image empties the table
            return Sent()
        delivery = self._sink.push(rows.select(*map(quoted, sent_columns(self._sink, task))), order.claim.id)
        wrong = malformed(delivery)
        if wrong is not None:
            delivery = Delivery(stop=f"the sink answered with {wrong}, not a Delivery")
        if not delivery.results and not delivery.refused_whole and delivery.stop is None:
            return Sent(Counts(planned=planned, delivered=planned), (), nothing_applied=False)
        outcome, reason = _outcome_of(delivery)
        if outcome is Outcome.REJECTED and not task.full_load:
            return self._batch_by_batch(order, task, until())
        if outcome is Outcome.UNKNOWN:
            next_step = "push again: what arrived is looked up first"
            raise DestinationError(Problem(task.sync, reason, "an answer of the destination", next_step))
        kind = _STOPS.get(outcome, StopKind.UNAVAILABLE)
        return Sent(Counts(planned=planned, failed=planned), (), nothing_applied=True, stop=Stop(kind, reason))

    def _batch_by_batch(self, order: Order, task: SinkTask, until: datetime) -> Sent:
        """The engine finds the rows at fault."""
        work = Work(self._make_sink, order, task, self._sink.limits(task), self._policy, until)
        return work.send(self._rows.wave(order.claim.lo, order.claim.hi).to_batches())


def _outcome_of(delivery: Delivery) -> tuple[Outcome, str]:
    """Of all rows, and why: that of row 0, or what an answer without it says."""
    if delivery.results:
        return delivery.results[0].outcome, delivery.results[0].reason
    if delivery.stop is not None:
        return Outcome.UNKNOWN, delivery.stop
    return Outcome.REJECTED, "the push was refused"
