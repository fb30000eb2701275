"""An engine on a fake clock, and a sink that answers by a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.engine import Engine, WaveResult
from dbt_reverse_etl.delivery.gate import never
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import Batch, Limits, Mode, Sink, SinkTask
from tests.support.delivery.clock import FakeClock

SCHEMA = pa.schema([("id", pa.int64())])
TASK = SinkTask("s", "sync", 1, "object", Mode.MIRROR, ("id",), SCHEMA)
Answer = Callable[[list[int], int], Delivery]  # ids of the batch, number of the request from 0


class ScriptedSink(Sink):
    """Answers by a function, and remembers every request."""

    type = "scripted"
    modes = frozenset(Mode)
    promise = "none"

    def __init__(self, answer: Answer, limits: Limits, clock: FakeClock) -> None:
        self._answer, self._limits, self._clock = answer, limits, clock
        self._lock = threading.Lock()
        self.batches: list[Batch] = []
        self.times: list[float] = []

    @property
    def identity(self) -> str:
        return "scripted"

    @property
    def requests(self) -> list[list[int]]:
        return [batch.rows.column("id").to_pylist() for batch in self.batches]

    def limits(self, task: SinkTask) -> Limits:
        return self._limits

    def check(self) -> None: ...
    def open(self, task: SinkTask) -> None: ...
    def close(self) -> None: ...

    def deliver(self, batch: Batch) -> Delivery:
        with self._lock:
            number = len(self.batches)
            self.batches.append(batch)
            self.times.append(self._clock.monotonic())
            return self._answer(batch.rows.column("id").to_pylist(), number)


class OrderedSink(ScriptedSink):
    transactional = True


class Bench:
    """An engine on a fake clock."""

    def __init__(
        self,
        answer: Answer,
        limits: Limits | None = None,
        policy: Policy | None = None,
        lease_held: Callable[[], bool] = lambda: True,
        kind: type[ScriptedSink] = ScriptedSink,
        *,
        mode: Mode = Mode.MIRROR,
    ) -> None:
        self.clock = FakeClock()
        self.sink = kind(answer, limits or Limits(rows=10), self.clock)
        self.interrupted: Callable[[], bool] = never
        self.numbers: list[tuple[Number, float]] = []
        self.engine = Engine(
            self.sink,
            replace(TASK, mode=mode),
            policy or Policy(),
            self.clock,
            lease_held,
            random=lambda: 1.0,
            interrupted=self._is_interrupted,
            progress=lambda number, value: self.numbers.append((number, value)),
        )

    def _is_interrupted(self) -> bool:
        return self.interrupted()

    def wave(self, rows: int, left_out: int = 0) -> WaveResult:
        table = pa.table(
            {
                "_key": [str(i) for i in range(rows)],
                "_operation": [("insert", "update", "delete")[i % 3] for i in range(rows)],
                "_event_id": [f"e{i}" for i in range(rows)],
                "_before_hash": pa.nulls(rows, pa.int64()),
                "id": pa.array(range(rows), pa.int64()),
            }
        )
        return self.engine.deliver_wave(WavePart("claim", table, left_out))


def delivered(ids: list[int], number: int) -> Delivery:
    return Delivery()


def some(ids: Sequence[int], wanted: Callable[[int], bool], outcome: Outcome, **more: float) -> Delivery:
    return Delivery(tuple(RowResult(i, outcome, "why") for i, id_ in enumerate(ids) if wanted(id_)), **more)


def refusing(bad: set[int]) -> Answer:
    """Refuses a batch as one if any of these rows is in it."""

    def answer(ids: list[int], number: int) -> Delivery:
        return Delivery.of_all(len(ids), Outcome.REJECTED, "refused") if bad & set(ids) else Delivery()

    return answer


def outcomes(result: WaveResult) -> dict[int, Outcome]:
    return {row: failure.outcome for row, failure in result.failures.items()}
