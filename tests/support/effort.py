"""How long random searches go on. EFFORT scales them: 0.03 for `make quick`, 0.15 for `make test`, 0.7 for `make test-full`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

EFFORT = float(os.environ.get("EFFORT", "0.7"))


def scaled(number: int) -> int:
    """So many examples or histories, scaled; at least one."""
    return max(1, round(number * EFFORT))


def until(least: int, enough: Callable[[], bool], most: int = 1000) -> Iterator[int]:
    """Numbers of histories: scaled, and more until the search has come by all that it must meet."""
    for number in range(most):
        if number >= scaled(least) and enough():
            return
        yield number
