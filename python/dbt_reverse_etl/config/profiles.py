"""Finds the block `dbt_reverse_etl` of profiles.yml, and refuses one that is for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dbt_reverse_etl.base.dbt_options import project_settings, told
from dbt_reverse_etl.base.errors import ConfigurationError, mistake
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
    file, block = _block(directories)
    outputs = block.get("outputs") if isinstance(block, Mapping) else None
    where = f"{file}: {BLOCK}"
    if not isinstance(outputs, Mapping):
        found = "no such block" if block is None else "no mapping `outputs`"
        expected = f"{BLOCK}: {{outputs: {{{target}: ...}}}}, for the project has syncs"
        raise mistake(where, found, expected, f"add the block; `{target}: plan` captures and sends nothing")
    _refuse_other_keys(file, block)
    if project.name:
        _refuse_other_projects(file, block, project.name)
    _refuse_other_profiles(file, block, target, project)
    if target not in outputs:
        expected = f"one of the targets there: {', '.join(map(str, outputs)) or 'none'}"
        next_step = f"add `{target}: plan` to capture alone, or its destinations; or run dbt with another --target"
        raise mistake(f"{where}.outputs", f"no target {target!r}", expected, next_step)
    return Place(str(file), (BLOCK, "outputs", target), project_dir=project.folder), outputs[target]


def read_serve(directories: Sequence[Path]) -> tuple[Place, object, frozenset[str]]:
    """What `serve` says in the first profiles.yml that is there, texts not yet rendered, and the names of the targets.

    Raises:
        ConfigurationError: no file, or nothing for `serve` in it.
    """
    file, block = _block(directories)
    written = block.get(SERVE) if isinstance(block, Mapping) else None
    if written is None:
        expected = f"{BLOCK}: {{serve: {{account_id, token, jobs}}}}"
        raise mistake(f"{file}: {BLOCK}", "nothing for `serve`", expected, "add it: docs/dbt-cloud.md")
    _refuse_other_keys(file, block)
    return Place(str(file), (BLOCK, SERVE)), written, _targets(block)


def read_alerts(directories: Sequence[Path]) -> tuple[str, object, frozenset[str]]:
    """The file, and what it says under `alerts`, texts not yet rendered; nothing is an empty list. And the names of the targets.

    Raises:
        ConfigurationError: no file, or no block.
    """
    file, block = _block(directories)
    written = block.get(ALERTS, []) if isinstance(block, Mapping) else []
    return str(file), written, _targets(block)


def _block(directories: Sequence[Path]) -> tuple[Path, Any]:
    file = _first(directories)
    return file, read_block(file, BLOCK)


def _targets(block: object) -> frozenset[str]:
    outputs = block.get("outputs") if isinstance(block, Mapping) else None
    return frozenset(map(str, outputs)) if isinstance(outputs, Mapping) else frozenset()


def read_profile(directories: Sequence[Path], profile: str) -> tuple[Place, Mapping[str, Any]]:
    """A dbt profile of the first profiles.yml that is there, texts not yet rendered. Raises ConfigurationError: no file, or no such profile."""
    file = _first(directories)
    read = read_block(file, profile)
    if not isinstance(read, Mapping) or not isinstance(read.get("outputs"), Mapping):
        expected, next_step = "the profile that dbt_project.yml names", "add it, or name another: --profiles-dir"
        raise mistake(f"{file}: {profile}", "no such profile", expected, next_step)
    return Place(str(file), (profile,)), read


def _first(directories: Sequence[Path]) -> Path:
    file = next((path for path in (directory / FILE_NAME for directory in directories) if path.is_file()), None)
    if file is None:
        places = ", ".join(str(directory / FILE_NAME) for directory in directories)
        next_step = "write it (`dbt-reverse-etl init` shows our block), or name its folder: --profiles-dir"
        raise mistake(FILE_NAME, "no such file", f"one of {places}", next_step)
    return file


def _refuse_other_keys(file: Path, block: Mapping[Any, Any]) -> None:
    others = [str(key) for key in block if key not in _KEYS]
    if others:
        found, expected = f"the keys {', '.join(others)}", f"{', '.join(f'`{key}`' for key in _KEYS)} alone"
        raise mistake(f"{file}: {BLOCK}", found, expected, "remove or move them")


def _refuse_other_projects(file: Path, block: Mapping[Any, Any], project: str) -> None:
    """Two projects with a target of the same name must not share destinations by accident."""
    served, where = block.get("projects"), f"{file}: {BLOCK}"
    if served is None and len(_dbt_profiles(file)) > 1:
        found = f"the dbt profiles {', '.join(_dbt_profiles(file))}, and destinations that do not say for which project they are"
        next_step = f"add `projects: [{project}]`, or move the block to a profiles.yml beside dbt_project.yml"
        raise mistake(where, found, "`projects`", next_step)
    _refuse_no_names(file, "projects", served, project)
    if served is not None and project not in served:
        found = f"the destinations of {', '.join(served) or 'no project'}"
        next_step = f"put a profiles.yml with destinations of its own beside its dbt_project.yml, or add {project} to share these"
        raise mistake(f"{where}.projects", found, f"those of {project}", next_step)


def _refuse_other_profiles(file: Path, block: Mapping[Any, Any], target: str, project: DbtProject) -> None:
    """Two dbt profiles of one project may have a target of one name: the rows of one must not go where those of the other belong.

    The profile that dbt_project.yml names is meant unless the file says otherwise; one that is not in the file, as that of dbt Cloud, tells nothing.
    """
    served, used, where = block.get("profiles"), project.profile, f"{file}: {BLOCK}"
    _refuse_no_names(file, "profiles", served, used or "NAME")
    if served is not None and used in _dbt_profiles(file) and used not in served:
        found = f"the destinations of {', '.join(served) or 'no dbt profile'}"
        next_step = f"give its target another name and destinations of its own, or add {used} to share these"
        raise mistake(f"{where}.profiles", found, f"those of {used}", next_step)
    same = _dbt_profiles(file, target)
    if served is None and used in same and len(same) > 1 and project.own_profile not in ("", used):
        found = f"a target {target!r} in the dbt profiles {', '.join(same)}, and destinations that do not say for which, while dbt uses {used}"
        next_step = f"add `profiles: [...]` with those whose rows belong there; or give the target of {used} another name, and list that under `outputs`"
        raise mistake(where, f"{found} and dbt_project.yml says {project.own_profile}", "`profiles`", next_step)


def _refuse_no_names(file: Path, key: str, served: object, example: str) -> None:
    if served is not None and (not isinstance(served, list) or not all(isinstance(name, str) for name in served)):
        raise mistake(
            f"{file}: {BLOCK}.{key}", described(served), f"a list of names of dbt {key}", f"write [{example}]"
        )


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
