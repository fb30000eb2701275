"""Sets of whole numbers as ranges [lo, hi), sorted and apart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All that is in any of them; they may overlap and come in any order."""
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted(part for part in ranges if part[0] < part[1]):
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return tuple(merged)


def minus(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    """What is in `ranges` and in none of the others."""
    cuts, rest, at = union(others), list[tuple[int, int]](), 0
    for lo, hi in union(ranges):
        while at < len(cuts) and cuts[at][1] <= lo:
            at += 1
        start, cut = lo, at
        while cut < len(cuts) and cuts[cut][0] < hi:
            rest.append((start, cuts[cut][0]))
            start, cut = cuts[cut][1], cut + 1
        rest.append((start, hi))
    return tuple(part for part in rest if part[0] < part[1])


def common(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    """What is in both."""
    known = union(ranges)
    return minus(known, minus(known, others))


def singles(numbers: Iterable[int]) -> Ranges:
    """These numbers."""
    return union((number, number + 1) for number in numbers)


def coarse(ranges: Iterable[tuple[int, int]], most: int) -> Ranges:
    """At most so many ranges that hold all of them, and as few other numbers as possible."""
    known = union(ranges)
    gaps = sorted(((right[0] - left[1], left[1]) for left, right in pairwise(known)), reverse=True)
    kept = {end for _, end in gaps[: most - 1]}
    # Where the next one starts; the last one ends where it ends.
    following = [*(lo for lo, _ in known[1:]), *(hi for _, hi in known[-1:])]
    return union((lo, hi if hi in kept else start) for (lo, hi), start in zip(known, following, strict=True))
