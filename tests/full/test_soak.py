"""A short campaign of `make soak`."""

from __future__ import annotations

import random

from tests.full.soak import campaign


def test_random_changes_kills_and_troubles_of_random_destinations_end_well() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    assert campaign(seed, seconds=15) > 0
