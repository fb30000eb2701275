"""Time as the delivery sees it: injected, so that no test waits and no decision hides a wall clock."""

from __future__ import annotations

import sys
import threading
import time
from datetime import datetime, timezone

# It goes on while the machine is suspended, which a Mac's time.monotonic() does not.
_BOOTTIME: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


class Clock:
    """Wall time for the records, monotonic time for the durations: of this machine, or of a subclass for tests."""

    def now(self) -> datetime:
        """The time in UTC, aware."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for that long."""
        time.sleep(seconds)

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """Block for that long, or until it is over; whether it is."""
        return over.wait(seconds)
