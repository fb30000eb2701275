"""Candidates take turns, and the fastest of several rounds counts: other jobs on the machine only ever slow one down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Figures = dict[str, float]


def report(claim: str, value: float, bound: str) -> None:
    print(f"{claim:<88} {value:6.2f}   {bound}", flush=True)


def fastest(rounds: int, candidates: Mapping[str, Callable[[], float | None]]) -> Figures:
    """Seconds of the fastest of several rounds of each candidate, in turn; a candidate may tell its seconds itself."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):  # the first round warms up
        for name, work in candidates.items():
            began = time.perf_counter()
            told = work()
            if number:
                found[name].append(time.perf_counter() - began if told is None else told)
    return {name: min(times) for name, times in found.items()}
