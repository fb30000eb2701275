"""What a changelog is built from, as dbt's manifest tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEVELS = 3  # more does not fit a screen; dbt docs has the whole graph


def upstream(unique_id: str, manifest: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Names by distance from a changelog, the farthest level first; each stands where it is nearest."""
    nodes = {**manifest.get("nodes", {}), **manifest.get("sources", {})}
    seen, level, levels = {unique_id}, [unique_id], []
    for _ in range(LEVELS):
        level = sorted({one for child in level for one in _parents(nodes, child) if one not in seen})
        if not level:
            break
        seen.update(level)
        levels.append(tuple(_name(nodes.get(one, {}), one) for one in level))
    return tuple(reversed(levels))


def _parents(nodes: Mapping[str, Any], unique_id: str) -> list[str]:
    found: list[str] = nodes.get(unique_id, {}).get("depends_on", {}).get("nodes", [])
    return found


def _name(node: Mapping[str, Any], unique_id: str) -> str:
    name = str(node.get("name") or unique_id.rpartition(".")[2])
    return f"{node['source_name']}.{name}" if node.get("resource_type") == "source" else name
