"""A short campaign of `make soak`."""

from __future__ import annotations

import random

import pytest

from tests.full.soak import campaign


@pytest.mark.guarantee(
    "Crashes and claims",
    "The same with real processes, and lost connections, locks, constraints and answers of sqlite, postgres, mysql and an API; no key goes back",
)
def test_random_changes_kills_and_troubles_of_random_destinations_end_well() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    assert campaign(seed, seconds=15) > 0
