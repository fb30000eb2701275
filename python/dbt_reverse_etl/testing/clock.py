"""Time that passes only when somebody sleeps."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.delivery.clock import Clock


class FakeClock(Clock):
    """A clock that only `sleep` moves."""

    def __init__(self, start: datetime = datetime(2024, 1, 1, tzinfo=timezone.utc)) -> None:
        self._start = start
        self._passed = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The start plus all seconds that were slept."""
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        """All seconds that were slept."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Move the clock; returns at once."""
        with self._lock:
            self._passed += max(0.0, seconds)

    def wait(self, over: threading.Event, seconds: float) -> bool:  # noqa: ARG002  (the clock's shape)
        """Until it is over: nobody is awake to do anything meanwhile."""
        return over.wait()
