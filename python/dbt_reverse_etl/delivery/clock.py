"""Time as the delivery sees it: injected, so that no test waits and no decision hides a wall clock."""

from __future__ import annotations

import sys
import threading
import time
from datetime import datetime, timezone
from typing import Protocol

# It goes on while the machine is suspended, which a Mac's time.monotonic() does not.
_BOOTTIME: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Wall time for the records, monotonic time for the durations."""

    def now(self) -> datetime:
        """The time in UTC, aware."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for that long."""

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Block for that long, or until it is over; whether it is."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, over: threading.Event, seconds: float) -> bool:
        return over.wait(seconds)
