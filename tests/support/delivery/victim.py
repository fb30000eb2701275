"""One run in a process of its own, which may be killed at any fault point; a ledger that survives it."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from dbt_reverse_etl.base.errors import DestinationError, SyncBusy
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.facts import Fact, RunStarted
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.ports import Job, Ports, Source
from dbt_reverse_etl.delivery.position import State, fold
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Mode, Settings, Sink, SinkTask
from dbt_reverse_etl.warehouse.executors import Work
from dbt_reverse_etl.warehouse.ledger import decode, encode
from tests.support.delivery.reference import SCHEMA, Changelog, DictSource, Image, Spec

KEYS = [f"k{number}" for number in range(8)]  # one in each bin
WAVE_ROWS = 3
WAVES = 3


class FileLedger:
    """`LedgerPort` on one file: a fact a line, on the disk before the call returns."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def facts(self) -> list[Fact]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [decode(*json.loads(line)) for line in lines]

    def read(self, sync_id: str, fence: int | None = None) -> State:
        wanted = self.fence(sync_id) if fence is None else fence
        return fold(fact for fact in self.facts() if fact.fence == wanted)

    def fence(self, sync_id: str) -> int:
        return max((f.fence for f in self.facts() if isinstance(f, RunStarted) and f.sync_id == sync_id), default=0)

    def start(self, started: RunStarted) -> State | None:
        with self._locked() as file:
            if started.fence <= self.fence(started.sync_id):
                return None
            self._write(file, started)
        return self.read(started.sync_id, started.fence - 1)

    def append(self, *facts: Fact) -> None:
        with self._locked() as file:
            for fact in facts:
                self._write(file, fact)

    def restored_at(self, since: datetime) -> datetime | None:
        """Nobody restores this file."""
        return None

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        with self._file.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _write(file: TextIO, fact: Fact) -> None:
        file.write(json.dumps(encode(fact)) + "\n")


@dataclass(frozen=True)
class Orders:
    """What the process is to do, and where it dies.

    Attributes:
        images: of the changelog, by snapshot; the last is the head.
        kill: fault point and its which occurrence at which the process gets `signal`; None: it lives.
        late: fault point and its which occurrence at which a lease runs out.
        ahead: leases by which the clock of the process is ahead.
        worker: a process of its own sends, as those of Spark's executors do; it stops itself before its first request.
        full_load: all rows in place of the changes, where no claim is open.
        retry: rows that wait are due, too.
    """

    ledger: Path
    sink: type[Sink]
    settings: Settings
    options: dict[str, Any]
    object: str
    images: Sequence[Image]
    kill: tuple[str, int] | None = None
    signal: int = signal.SIGKILL
    late: tuple[str, int] | None = None
    ahead: int = 0
    worker: bool = False
    full_load: bool = False
    retry: bool = False


def push(orders: Orders) -> None:
    """Target of the process; writes the fault points that it came by beside the ledger."""
    changelog = Changelog()
    for image in orders.images:
        changelog.capture(image)
    spec = Spec()
    options = orders.sink.options_model(**orders.options)
    task = SinkTask("ab" * 16, "sync", 0, orders.object, Mode.MIRROR, ("key",), SCHEMA, options=options)
    owner = str(os.getpid())
    job = Job(f"{owner}.{time.time_ns()}", "uuid", changelog.head, spec.id, "{}", task, owner)
    clock = _SkippingClock(orders.ahead)
    waves = WaveSize(WAVE_ROWS, grow_below=-1)
    retries = Retries(first=0.01, seconds=5)
    policy = Policy(waves=waves, executor_waves=waves, executors_from=0, retries=retries, retry_now=orders.retry)

    def pending(state: State) -> DictSource:
        return DictSource(changelog, state, changelog.head, spec, {spec.id: spec})

    def full_load(changes: Source, state: State) -> DictSource | None:
        return pending(State().for_spec(spec.id, "{}")) if orders.full_load and not state.claims else None

    ports = Ports(
        FileLedger(orders.ledger),
        pending,
        orders.sink(orders.settings),
        clock,
        owner_alive=_alive,
        step=_Steps(orders, clock),
        executors=(lambda source: _Worker(source, orders, policy)) if orders.worker else None,
        full_load=full_load,
    )
    try:
        status = run(job, ports, policy).status
    except SyncBusy:
        status = "busy"
    except DestinationError as error:
        status = f"failed: {error}"
    orders.ledger.with_suffix(".result").write_text(status)


@dataclass(frozen=True)
class _Worker:
    """`Remote` without Spark: the real work of a task, in a process that this one starts and may leave behind."""

    source: Source
    orders: Orders
    policy: Policy

    def send(self, order: Order, task: SinkTask, until: Callable[[], datetime]) -> Sent:
        make_sink = partial(self.orders.sink, self.orders.settings)
        limits = make_sink().limits(task)
        work = Work(make_sink, order, task, limits, self.policy, until(), step=_stop_before_the_first_request)
        rows = self.source.wave(order.claim.lo, order.claim.hi).to_batches()
        ours, its = multiprocessing.Pipe()

        def body() -> None:
            with suppress(BrokenPipeError):  # nobody hears it any more
                its.send(work.send(rows))

        process = multiprocessing.get_context("fork").Process(target=body)
        process.start()
        self.orders.ledger.with_suffix(".worker").write_text(str(process.pid))
        sent: Sent = ours.recv()
        return sent


def _stop_before_the_first_request(name: str) -> None:
    if name == "batch.before":
        os.kill(os.getpid(), signal.SIGSTOP)


class _SkippingClock(Clock):
    """A lease runs out without anybody waiting for it, however slow the machine is."""

    def __init__(self, leases: int) -> None:
        self._ahead = leases * Policy().lease

    def now(self) -> datetime:
        return super().now() + self._ahead

    def skip_a_lease(self) -> None:
        self._ahead += Policy().lease


class _Steps:
    def __init__(self, orders: Orders, clock: _SkippingClock) -> None:
        self._orders = orders
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self._seen[name] = self._seen.get(name, 0) + 1
            here = (name, self._seen[name])
            with self._orders.ledger.with_suffix(".steps").open("a") as file:
                file.write(f"{name}\n")
        if self._orders.kill == here:
            os.kill(os.getpid(), self._orders.signal)
        if self._orders.late == here:
            self._clock.skip_a_lease()


def _alive(owner: str) -> bool:
    return Path(f"/proc/{owner}").exists()
