"""How long random searches go on. EFFORT scales them: 0.2 for `make quick`, 0.4 for `make test`, 0.7 for `make test-full`."""

from __future__ import annotations

import os

EFFORT = float(os.environ.get("EFFORT", "0.7"))


def scaled(number: int) -> int:
    """So many examples or histories, scaled; at least one."""
    return max(1, round(number * EFFORT))
