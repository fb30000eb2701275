"""Finds the block `dbt_reverse_etl` of profiles.yml, and refuses one that is for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dbt_reverse_etl.base.dbt_options import project_settings, told
from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.config.blocks import read_block
from dbt_reverse_etl.config.validation import Place, described

FILE_NAME, BLOCK, SERVE, ALERTS = "profiles.yml", "dbt_reverse_etl", "serve", "alerts"
_KEYS = ("outputs", "projects", "profiles", SERVE, ALERTS)


@dataclass(frozen=True)
class DbtProject:
    """Who asks for destinations.

    Attributes:
        name: of the dbt project; empty: not known.
        profile: the dbt profile that its tables were made with; empty: not known.
        folder: of its dbt_project.yml, to which relative paths belong; None: not known.
    """

    name: str = ""
    profile: str = ""
    folder: Path | None = None

    @property
    def own_profile(self) -> str:
        """What its dbt_project.yml says, Jinja as it is written; empty: not known."""
        with suppress(ConfigurationError):
            return str(project_settings(self.folder).get("profile") or "") if self.folder else ""
        return ""


def profile_directories(
    flag: Path | None, project_dir: Path, env: Mapping[str, str], home: Path | None = None
) -> list[Path]:
    """Where profiles.yml may stand, in dbt's order: a directory that is named leaves no other choice. dbt never looks beside dbt_project.yml.

    The paths are absolute, for a session changes the folder. As for dbt, `~` is a name like any other: shells expand it.
    """
    named = flag or told("PROFILES_DIR", env)
    if named:
        return [Path(named).absolute()]
    with suppress(RuntimeError):  # in a container a user may have neither HOME nor an entry in passwd
        home = home or Path.home()
    return list(dict.fromkeys([Path.cwd(), *([home / ".dbt"] if home else []), project_dir]))


def read_target(directories: Sequence[Path], target: str, project: DbtProject) -> tuple[Place, object]:
    """What `outputs` says of a target in the first profiles.yml that is there, texts not yet rendered.

    Raises:
        ConfigurationError: no file, no block, no such target, or a block that does not say whether it is for this project and its profile.
    """
    file = _first(directories)
    block = read_block(file, BLOCK)
    outputs = block.get("outputs") if isinstance(block, Mapping) else None
    if not isinstance(outputs, Mapping):
        raise _error(
            f"{file}: {BLOCK}",
            "no such block" if block is None else "no mapping `outputs`",
            f"{BLOCK}: {{outputs: {{{target}: ...}}}}, for the project has syncs",
            f"add the block; `{target}: plan` plans and sends nothing",
        )
    _refuse_other_keys(file, block)
    if project.name:
        _refuse_other_projects(file, block, project.name)
    _refuse_other_profiles(file, block, target, project)
    if target not in outputs:
        known = ", ".join(map(str, outputs)) or "none"
        raise _error(
            f"{file}: {BLOCK}.outputs",
            f"no target {target!r}",
            f"one of the targets there: {known}",
            f"add `{target}: plan` to plan only, or its destinations; or run dbt with another --target",
        )
    return Place(str(file), (BLOCK, "outputs", target), project_dir=project.folder), outputs[target]


def read_serve(directories: Sequence[Path]) -> tuple[Place, object, frozenset[str]]:
    """What `serve` says in the first profiles.yml that is there, texts not yet rendered, and the names of the targets.

    Raises:
        ConfigurationError: no file, or nothing for `serve` in it.
    """
    file = _first(directories)
    block = read_block(file, BLOCK)
    written = block.get(SERVE) if isinstance(block, Mapping) else None
    if written is None:
        expected = f"{BLOCK}: {{serve: {{account_id, token, jobs}}}}"
        raise _error(f"{file}: {BLOCK}", "nothing for `serve`", expected, "add it: docs/dbt-cloud.md")
    _refuse_other_keys(file, block)
    return Place(str(file), (BLOCK, SERVE)), written, _targets(block)


def read_alerts(directories: Sequence[Path]) -> tuple[str, object, frozenset[str]]:
    """The file, and what it says under `alerts`, texts not yet rendered; nothing is an empty list. And the names of the targets.

    Raises:
        ConfigurationError: no file, or no block.
    """
    file = _first(directories)
    block = read_block(file, BLOCK)
    written = block.get(ALERTS, []) if isinstance(block, Mapping) else []
    return str(file), written, _targets(block)


def _targets(block: object) -> frozenset[str]:
    outputs = block.get("outputs") if isinstance(block, Mapping) else None
    return frozenset(map(str, outputs)) if isinstance(outputs, Mapping) else frozenset()


def read_profile(directories: Sequence[Path], profile: str) -> tuple[Place, Mapping[str, Any]]:
    """A dbt profile of the first profiles.yml that is there, texts not yet rendered.

    Raises:
        ConfigurationError: no file, or no such profile.
    """
    file = _first(directories)
    read = read_block(file, profile)
    if not isinstance(read, Mapping) or not isinstance(read.get("outputs"), Mapping):
        raise _error(
            f"{file}: {profile}",
            "no such profile",
            "the profile that dbt_project.yml names",
            "add it, or name another: --profiles-dir",
        )
    return Place(str(file), (profile,)), read


def _first(directories: Sequence[Path]) -> Path:
    file = next((path for path in (directory / FILE_NAME for directory in directories) if path.is_file()), None)
    if file is None:
        places = ", ".join(str(directory / FILE_NAME) for directory in directories)
        next_step = "write it (`dbt-reverse-etl init` shows our block), or name its folder: --profiles-dir"
        raise _error(FILE_NAME, "no such file", f"one of {places}", next_step)
    return file


def _error(where: str, found: str, expected: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(Problem(where, found, expected, next_step))


def _refuse_other_keys(file: Path, block: Mapping[Any, Any]) -> None:
    others = [str(key) for key in block if key not in _KEYS]
    if others:
        found, expected = f"the keys {', '.join(others)}", f"{', '.join(f'`{key}`' for key in _KEYS)} alone"
        raise _error(f"{file}: {BLOCK}", found, expected, "remove or move them")


def _refuse_other_projects(file: Path, block: Mapping[Any, Any], project: str) -> None:
    """Two projects with a target of the same name must not share destinations by accident."""
    served = block.get("projects")
    if served is None and len(_dbt_profiles(file)) > 1:
        found = f"the dbt profiles {', '.join(_dbt_profiles(file))}, and destinations that do not say for which project they are"
        raise _error(
            f"{file}: {BLOCK}",
            found,
            "`projects`",
            f"add `projects: [{project}]`, or move the block to a profiles.yml beside dbt_project.yml",
        )
    _refuse_no_names(file, "projects", served, project)
    if served is not None and project not in served:
        raise _error(
            f"{file}: {BLOCK}.projects",
            f"the destinations of {', '.join(served) or 'no project'}",
            f"those of {project}",
            f"put a profiles.yml with destinations of its own beside its dbt_project.yml, or add {project} to share these",
        )


def _refuse_other_profiles(file: Path, block: Mapping[Any, Any], target: str, project: DbtProject) -> None:
    """Two dbt profiles of one project may have a target of one name: the rows of one must not go where those of the other belong.

    The profile that dbt_project.yml names is meant unless the file says otherwise; one that is not in the file, as that of dbt Cloud, tells nothing.
    """
    served, used = block.get("profiles"), project.profile
    _refuse_no_names(file, "profiles", served, used or "NAME")
    if served is not None and used in _dbt_profiles(file) and used not in served:
        raise _error(
            f"{file}: {BLOCK}.profiles",
            f"the destinations of {', '.join(served) or 'no dbt profile'}",
            f"those of {used}",
            f"give its target another name and destinations of its own, or add {used} to share these",
        )
    same = _dbt_profiles(file, target)
    if served is None and used in same and len(same) > 1 and project.own_profile not in ("", used):
        raise _error(
            f"{file}: {BLOCK}",
            f"a target {target!r} in the dbt profiles {', '.join(same)}, and destinations that do not say for which, "
            f"while dbt uses {used} and dbt_project.yml says {project.own_profile}",
            "`profiles`",
            f"add `profiles: [...]` with those whose rows belong there; or give the target of {used} another name, and list that under `outputs`",
        )


def _refuse_no_names(file: Path, key: str, served: object, example: str) -> None:
    if served is not None and (not isinstance(served, list) or not all(isinstance(name, str) for name in served)):
        raise _error(f"{file}: {BLOCK}.{key}", described(served), f"a list of names of dbt {key}", f"write [{example}]")


def _dbt_profiles(file: Path, target: str = "") -> list[str]:
    """The names of all dbt profiles, or of those with this target."""
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    outputs = {
        str(name.value): inner
        for name, profile in (root.value if root else ())
        if name.value != BLOCK and isinstance(profile, yaml.MappingNode)
        for key, inner in profile.value
        if key.value == "outputs"
    }
    return [name for name, inner in outputs.items() if not target or target in _keys(inner)]


def _keys(node: yaml.Node) -> list[str]:
    return [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
