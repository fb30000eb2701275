"""Whether the macros of the dbt package and this runner fit: they are released together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.base.version import VERSION

_MACRO = "macro.reverse_etl.version"


def other_macros(manifest: Mapping[str, Any]) -> list[Problem]:
    """The problem of macros that are installed in another version than the runner; nothing where the manifest does not tell."""
    written = ((manifest.get("macros") or {}).get(_MACRO) or {}).get("macro_sql", "")
    found = re.search(r"%\}\s*([\w.]+)\s*\{%", written)
    if found is None or _release(found[1]) == _release(VERSION):
        return []
    expected, then = f"that of the runner, {VERSION}", "run `dbt-reverse-etl init`, which refreshes it, and dbt again"
    if _release(found[1]) > _release(VERSION):
        then = f"pip install 'dbt-reverse-etl=={found[1]}'; or, to stay with the runner, {then}"
    return [Problem("dbt_packages/reverse_etl", f"the dbt package in version {found[1]}", expected, then)]


def newer_macros(written: str, relation: str) -> Problem | None:
    """The problem of a newest snapshot that newer macros wrote than this runner knows; what older ones wrote can be read."""
    if _release(written) <= _release(VERSION):
        return None
    found = f"a snapshot of the dbt package {written}"
    expected = f"one that the runner knows, which is of version {VERSION}"
    return Problem(relation, found, expected, f"pip install 'dbt-reverse-etl=={written}'")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
