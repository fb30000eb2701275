"""Presets: what a known API needs, as data beside this file; nothing in a preset that a user could not write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

DIRECTORY = files("dbt_reverse_etl.sinks.http") / "presets"  # on an executor in a zip file


def preset_names() -> list[str]:
    """The presets of this package."""
    return sorted(one.name.removesuffix(".yml") for one in DIRECTORY.iterdir() if one.name.endswith(".yml"))


@cache
def load_preset(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Defaults for one API: `settings` of the destination, as in profiles.yml, and `options` of each sync. Raises ValueError, in three parts."""
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise ValueError(f"found an unknown preset; expected one of {known}; next: correct preset, or remove it")
    return {"settings": {}, "options": {}, **yaml.safe_load((DIRECTORY / f"{name}.yml").read_text(encoding="utf-8"))}


def merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The own keys over the defaults, mapping by mapping; a list, a null or another `type` of one's own replaces."""
    if "type" in defaults and own.get("type", defaults["type"]) != defaults["type"]:
        return dict(own)
    result = dict(defaults)
    for key, value in own.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
