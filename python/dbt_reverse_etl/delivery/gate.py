"""The gate before each request: how many at once, the pause that was asked for, the rate budget, the budget of retries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from random import SystemRandom

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.policy import Retries

SLICE = 1.0  # seconds: a waiting worker looks this often whether the sync was stopped or lost
SHORTEST_PAUSE = 1.0  # seconds: a shorter one in place of back-off and budget would let a sync ask without end

jitter = SystemRandom().random


def never() -> bool:
    """Nobody interrupts the run."""
    return False


class StopKind(str, Enum):
    """Why a sync stopped before its last row."""

    FATAL = "fatal"
    REJECTIONS = "rejections"
    UNAVAILABLE = "unavailable"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Stop:
    """The reason, without row values and without secrets."""

    kind: StopKind
    reason: str

    def after(self, answer: str) -> Stop:
        """With what the destination answered last, if it is known."""
        return replace(self, reason=f"{answer}; {self.reason}") if answer else self


INTERRUPT = Stop(StopKind.INTERRUPTED, "the run was interrupted")


class Repeat(Enum):
    """May a batch be sent again?"""

    NOW = 1
    ASIDE = 2  # not before the others had their turn


class LeaseLost(Exception):
    """Another run may hold the sync: nothing more may be sent or acknowledged.

    Attributes:
        rows: of the wave, by number, those of which a request was made; None: nobody knows.
        buckets: theirs.
    """

    rows: Sequence[int] | None = None
    buckets: Sequence[int] | None = None


class Permits:
    """How many requests may be under way: one more for each round without trouble, half as many after trouble.

    Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain, 1989). Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit = most, float(most)
        self._under_way = 0
        self._echoes = 0  # requests that were under way at the last decrease: their trouble is the same
        self._changed = threading.Condition()

    def take(self, stopped: Callable[[], bool]) -> bool:
        """Wait for a permit; False if the sync was stopped meanwhile."""
        with self._changed:
            while self._under_way >= max(1, int(self._limit)):
                if stopped():
                    return False
                self._changed.wait(SLICE)
            self._under_way += 1
            return True

    def give_back(self, *, trouble: bool) -> None:
        """A request has ended; `trouble`: the destination asked for less, or did not answer."""
        with self._changed:
            self._under_way -= 1
            if self._echoes:
                self._echoes -= 1
            elif trouble:
                self._limit = max(1.0, self._limit / 2)
                self._echoes = self._under_way
            if not trouble:
                self._limit = min(self._most, self._limit + 1 / self._limit)
            self._changed.notify()


@dataclass
class Gate:
    """Shared by all workers of one run; thread-safe."""

    clock: Clock
    retries: Retries
    per_second: float | None
    lease_held: Callable[[], bool]
    random: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _paused_until: float = -inf
    _next_slot: float = -inf
    _trouble_since: float | None = None
    _first_attempts: int = 0
    _extra: int = 0
    _barren: int = 0  # requests in a row that settled nothing

    def enter(self, stopped: Callable[[], bool], *, first: bool) -> bool:
        """Wait for the pause and for a slot of the rate budget; False if the sync was stopped meanwhile.

        Raises:
            LeaseLost: always looked at last, right before the request.
        """
        with self._lock:
            self._first_attempts += first
        while True:
            with self._lock:
                slot = max(self._next_slot, self.clock.monotonic(), self._paused_until)
                self._next_slot = slot + (1.0 / self.per_second if self.per_second else 0.0)
            if not self._wait_until(slot, stopped):
                return False
            # Another worker may have been told to pause while this one waited.
            if self._paused_until <= self.clock.monotonic():
                break
        self._look_at_lease()
        return not stopped()

    def progress(self) -> None:
        """The destination settled a row: it is not in trouble."""
        with self._lock:
            self._trouble_since, self._barren = None, 0

    def pause(self, seconds: float) -> Stop | None:
        """The destination asks every worker to wait; a wait beyond the budget stops the sync instead."""
        if seconds > self.retries.seconds:
            return Stop(StopKind.UNAVAILABLE, "the destination asks for a longer pause than a run may wait")
        with self._lock:
            self._paused_until = max(self._paused_until, self.clock.monotonic() + max(0.0, seconds))
        return None

    def before_repeat(self, sent: int, retry_after: float | None, stopped: Callable[[], bool]) -> Repeat | Stop:
        """Wait until a batch that was `sent` so often may be sent again, or say why it may not be."""
        asked = retry_after if retry_after is not None and retry_after >= SHORTEST_PAUSE else None
        with self._lock:
            now = self.clock.monotonic()
            delay = self._backoff() if asked is None else asked
            self._barren += 1
            self._trouble_since = now if self._trouble_since is None else self._trouble_since
            if now + delay > self._trouble_since + self.retries.seconds:
                return Stop(StopKind.UNAVAILABLE, "the destination did not settle a row within the time for retries")
            if asked is None and not self._spend():
                if self._barren < self.retries.attempts:
                    return Repeat.ASIDE
                return Stop(StopKind.UNAVAILABLE, "the budget of repeated requests is spent")
        if asked is None:
            # Also before another batch is tried: the destination is in trouble, whoever asks.
            self._wait_until(now + delay, stopped)
        return Repeat.ASIDE if sent >= self.retries.attempts else Repeat.NOW

    def may_try_aside(self) -> bool:
        """Is there budget to come back to a batch that was set aside?"""
        with self._lock:
            return self._spend()

    def _spend(self) -> bool:
        if self._extra + 1 > self.retries.requests + self.retries.share * self._first_attempts:
            return False
        self._extra += 1
        return True

    def _backoff(self) -> float:
        # The exponent is bounded: 2.0**1024 overflows.
        return self.random() * min(self.retries.cap, self.retries.first * 2.0 ** min(self._barren, 64))

    def _wait_until(self, moment: float, stopped: Callable[[], bool]) -> bool:
        while (left := moment - self.clock.monotonic()) > 0:
            if stopped():
                return False
            self._look_at_lease()
            self.clock.sleep(min(left, SLICE))
        return not stopped()

    def _look_at_lease(self) -> None:
        if not self.lease_held():
            raise LeaseLost
