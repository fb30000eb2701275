"""Reads the block `dbt_reverse_etl` of profiles.yml, and puts environment variables into its texts."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, TemplateSyntaxError, nodes

from dbt_reverse_etl.base.dbt_options import told
from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.config.validation import Place, described

FILE_NAME, BLOCK, SERVE, ALERTS = "profiles.yml", "dbt_reverse_etl", "serve", "alerts"
_KEYS = ("outputs", "projects", "profiles", SERVE, ALERTS)
MOST_NODES = 100_000  # of a block, each alias counted as what it stands for
# In place of a variable that is not set: what a header, a password and a key in base64 take.
UNSET = base64.b64encode(b"an environment variable that is not set").decode()

_ALLOWED = "plain text and {{ env_var('NAME') }} or {{ env_var('NAME', 'default') }}"
# Only the parser is used, nothing is ever evaluated; and it sees the expressions alone, for it alters plain text.
_PARSER = Environment(autoescape=True)
_EXPRESSION = re.compile(r"(\{\{(?![-+]).*?(?<![-+])\}\})", re.DOTALL)


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
        try:
            read = (
                yaml.safe_load((self.folder / "dbt_project.yml").read_text(encoding="utf-8")) if self.folder else None
            )
        except (OSError, yaml.YAMLError, ValueError, RecursionError):
            return ""
        return str(read.get("profile") or "") if isinstance(read, Mapping) else ""


ANY_PROJECT = DbtProject()


def profile_directories(
    flag: Path | None, project_dir: Path, env: Mapping[str, str], home: Path | None = None
) -> list[Path]:
    """Where profiles.yml may stand, in dbt's order: a directory that is named leaves no other choice. dbt never looks beside dbt_project.yml.

    The paths are absolute, for a session changes the folder. As for dbt, `~` is a name like any other: shells expand it.
    """
    named = flag or told("PROFILES_DIR", env)
    places = [Path(named).absolute()] if named else [Path.cwd(), (home or Path.home()) / ".dbt", project_dir]
    return list(dict.fromkeys(places))


def read_target(directories: Sequence[Path], target: str, project: DbtProject = ANY_PROJECT) -> tuple[Place, object]:
    """What `outputs` says of a target in the first profiles.yml that is there, texts not yet rendered.

    Raises:
        ConfigurationError: no file, no block, no such target, or a block that does not say whether it is for this project and its profile.
    """
    file = _first(directories)
    block = _block(file, BLOCK)
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
    block = _block(file, BLOCK)
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
    block = _block(file, BLOCK)
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
    read = _block(file, profile)
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
        raise _error(
            FILE_NAME, "no such file", f"one of {places}", "run `dbt-reverse-etl init`, or name it: --profiles-dir"
        )
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


def _block(file: Path, name: str) -> Any:
    """The block as plain data, or None. Of a YAML error only the place is told: its text may quote a secret."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        found = [value for key, value in pairs if key.value == name]
        for node in found:
            _refuse_repeated_keys(file, node, (name,), iter(range(MOST_NODES)))
        if len(found) > 1:
            raise _error(
                f"{file}:{found[1].start_mark.line + 1}", f"{name} a second time", "each key once", "join them"
            )
        return yaml.SafeLoader("").construct_document(found[0]) if found else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise _error(
            place, "text that is not YAML", "YAML", "correct the line; quote values with special signs"
        ) from None
    except RecursionError:
        raise _error(str(file), "blocks too deep in each other", "plain data", "write it flatter") from None
    except (yaml.YAMLError, ValueError):
        raise _error(
            str(file), "content that is not YAML", "YAML in UTF-8", "save the file as UTF-8, and quote dates"
        ) from None
    except OSError as error:
        raise _error(str(file), f"{type(error).__name__}", "a readable file", "check its permissions") from None


def _refuse_repeated_keys(
    file: Path, node: yaml.Node, path: tuple[str, ...], left: Iterator[int], above: tuple[yaml.Node, ...] = ()
) -> None:
    """YAML keeps the last of two equal keys: a destination would vanish without a word.

    Args:
        left: yields once for each node that may follow: aliases of aliases stand for more than any memory holds.
    """
    if next(left, None) is None:
        raise _error(f"{file}: {path[0]}", f"more than {MOST_NODES} values", "fewer", "write out what aliases repeat")
    if node in above:
        raise _error(
            f"{file}:{node.start_mark.line + 1}", "an alias inside its own anchor", "plain data", "write it out"
        )
    if isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            _refuse_repeated_keys(file, inner, path, left, (*above, node))
    seen: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = str(key.value)
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            where = f"{file}:{key.start_mark.line + 1}: {'.'.join((*path, name))}"
            raise _error(where, "the key a second time", "each key once", "remove or rename one of them")
        seen.add(name)
        _refuse_repeated_keys(file, value, (*path, name), left, (*above, node))


