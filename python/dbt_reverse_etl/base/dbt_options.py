"""dbt's own options where no flag gives them: from its environment variables, its dbt_project.yml, and the folder that a command runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dbt_reverse_etl.base.errors import ConfigurationError, mistake

_COMMANDS = frozenset([
    "build", "clean", "clone", "compile", "debug", "deps", "docs", "init", "list", "ls", "parse", "retry",
    "run", "run-operation", "seed", "show", "snapshot", "source", "test",
])  # fmt: skip
# Before a command they take a value, which may be `debug` or `test`.
_WITH_VALUE = frozenset([
    "--defer-state", "--deprecated-state", "--indirect-selection", "--log-file-max-bytes", "--log-format",
    "--log-format-file", "--log-level", "--log-level-file", "--log-path", "--partial-parse-file-path",
    "--printer-width", "--profile", "--profiles-dir", "--project-dir", "--record-timing-info", "--state",
    "--target", "--target-path", "--threads", "--vars", "--warn-error-options", "-r", "-t",
])  # fmt: skip


def command_of(words: Sequence[str]) -> str:
    """Which command of dbt its arguments name: `run`, `retry` ...; empty: none."""
    values = {place + 1 for place, word in enumerate(words) if word in _WITH_VALUE}
    return next((word for place, word in enumerate(words) if word in _COMMANDS and place not in values), "")


def variables(option: str) -> list[str]:
    """Those of an option, such as TARGET_PATH. Since 1.11 dbt prefers the first; dbt 1.10 knows the second alone."""
    return [f"DBT_ENGINE_{option}", f"DBT_{option}"]


def told(option: str, env: Mapping[str, str]) -> str:
    """What they say; empty: nothing."""
    return next(filter(None, map(env.get, variables(option))), "")


def nearest_project(folder: Path) -> Path:
    """The folder or the nearest one above it with a dbt_project.yml; itself, if none has one."""
    return next((one for one in (folder, *folder.parents) if (one / "dbt_project.yml").is_file()), folder)


def no_project(folder: Path) -> ConfigurationError:
    """The error for a folder without dbt_project.yml."""
    next_step = "cd into it, or name it: --project-dir"
    return mistake(str(folder / "dbt_project.yml"), "no such file", "a dbt project", next_step)


def project_settings(folder: Path) -> Mapping[str, Any]:
    """What the dbt_project.yml of a folder says, Jinja as it is written.

    Raises:
        ConfigurationError: there is none, it cannot be read, or it is no mapping in YAML.
    """
    file = folder / "dbt_project.yml"
    try:
        if not file.is_file():
            raise no_project(folder)
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError:
        found, next_step = "a file that cannot be read", "let this user read it and the folders above it"
        raise mistake(str(file), found, "a dbt project", next_step) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        read = None
    if not isinstance(read, Mapping):
        found, next_step = "no mapping in YAML", "correct it until `dbt debug` reads it"
        raise mistake(str(file), found, "a dbt project", next_step)
    return read


def model_paths(folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Where the models of a project are, by its dbt_project.yml.

    Raises:
        ConfigurationError: no list of texts, as dbt wants it; or Jinja. dbt renders it with flags that are not known here, and files would be written elsewhere.
    """
    paths, where = settings.get("model-paths") or ["models"], f"{folder / 'dbt_project.yml'}: model-paths"
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise mistake(where, "no list of paths", "one, as dbt wants it", "model-paths: [models]")
    if "{{" in str(paths) or "{%" in str(paths):
        next_step = "write them out, such as model-paths: [models]"
        raise mistake(where, "Jinja, which only dbt renders", "paths as they are", next_step)
    return [folder / path for path in paths]
