"""What holds for every test: how long random searches go on, and SHUFFLE=seed, another order of files and of the tests in each."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from tests.support import ROOT
from tests.support.effort import scaled

# Who only asks whether a test fails (SHRINK=0) does not wait for its smallest example.
PHASES = [one for one in Phase if one not in (Phase.shrink, Phase.explain) or os.environ.get("SHRINK") != "0"]
settings.register_profile("effort", max_examples=scaled(settings.default.max_examples), deadline=None, phases=PHASES)
settings.load_profile("effort")
# In the background of a shell SIGINT is ignored, and would be by every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seed = os.environ.get("SHUFFLE")
    if seed:
        # Every process of pytest-xdist must come to the same order; files stay whole, for what their tests share is dear.
        order = random.Random(seed)
        files = {item.nodeid.partition("::")[0]: order.random() for item in items}
        items.sort(key=lambda item: (files[item.nodeid.partition("::")[0]], order.random()))


@pytest.fixture(scope="module", autouse=True)
def at_home() -> Iterator[None]:
    """dbt and its tests go to the folder of a project; no file begins where another one ended."""
    yield
    os.chdir(ROOT)
