"""Delivers the rows of one wave: batches, retries, bisection of a refused batch, the breaker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import cast

from dbt_reverse_etl.base.outcome import TROUBLE, Delivery, Outcome, malformed
from dbt_reverse_etl.base.workers import at_once
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.gate import Gate, LeaseLost, Permits, Repeat, Stop, StopKind, jitter, never
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.prepared import Prepared
from dbt_reverse_etl.delivery.progress import Number, Progress, Step, no_progress, no_step
from dbt_reverse_etl.delivery.wave import RowFailure, Wave, WavePart
from dbt_reverse_etl.delivery.waves import anywhere
from dbt_reverse_etl.sinks.base import Limits, Mode, Sink, SinkTask, sent_columns


@dataclass(frozen=True)
class WaveResult:
    """What became of the rows of a wave.

    Attributes:
        failures: by row number of the wave's table; a row that is not listed was delivered.
        counts: of the rows that the engine was given.
        stop: why the sync must stop here, or None.
    """

    failures: Mapping[int, RowFailure]
    counts: Counts
    stop: Stop | None

    @property
    def nothing_applied(self) -> bool:
        """Surely no row reached the destination, and none was rejected: the wave may as well not have happened."""
        surely = (Outcome.RETRYABLE, Outcome.FATAL)
        return self.counts.delivered.total == 0 and all(row.outcome in surely for row in self.failures.values())

    @property
    def any_unknown(self) -> bool:
        """Nobody knows of some rows whether they were applied."""
        return any(row.outcome is Outcome.UNKNOWN for row in self.failures.values())


@dataclass
class Engine:
    """Sends the waves of one run through one sink; budgets and pauses are shared by all of them.

    Attributes:
        limits: a share of those of the sink; None: all of them.
        alone: no other engine sends rows of the same claims, so that the last batch here is their last.
    """

    sink: Sink
    task: SinkTask
    policy: Policy
    clock: Clock
    lease_held: Callable[[], bool]
    _: KW_ONLY
    step: Step = no_step
    random: Callable[[], float] = jitter
    interrupted: Callable[[], bool] = never
    limits: Limits | None = None
    alone: bool = True
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        self._limits = self.limits or self.sink.limits(self.task)
        # A record that says "closed" is only true if the batches of a claim arrive in order.
        self._workers = 1 if self.sink.transactional else self._limits.concurrency
        self._permits = Permits(self._workers)
        per_second = self._limits.requests_per_second
        self._gate = Gate(self.clock, self.policy.retries, per_second, self.lease_held, self.random)

    def deliver_wave(self, part: WavePart, stop: Stop | None = None) -> WaveResult:
        """Deliver rows of a claim; none, if the sync stopped before.

        Raises:
            LeaseLost: after every request that was under way has ended.
        """
        sent = part.rows.select(sent_columns(self.sink, self.task)).combine_chunks()
        edge = part.buckets.edge if part.buckets else anywhere
        wave = Wave(part, self.policy, self.interrupted, may_miss=self.task.mode is Mode.UPDATE_ONLY)
        wave.stopped_by = stop
        try:
            with Prepared(sent, self._limits, self.sink.prepare, edge) as rows:
                self._deliver_all(wave, rows)
        except LeaseLost as lost:
            lost.rows = wave.begun()
            raise
        failures, counts = wave.close()
        return WaveResult(failures, counts, wave.stopped_by)

    def _deliver_all(self, wave: Wave, rows: Prepared) -> None:
        if self._workers == 1 or len(rows.parts) <= 1:
            for part in rows.parts:
                self._deliver_part(wave, rows, part)
        else:
            at_once(self._workers, partial(self._deliver_part, wave, rows), rows.parts, "deliver")
        for aside in wave.take_aside():
            if not self._gate.may_try_aside():
                break
            self._deliver(wave, rows, aside, last=False)

    def _deliver_part(self, wave: Wave, rows: Prepared, part: range) -> None:
        try:
            self._deliver(wave, rows, part, last=self.alone and part is rows.parts[-1])
        except BaseException:
            wave.abort()
            raise
        finally:
            rows.end(part)

    def _deliver(self, wave: Wave, prepared: Prepared, rows: Sequence[int], *, last: bool) -> None:
        sent = 0
        while rows and self._permits.take(wave.is_stopped):
            if not self._gate.enter(wave.is_stopped, first=sent == 0):
                self._permits.give_back(trouble=False)
                return
            delivery, sent = self._request(wave, prepared, rows, last=last), sent + 1
            self._permits.give_back(trouble=_in_trouble(delivery))
            if delivery.retry_after is not None:
                self._pause(wave, delivery, delivery.retry_after)
            if delivery.refused_whole and len(rows) > 1 and not wave.is_stopped():
                self._bisect(wave, prepared, rows, last=last)
                return
            again = wave.again(rows, delivery)
            self.progress(Number.SETTLED, len(rows) - len(again))
            if len(again) < len(rows):
                self._gate.progress()
            if not again or wave.is_stopped() or not self._may_repeat(wave, again, delivery, sent):
                return
            self.progress(Number.REPEATED, len(again))
            rows = again

    def _may_repeat(self, wave: Wave, rows: Sequence[int], delivery: Delivery, sent: int) -> bool:
        verdict = self._gate.before_repeat(sent, delivery.retry_after, wave.is_stopped)
        if isinstance(verdict, Stop):
            wave.stop(_explained(verdict, delivery))
        elif verdict is Repeat.ASIDE:
            wave.put_aside(rows)
        return verdict is Repeat.NOW

    def _pause(self, wave: Wave, delivery: Delivery, seconds: float) -> None:
        stop = self._gate.pause(seconds)
        if stop is not None:
            wave.stop(_explained(stop, delivery))
        else:
            self.progress(Number.PAUSED, seconds)

    def _request(self, wave: Wave, prepared: Prepared, rows: Sequence[int], *, last: bool) -> Delivery:
        try:
            table, entries = prepared.take(rows)
        except Exception as error:
            reason = f"the sink raised {type(error).__name__}"
            delivery = _broken(wave, len(rows), Outcome.FATAL, reason)  # nothing was sent
        else:
            go_on = partial(self._gate.enter, wave.is_stopped, first=False)
            batch = replace(wave.batch(rows, table, entries, last=last), go_on=go_on)
            self.step("batch.before")
            self.progress(Number.SENT, len(rows))
            wave.begin(rows)
            try:
                answer: object = self.sink.deliver(batch)
            except LeaseLost:  # of `go_on`
                self.progress(Number.ANSWERED, 0)
                raise
            except Exception as error:
                answer = _broken(wave, len(rows), Outcome.UNKNOWN, f"the sink raised {type(error).__name__}")
            delivery = wave.read(_formed(wave, len(rows), answer))
            if missed := sum(one.outcome is Outcome.NO_MATCH for one in delivery.results):
                self.progress(Number.NO_MATCH, missed)
            self.progress(Number.ANSWERED, 0 if delivery.refused_whole else len(rows) - len(delivery.results))
        wave.record(rows, delivery)
        self.step("batch.after")
        return delivery

    def _bisect(self, wave: Wave, prepared: Prepared, rows: Sequence[int], *, last: bool) -> None:
        middle = wave.middle(rows)
        first, second = rows[:middle], rows[middle:]
        self._deliver(wave, prepared, first, last=False)
        if len(second) == 2 and wave.all_delivered(first):
            # The refused row must be one of these two: asking for both at once would tell nothing.
            self._deliver(wave, prepared, second[:1], last=False)
            second = second[1:]
        self._deliver(wave, prepared, second, last=last)


def _formed(wave: Wave, rows: int, answer: object) -> Delivery:
    """The answer of a sink, if it has the form of one and keeps its rules: without it nobody knows what was applied."""
    form = malformed(answer)
    wrong = f"the sink answered with {form}, not a Delivery" if form else cast("Delivery", answer).violation(rows)
    return _broken(wave, rows, Outcome.UNKNOWN, wrong) if wrong else cast("Delivery", answer)


def _broken(wave: Wave, rows: int, outcome: Outcome, reason: str) -> Delivery:
    """Stop: a sink that raises is broken. Its reason has types only, for the text of a foreign exception may hold row values."""
    wave.stop(Stop(StopKind.FATAL, reason))
    return Delivery.of_all(rows, outcome, reason)


def _in_trouble(delivery: Delivery) -> bool:
    """The destination had too much to do, or nobody knows whether it did anything."""
    return delivery.retry_after is not None or any(result.outcome in TROUBLE for result in delivery.results)


def _explained(stop: Stop, delivery: Delivery) -> Stop:
    """With what the destination answered last."""
    reasons = (result.reason for result in delivery.results if result.outcome in TROUBLE)
    return stop.after(next(reasons, ""))
