"""A clock for the tests of the engine: time that passes only when somebody sleeps."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.delivery.clock import Clock


class FakeClock(Clock):
    """Only `sleep` moves it; thread-safe."""

    def __init__(self) -> None:
        self._start = datetime(2024, 1, 1, tzinfo=timezone.utc)
        self._seconds = 0.0
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        with self._lock:
            return self._seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds
            self.slept.append(seconds)

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Until it is over: nobody is awake to do anything meanwhile."""
        return over.wait()
