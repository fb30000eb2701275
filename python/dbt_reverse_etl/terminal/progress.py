"""The pushes under way, in numbers: written by their threads, read by the one that draws."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.progress import Bound, Number, Progress

_WINDOW = 60.0  # seconds over which rows/s is measured
_SET = {Number.FENCE: "fence", Number.PLANNED: "planned", Number.COUNTED: "done"}
_ADDED = {Number.SETTLED: "done", Number.REPEATED: "repeated"}
_NOTED = (Number.FENCE, Number.PLANNED, Number.WAVE, Number.REPEATED, Number.PAUSED)


@dataclass
class Look:
    """One push at one moment.

    Attributes:
        began, at: when the push began, and the moment.
        fence: 0 until the run holds the sync.
        planned: rows; None until they are counted.
        done: rows that need no further request, delivered or not.
        wave, wave_rows: number and rows of the wave that is sent; 0 before the first.
        repeated: rows that were sent again.
        samples: times and rows that were done then, of the last minute.
    """

    bound: Bound
    began: float
    at: float
    fence: int = 0
    planned: int | None = None
    done: int = 0
    wave: int = 0
    wave_rows: int = 0
    repeated: int = 0
    paused_until: float = 0.0
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.at - self.began

    @property
    def pause(self) -> float:
        """Seconds left of a wait for which the destination asked."""
        return max(0.0, self.paused_until - self.at)

    @property
    def rate(self) -> float:
        """Rows per second, of the last minute."""
        since, before = self.samples[0] if self.samples else (self.at, 0)
        return (self.done - before) / (self.at - since) if self.at > since else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the end at that rate; None where it is not known."""
        if self.planned is None or self.rate <= 0:
            return None
        return max(0, self.planned - self.done) / self.rate

    @property
    def ids(self) -> dict[str, Any]:
        """For a machine: what the line is about."""
        bound = self.bound
        return {"sync": bound.sync, "run_id": bound.run_id, "fence": self.fence, "invocation_id": bound.invocation_id}


@dataclass(frozen=True)
class Note:
    """Something happened to a push: a wave began, rows are sent again, the destination asked for a pause."""

    look: Look
    number: Number
    value: float


class Board:
    """`delivery.progress.Watch` that keeps the last numbers; thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._running: dict[str, Look] = {}
        self._ids: dict[str, dict[str, Any]] = {}
        self._notes: deque[Note] = deque(maxlen=1000)  # whoever does not take them shall not keep them

    def begin(self, bound: Bound) -> Progress:
        """As `Watch.begin`."""
        running = Look(bound, now := self._clock.monotonic(), now)
        with self._lock:
            self._running[bound.sync] = running
        return partial(self._write, running)

    def end(self, sync: str, status: str, *, wrong: str = "") -> None:  # noqa: ARG002  (the port's shape)
        """As `Watch.end`."""
        with self._lock:
            running = self._running.pop(sync, None)
            if running is not None:
                self._ids[sync] = self._look(running).ids

    def ids(self, sync: str) -> dict[str, Any]:
        """Of the last run of a sync that has ended; none if it never began."""
        with self._lock:
            return self._ids.get(sync, {})

    def looks(self, after: float = 0.0) -> list[Look]:
        """The pushes that are under way for so many seconds, oldest first."""
        with self._lock:
            looks = [self._look(running) for running in self._running.values()]
        return [look for look in looks if look.seconds >= after]

    def take_notes(self) -> list[Note]:
        """What happened since this was asked last."""
        with self._lock:
            notes = list(self._notes)
            self._notes.clear()
        return notes

    def _write(self, running: Look, number: Number, value: float) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if number in _SET:
                setattr(running, _SET[number], int(value))
            elif number in _ADDED:
                setattr(running, _ADDED[number], getattr(running, _ADDED[number]) + int(value))
            elif number is Number.WAVE:
                running.wave, running.wave_rows = running.wave + 1, int(value)
                if not running.samples:
                    running.samples.append((now, running.done))
            elif number is Number.PAUSED:
                running.paused_until = max(running.paused_until, now + value)
            if number in (Number.SETTLED, Number.COUNTED):
                _sample(running.samples, now, running.done)
            elif number in _NOTED:
                self._notes.append(Note(self._look(running), number, value))

    def _look(self, running: Look) -> Look:
        return replace(running, at=self._clock.monotonic(), samples=running.samples.copy())


def _sample(samples: deque[tuple[float, int]], now: float, done: int) -> None:
    """Keep about one a second, and one that is older than the window."""
    if not samples or now - samples[-1][0] >= 1.0:
        samples.append((now, done))
    while len(samples) > 2 and now - samples[1][0] > _WINDOW:
        samples.popleft()
