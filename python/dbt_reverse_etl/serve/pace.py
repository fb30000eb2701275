"""When each thing may be tried again. What wakes the worker, such as a webhook, brings none of it forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

API = "the API"  # rests as a whole if it has asked for that


class Pace:
    """Rests by name, by a clock that nobody sets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def rest(self, name: str, seconds: float) -> None:
        """Not to be tried for so long."""
        self._until[name] = self._clock() + seconds

    def end(self, name: str) -> None:
        """It may be tried at once."""
        self._until.pop(name, None)

    def left(self, *names: str) -> float:
        """Seconds until all of them may be tried."""
        return max(0.0, *(self._until.get(name, -math.inf) - self._clock() for name in names))

    def is_due(self, *names: str) -> bool:
        """Whether all of them may be tried now."""
        return not self.left(*names)
