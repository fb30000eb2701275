"""The lease of a run: looked at before each request, renewed by heartbeats, never taken up again once lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dbt_reverse_etl.delivery.clock import Clock

_QUARTERS = 96  # of a lease, for which a step may take longer: six hours; then it hangs, and another run takes over


@dataclass
class Lease:
    """Thread-safe. `mine` asks the ledger whether this run's fence is the newest, and `beat` records a new end: at most once per half a lease."""

    clock: Clock
    seconds: timedelta
    until: datetime
    mine: Callable[[], bool]
    beat: Callable[[datetime], None]
    _lost: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._began = self.clock.now(), self.clock.monotonic()

    def extended(self) -> datetime:
        """Where the lease would end if it were renewed now; a fact that carries it must be followed by `confirm`."""
        return self._now() + self.seconds

    def _now(self) -> datetime:
        """By the clock; but no less than what has passed since the lease began, for somebody may set the clock back."""
        began, then = self._began
        return max(self.clock.now(), began + timedelta(seconds=self.clock.monotonic() - then))

    def held(self) -> bool:
        """May a request be sent? Renews when half of the lease is spent."""
        with self._lock:
            left = self.until - self._now()
            if self._lost or left <= timedelta(0):
                self._lost = True
            elif left < self.seconds / 2:
                until = self.extended()
                self.beat(until)
                self.confirm(until)
            return not self._lost

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it one step of the run may take longer than the lease, and not look at it: a thread renews it meanwhile."""
        over = threading.Event()
        threading.Thread(target=self._keep, args=(over,), daemon=True, name="lease").start()
        try:
            yield
        finally:
            over.set()

    def _keep(self, over: threading.Event) -> None:
        with suppress(Exception):  # the run's own next look at the lease says what is wrong with the ledger
            for _ in range(_QUARTERS):
                if self.clock.wait(over, self.seconds.total_seconds() / 4) or not self.held():
                    return

    def confirm(self, until: datetime) -> bool:
        """After a commit that extended the lease: is it still this run's?"""
        with self._lock:
            # A commit that ended after the old lease had run out may have come too late for a run that took over.
            if self._now() >= self.until or not self.mine():
                self._lost = True
            else:
                self.until = max(self.until, until)
            return not self._lost