@dataclass
class Rendered:
    """A block whose texts are rendered.

    Attributes:
        value: the block.
        used: what came out of the environment: key path, variable, value.
        problems: texts that could not be rendered.
        unset: the problems of variables that are not set, by key path; `UNSET` stands in their place.
    """

    value: Any = None
    used: list[tuple[tuple[str, ...], str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unset: dict[tuple[str, ...], Problem] = field(default_factory=dict)


def render(value: object, env: Mapping[str, str], place: Place) -> Rendered:
    """Replace `env_var` in every text of the block; keys stay as they are."""
    rendered = render_lazily(value, env, place)
    rendered.problems.extend(rendered.unset.values())
    return rendered


def render_lazily(value: object, env: Mapping[str, str], place: Place) -> Rendered:
    """As `render`, but that a variable is not set is no problem yet."""
    rendered = Rendered()
    rendered.value = _rendered(value, (), env, place, rendered)
    return rendered


def _rendered(value: Any, path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered) -> Any:
    if isinstance(value, Mapping):
        return {key: _rendered(inner, (*path, str(key)), env, place, to) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rendered(inner, (*path, str(index)), env, place, to) for index, inner in enumerate(value)]
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return _rendered_text(value, path, env, place, to)
    return value


def _rendered_text(text: str, path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered) -> str:
    try:
        parts = _parts(text)
    except TemplateSyntaxError:
        to.problems.append(Problem(place.at(*path), "another Jinja expression", _ALLOWED, "write only that"))
        return ""
    return "".join(part if isinstance(part, str) else _looked_up(part, path, env, place, to) for part in parts)


def _parts(text: str) -> list[str | tuple[str, str | None]]:
    """Plain text and variables, in order. Raises TemplateSyntaxError for any other Jinja."""
    pieces = _EXPRESSION.split(text)
    if any(sign in plain for plain in pieces[::2] for sign in ("{{", "{%")):
        raise TemplateSyntaxError("a statement, or an expression without an end", 1)
    return [_variable(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


def _variable(expression: str) -> tuple[str, str | None]:
    """Name and default of `{{ env_var('NAME'[, 'default']) }}`; anything else is refused."""
    body = _PARSER.parse(expression).body
    node = body[0].nodes[0] if len(body) == 1 and isinstance(body[0], nodes.Output) else None
    if not (isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "env_var"):
        raise TemplateSyntaxError("not env_var", 1)
    given = [*node.args, *(keyword.value for keyword in node.kwargs if keyword.key == "default")]
    constants = [argument.value for argument in given if isinstance(argument, nodes.Const)]
    plain = len(constants) == len(node.args) + len(node.kwargs) and not node.dyn_args and not node.dyn_kwargs
    if not plain or len(constants) not in (1, 2) or not node.args or not isinstance(constants[0], str):
        raise TemplateSyntaxError("other arguments", 1)
    default = constants[1] if len(constants) == 2 else None
    return constants[0], None if default is None else str(default)


def _looked_up(
    variable: tuple[str, str | None], path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered
) -> str:
    name, default = variable
    value = env.get(name, default)
    if value is None:
        problem = Problem(
            place.at(*path), f"environment variable {name}, which is not set", "a value for it", f"export {name}=..."
        )
        to.unset[path] = problem
        return UNSET
    to.used.append((path, name, value))
    return value


def mapping_of(value: object, where: str, expected: str, problems: list[Problem]) -> Mapping[str, Any] | None:
    """The value if it is a mapping whose keys are texts; otherwise None, and a problem."""
    if not isinstance(value, Mapping):
        problems.append(Problem(where, described(value), expected, "write a mapping"))
        return None
    for key in value:
        if not isinstance(key, str):
            problems.append(
                Problem(f"{where}.{key}", f"{described(key)} as a key", "a text", "put the key into quotes")
            )
    return value if all(isinstance(key, str) for key in value) else None
