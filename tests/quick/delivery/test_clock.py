"""The clock of this machine, by which leases and pauses end: it goes on while the machine sleeps."""

from __future__ import annotations

import runpy
import sys
import time

import pytest

from dbt_reverse_etl.delivery import clock


@pytest.mark.parametrize(
    ("system", "known", "counts_by"),
    [
        ("linux", {"CLOCK_BOOTTIME": 7, "CLOCK_MONOTONIC": 1}, 7),
        ("darwin", {"CLOCK_MONOTONIC": 6}, 6),
        ("win32", {}, None),
    ],
)
def test_time_in_which_the_machine_sleeps_counts(
    system: str, known: dict[str, int], counts_by: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        monkeypatch.delattr(time, name, raising=False)
    for name, number in known.items():
        monkeypatch.setattr(time, name, number, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda number: {counts_by: 5.0}[number], raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0 if counts_by is None else 0.0)
    monkeypatch.setattr(sys, "platform", system)
    assert runpy.run_path(clock.__file__)["Clock"]().monotonic() == 5.0
