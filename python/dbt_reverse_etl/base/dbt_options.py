"""dbt's own options where no flag gives them: from its environment variables, and from the folder that a command runs in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def variables(option: str) -> list[str]:
    """Those of an option, such as TARGET_PATH. Since 1.11 dbt prefers the first; dbt 1.10 knows the second alone."""
    return [f"DBT_ENGINE_{option}", f"DBT_{option}"]


def told(option: str, env: Mapping[str, str]) -> str:
    """What they say; empty: nothing."""
    return next(filter(None, map(env.get, variables(option))), "")


def nearest_project(folder: Path) -> Path:
    """The folder or the nearest one above it with a dbt_project.yml; itself, if none has one."""
    return next((one for one in (folder, *folder.parents) if (one / "dbt_project.yml").is_file()), folder)
