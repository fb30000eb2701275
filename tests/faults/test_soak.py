"""A short campaign of `make soak`."""

from __future__ import annotations

import random

from tests.faults.soak import campaign


def test_random_changes_and_kills_into_random_destinations_end_well() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    assert campaign(seed, seconds=15) > 0
