"""What a run reaches the world through, what it is asked to do, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS, Counts, PerOperation
from dbt_reverse_etl.delivery.facts import Fact, RunStarted
from dbt_reverse_etl.delivery.gate import jitter, never
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Progress, Step, no_progress, no_step
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.base import Sink, SinkTask


class Status:
    """How a run ended; the ledger keeps the word."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"  # it reached the end, and some rows were not delivered
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"  # it lost its lease; the ledger has no end of it
    IDLE = "idle"  # nothing to do, nothing written


class LedgerPort(Protocol):
    """The facts of all syncs, append-only."""

    def read(self, sync_id: str, fence: int | None = None) -> State:
        """The folded facts of one fence; of the newest by default."""

    def start(self, started: RunStarted) -> State | None:
        """Commit atomically. The folded facts of the fence before, as they stand after it; None: another run has this fence."""

    def append(self, *facts: Fact) -> None:
        """One commit."""

    def fence(self, sync_id: str) -> int:
        """The newest fence; 0 before the first run."""

    def restored_at(self, since: datetime) -> datetime | None:
        """When an older state of it was brought back last, as far as it tells."""


class Source(Protocol):
    """The pending rows of one sync at one head, for one state of the ledger."""

    def planned(self) -> Histogram:
        """How many rows are pending, counted apart from what `wave` returns."""

    def planned_in(self, bucket: int) -> Histogram:
        """The same for one bucket, and nothing of the others."""

    def listed(self) -> pa.Table:
        """Of the pending rows that the ledger lists as undelivered: `_key`, `_bucket`, `_operation`, `_after_hash`, `_doubt`."""

    def wave(self, lo: int, hi: int) -> pa.Table:
        """The pending rows of the buckets [lo, hi): `_key`, `_bucket`, `_operation`, `_event_id`, `_before_hash`,
        `_after_hash`, `_maybe`, `_doubt`, `_changed`, `_asked_by`, then the fields of the task."""


class Remote(Protocol):
    """Sends waves of a source from tasks on the executors, each with a sink of its own."""

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        """Send every row of the order's claim; no request after the end of the lease, which `until` tells. One action of Spark."""


@dataclass(frozen=True)
class OneRow:
    """A row by its key, JSON as in `_key`, and its bucket."""

    key: str
    bucket: int


@dataclass(frozen=True)
class Job:
    """What one run is to do.

    Attributes:
        run_id: unique over all runs.
        changelog: uuid of the changelog that the positions belong to.
        head: snapshot to deliver.
        spec, spec_text: id and JSON of the current spec.
        task: for the sink; the run fills in sync_id's `fence` and `first`.
        owner: names the process, for the question whether it is alive.
        exposure: unique id of the exposure from which the id of the sync is made.
        newest: snapshot of the changelog, where `head` is an older one.
        model: name of the changelog.
        mark: of the ledger whose positions hold, as the changelog says; empty: it does not say, or was not asked.
        captures: uuid of the capture that made a snapshot, as far as the changelog was asked.
        only: send this row and no other; what else is pending in its bucket is listed as undelivered.
    """

    run_id: str
    changelog: str
    head: int
    spec: str
    spec_text: str
    task: SinkTask
    owner: str
    invocation_id: str = ""
    exposure: str = ""
    newest: int = 0
    model: str = ""
    mark: str = ""
    captures: Mapping[int, str] = field(default_factory=dict)
    only: OneRow | None = None


@dataclass(frozen=True)
class Ports:
    """What the run reaches the world through.

    Attributes:
        owner_alive: whether a process lives; where nothing is known about it, only its lease ends it.
        guard: of the rows to attempt, and of those among them that the destination has refused before: raises GuardBlocked, or returns the override that let the plan pass, for the ledger. By default every plan passes.
        interrupted: asked between two requests.
        executors: for pushes from `Policy.executors_from` rows on; None where the sink or Spark cannot.
        allowed: see `RunFinished`; by default, a sync is well only with no undelivered row.
        full_load: in place of the changes, all rows of the head as inserts, for a sink with `full_loads`; None: the changes, as of a sync that does not own its object.
    """

    ledger: LedgerPort
    source_for: Callable[[State], Source]
    sink: Sink
    clock: Clock
    owner_alive: Callable[[str], bool] = lambda _: True
    step: Step = no_step
    random: Callable[[], float] = jitter
    guard: Callable[[PerOperation, PerOperation, State], str] = lambda *_: ""
    interrupted: Callable[[], bool] = never
    executors: Callable[[Source], Remote] | None = None
    full_load: Callable[[Source, State], Source | None] = lambda *_: None
    progress: Progress = no_progress
    allowed: Callable[[State], int | None] = lambda _: 0


@dataclass(frozen=True)
class RunResult:
    """How the run ended; `planned` was counted apart from the stream that was sent.

    Attributes:
        given_up: it was a full load, and some of its rows were refused: the object is as it was.
        state: of the sync after the run.
        left: what is said of rows that were delivered before and may remain; see `remaining`.
    """

    status: str
    fence: int
    counts: Counts = NO_COUNTS
    planned: PerOperation = NO_ROWS
    message: str = ""
    given_up: bool = False
    state: State = field(default_factory=State)
    left: str = ""
