"""Where a value stands in a JSON document: `data.results[0].status`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

ABSENT = object()  # equals nothing
_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,9})\]")


@lru_cache
def parse_path(path: str) -> tuple[str | int, ...]:
    """Steps of a JSON path such as `data.results[0].status`; empty or `$` is the document. Raises ValueError, in three parts."""
    text = path[2:] if path.startswith("$.") else path.removeprefix("$")
    steps = [*_STEP.finditer(text)]
    if "".join(step[0] for step in steps) != text:
        raise ValueError(f"found {path!r}; expected a path such as data.results[0].status; next: correct the path")
    return tuple(step[1] if step[2] is None else int(step[2]) for step in steps)


def find(document: Any, path: str) -> Any:
    """The value at a path, or ABSENT."""
    value = document
    for step in parse_path(path):
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return ABSENT
    return value
