"""What a run says while it is under way: numbers for whoever looks on, and steps between which a test may stop it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Number(str, Enum):
    """What a number counts."""

    FENCE = "fence"  # of the run, once it holds the sync
    PLANNED = "planned"  # rows of the run
    WAVE = "wave"  # rows of the wave that begins
    SETTLED = "settled"  # rows of one request that need no further one; not told from executors
    COUNTED = "counted"  # rows of all waves that have ended: the exact sum of what was settled
    REPEATED = "repeated"  # rows of a request that will be sent again
    PAUSED = "paused"  # seconds for which the destination asked
    SENT = "sent"  # rows of a request that begins
    NO_MATCH = "no_match"  # rows of it that the destination does not have; called before ANSWERED, in the same thread
    ANSWERED = "answered"  # rows of it that were delivered; called in the same thread


Progress = Callable[[Number, float], None]  # called from any thread; must return at once


def no_progress(number: Number, value: float) -> None:
    """Nobody looks on."""


Step = Callable[[str], None]  # called with the name of the step that is over


def no_step(name: str) -> None:
    """In production nothing happens between two steps."""


@dataclass(frozen=True)
class Bound:
    """The ids of one run of one sync; every line about it names them."""

    sync: str
    destination: str
    run_id: str
    invocation_id: str


class Watch(Protocol):
    """Looks on at the runs of one push; thread-safe."""

    def begin(self, bound: Bound) -> Progress:
        """A run begins; its numbers come through the answer."""

    def end(self, sync: str, status: str, *, wrong: str = "") -> None:
        """The run of a sync has ended; `status` as in the report of the push. Also called where none has begun.

        Args:
            wrong: why it did not end well, without row values and secrets; empty: it did.
        """


class Watches:
    """Several that look on, or nobody. What one of them raises is its own affair: rows are under way."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def begin(self, bound: Bound) -> Progress:
        """As `Watch.begin`."""
        told: list[Progress] = []
        for watch in self._watches:
            with suppress(Exception):
                told.append(watch.begin(bound))

        def progress(number: Number, value: float) -> None:
            for tell in told:
                with suppress(Exception):
                    tell(number, value)

        return progress

    def end(self, sync: str, status: str, *, wrong: str = "") -> None:
        """As `Watch.end`."""
        for watch in self._watches:
            with suppress(Exception):
                watch.end(sync, status, wrong=wrong)
