"""Destinations of profiles.yml, and each sync with the destination, the guards and the options that hold for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.redaction import names_a_secret, register_secret, text_leaves
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.config.profiles import DbtProject, read_target
from dbt_reverse_etl.config.rendering import UNSET, Rendered, render_lazily
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.config.sink_types import sink_of
from dbt_reverse_etl.config.validation import Path as KeyPath
from dbt_reverse_etl.config.validation import (
    Place,
    closest,
    described,
    is_unlisted,
    mapping_of,
    secret_mappings,
    secret_names,
    validate,
)
from dbt_reverse_etl.sinks.base import Mode, Options, Settings, Sink, SinkTask

_OWN_KEYS = ("type", "guards")
_LOGIN = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
SinkClass = type[Sink]


@dataclass(frozen=True)
class PlanOnly:
    """profiles.yml says `plan` for this target: nothing may be sent."""

    target: str


@dataclass(frozen=True)
class Destination:
    """A named system. `settings`: their secrets are pydantic secrets, so that `repr` hides them; `guards`: the defaults for its syncs."""

    name: str
    type: str
    sink: SinkClass
    settings: Settings
    guards: Guards


class ResolvedSync(NamedTuple):
    """A sync with everything that holds for it."""

    sync: Sync
    destination: Destination
    guards: Guards
    options: Options

    @property
    def label(self) -> str:
        """Where its rows go, for people."""
        return f"{self.destination.name}.{self.sync.settings.object}"

    def task(self, key: tuple[str, ...], schema: pa.Schema, **more: Any) -> SinkTask:
        """The sync as its sink sees it, before it has a fence."""
        named: dict[str, Any] = {"sync_id": "", "sync": self.sync.name, "fence": 0, "options": self.options, **more}
        settings = self.sync.settings
        return SinkTask(object=settings.object, mode=settings.mode, key=key, schema=schema, **named)


@dataclass(frozen=True)
class Loaded:
    """What could be read of a target, the problems of the rest, and by destination what is not set.

    A destination of which only secrets are not set is there, with `UNSET` in their place: enough to name it and to plan.
    """

    destinations: dict[str, Destination]
    problems: list[Problem]
    unset: dict[str, list[Problem]]


def collect_destinations(
    directories: Sequence[Path],
    target: str,
    env: Mapping[str, str],
    project: DbtProject,
    asked: Iterable[tuple[Place, str]] = (),
) -> PlanOnly | Loaded:
    """The destinations of one dbt target; to be asked only where the project has syncs.

    Values that come from the environment into secret settings are registered for `redact`.

    Args:
        asked: by syncs, each with the place of its settings; one that is not there is a problem, unless the target cannot be read.

    Raises:
        ConfigurationError: no block for this target. Problems of single destinations are returned.
    """
    place, written = read_target(directories, target, project)
    if written == "plan":
        return PlanOnly(target)
    problems: list[Problem] = []
    unset: dict[str, list[Problem]] = {}
    expected, next_step = "`plan`, or destinations by name", "write `plan`, or a mapping"
    named = mapping_of(written, place.at(), expected, problems, next_step)
    if named is None:
        return Loaded({}, problems, unset)
    problems.extend(_unknown(where, name, named) for where, name in asked if name not in named)
    loaded = {name: _destination(name, block, place, env, problems, unset) for name, block in named.items()}
    return Loaded({name: destination for name, destination in loaded.items() if destination}, problems, unset)


def _unknown(place: Place, name: str, named: Iterable[str]) -> Problem:
    expected = f"a destination of this target in profiles.yml: {', '.join(sorted(named)) or 'none'}"
    found = repr(name) if re.fullmatch(r"[\w.-]+", name) else described(name)  # a URL may hold a password
    next_step = f"{closest(name, [*named])}Add it there, or correct the name"
    return Problem(place.at("destination"), found, expected, next_step)


def _destination(  # noqa: PLR0913, PLR0917  (each is a fact of the surroundings)
    name: str,
    written: object,
    target: Place,
    env: Mapping[str, str],
    problems: list[Problem],
    unset: dict[str, list[Problem]],
) -> Destination | None:
    place = replace(target, keys=(*target.keys, name))
    if mapping_of(written, place.at(), "a mapping with `type`", problems) is None:
        return None
    rendered = render_lazily(written, env, place)
    problems.extend(rendered.problems)
    if not rendered.unset:
        return _validated(name, rendered, place, problems)
    unset[name] = list(rendered.unset.values())
    of_rest: list[Problem] = []
    found = _validated(name, rendered, place, of_rest)
    # What is said of the block as a whole may be due to what is not set.
    silent = {place.at(), *(place.at(*path) for path in rendered.unset)}
    problems.extend(problem for problem in of_rest if problem.where not in silent)
    return found if found and _is_named_without(rendered, found, place) else None


def _is_named_without(rendered: Rendered, found: Destination, place: Place) -> bool:
    """Whether only secrets are not set: any other text in their place leaves the destination the same."""
    swapped = replace(rendered, value=_replaced(rendered.value, UNSET, UNSET.swapcase()))
    other = _validated(found.name, swapped, place, [])
    model = found.sink.settings_model
    secret = secret_names(model)
    if other is None or not all(secret.intersection(path) or is_unlisted(model, path) for path in rendered.unset):
        return False
    return found.sink(found.settings).identity == other.sink(other.settings).identity


def _replaced(value: Any, old: str, new: str) -> Any:
    """The same data with another text inside its texts."""
    if isinstance(value, Mapping):
        return {key: _replaced(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, old, new) for inner in value]
    return value.replace(old, new) if isinstance(value, str) else value


def _validated(name: str, rendered: Rendered, place: Place, problems: list[Problem]) -> Destination | None:
    block: dict[str, Any] = rendered.value
    from_env = {path for path, _, _ in rendered.used}
    sink = sink_of(block.get("type"), Place(place.file, place.keys, hides_of(frozenset(), from_env)), problems)
    secret = secret_names(sink.settings_model) if sink else frozenset()
    register_values(block, rendered.used, sink.settings_model if sink else Settings)
    hides = hides_of(secret, from_env)
    guards_place = Place(place.file, (*place.keys, "guards"), lambda path: hides(("guards", *path)))
    guards = mapping_of(block.get("guards", {}), guards_place.at(), "a mapping of guards", problems)
    defaults = validate(Guards, guards, guards_place, problems) if guards is not None else None
    if sink is None or rendered.problems:
        return None
    own = {key: value for key, value in block.items() if key not in _OWN_KEYS}
    settings = validate(sink.settings_model, own, replace(place, hides=hides, also=_OWN_KEYS), problems)
    if settings is None or defaults is None:
        return None
    return Destination(name, sink.type, sink, settings, defaults)


def register_values(block: object, used: Iterable[tuple[KeyPath, str, str]], model: type[Settings]) -> None:
    """Register for `redact` what a block holds in its secret settings, and what came there from the environment."""
    secret, mappings = secret_names(model), secret_mappings(model)
    for path, text in text_leaves(block):
        is_open = is_unlisted(model, path) or mappings.intersection(path)
        if (secret - mappings).intersection(path) or (is_open and any(map(names_a_secret, path))):
            register_secret(text)
        for login in _LOGIN.findall(text) if is_open else ():
            register_secret(login)
    for path, variable, value in used:
        named = names_a_secret(variable) or variable.startswith("DBT_ENV_SECRET")
        is_one = any(map(names_a_secret, path)) if mappings.intersection(path) else secret.intersection(path)
        if named or is_one or is_unlisted(model, path):
            register_secret(value)


def hides_of(secret: frozenset[str], from_env: set[KeyPath]) -> Callable[[KeyPath], bool]:
    """Not shown: what a secret setting holds, what is called like one, and whatever comes out of the environment."""

    def hides(path: KeyPath) -> bool:
        named = bool(secret.intersection(path)) or any(map(names_a_secret, path))
        return named or any(path[: len(used)] == used or used[: len(path)] == path for used in from_env)

    return hides


def collect_resolved(
    syncs: Iterable[Sync],
    destinations: Mapping[str, Destination],
    problems: list[Problem],
    project_dir: Path | None = None,
) -> list[ResolvedSync]:
    """Join each sync with its destination; those of one that is not here are left out, for that is a problem already.

    Appended to `problems`: modes that the sink cannot carry out, options that it does not know, and two syncs that both delete
    in one object.
    """
    wanted = [(sync, destinations.get(sync.settings.destination)) for sync in syncs]
    joined = [_resolved(sync, destination, problems) for sync, destination in wanted if destination]
    resolved = [one for one in joined if one]
    _refuse_two_owners(resolved, problems)
    for one in resolved:
        _refuse_early(one, project_dir, problems)
    return resolved


def resolved_of(resolved: Iterable[ResolvedSync], syncs: Iterable[Sync]) -> list[ResolvedSync]:
    """Those of these syncs."""
    wanted = {sync.unique_id for sync in syncs}
    return [one for one in resolved if one.sync.unique_id in wanted]


def _refuse_early(resolved: ResolvedSync, project_dir: Path | None, problems: list[Problem]) -> None:
    """What its sink says of a sync before the model is read."""
    destination = resolved.destination
    if not destination.sink.validates_early or resolved.sync.settings.mode not in destination.sink.modes:
        return
    try:
        destination.sink(destination.settings).validate(early_task(resolved, project_dir))
    except ReverseEtlError as error:
        problems.extend(error.problems)


def early_task(resolved: ResolvedSync, project_dir: Path | None) -> SinkTask:
    """A sync as its sink sees it before the model is read."""
    settings = resolved.sync.settings
    mapped = {column.casefold(): name for column, name in (settings.fields or {}).items()}
    key = tuple(mapped.get(column.casefold(), column) for column in resolved.sync.changelog.key)
    schema, known = pa.schema([(name, pa.string()) for name in (mapped.values() or key)]), "names" if mapped else "key"
    return resolved.task(key, schema, project_dir=project_dir, full_load=settings.owns_object, known=known)


def _resolved(sync: Sync, destination: Destination, problems: list[Problem]) -> ResolvedSync | None:
    place, settings = sync.place, sync.settings
    if settings.mode not in destination.sink.modes:
        allowed = ", ".join(sorted(mode.value for mode in destination.sink.modes))
        expected = f"what a destination of type {destination.type} can do: {allowed}"
        problems.append(Problem(place.at("mode"), repr(settings.mode.value), expected, "choose another mode"))
    if settings.owns_object and not destination.sink.full_loads:
        expected = f"false: a destination of type {destination.type} cannot replace an object as a whole"
        problems.append(Problem(place.at("owns_object"), "'true'", expected, "remove it"))
    if settings.on_unknown == "park" and destination.sink.transactional:
        expected = f"send_again: a destination of type {destination.type} takes no change twice"
        problems.append(Problem(place.at("on_unknown"), "'park'", expected, "remove it"))
    options_place = Place(sync.file, (*place.keys, "options"), lambda path: any(map(names_a_secret, path)))
    options = validate(destination.sink.options_model, settings.options, options_place, problems)
    if options is None:
        return None
    return ResolvedSync(sync, destination, settings.guards.over(destination.guards), options)


def _refuse_two_owners(resolved: Sequence[ResolvedSync], problems: list[Problem]) -> None:
    """Two names may lead to one system."""
    found = []
    for sync, destination, _, _ in resolved:
        try:
            place = destination.sink(destination.settings).place_of(sync.settings.object)
        except ReverseEtlError as error:
            problems.extend(error.problems)
        else:
            found.append(((destination.type, place), sync))
    refuse_two_owners(found, problems)
    _refuse_shared_positions(found, problems)


def _refuse_shared_positions(found: Iterable[tuple[object, Sync]], problems: list[Problem]) -> None:
    """Of two syncs with one position, each would take what the other delivered for its own."""
    seen: dict[tuple[object, str], Sync] = {}
    for place, sync in found:
        other = seen.setdefault((place, sync.position_of), sync)
        if other is not sync:
            renamed = sync if sync.settings.renamed_from else other
            known = f"{renamed.settings.renamed_from!r}, whose position {(other if renamed is sync else sync).name} has"
            where, expected = renamed.place.at("renamed_from"), "a name that no other sync has"
            problems.append(Problem(where, known, expected, "remove renamed_from, or the other sync"))


def refuse_two_owners(found: Iterable[tuple[object, Sync]], problems: list[Problem]) -> None:
    """Syncs by object: of two that delete, each would delete what the other wrote; an owner replaces what anyone wrote."""
    seen: dict[object, list[Sync]] = {}
    for place, sync in found:
        if not sync.enabled:
            continue
        others = seen.setdefault(place, [])
        rival = next((other for other in others if _collide(other, sync)), None)
        if rival is not None:
            problems.append(_two_owners(rival, sync))
        others.append(sync)


def _collide(one: Sync, other: Sync) -> bool:
    """A mirror knows which rows other syncs of its changelog hold, and of no other changelog. One that only updates holds none."""
    modes = {one.settings.mode, other.settings.mode}
    is_shared = one.changelog.unique_id == other.changelog.unique_id
    one_deletes = modes == {Mode.MIRROR} or (Mode.MIRROR in modes and Mode.UPDATE_ONLY not in modes and not is_shared)
    return one_deletes or one.settings.owns_object or other.settings.owns_object


def _two_owners(first: Sync, second: Sync) -> Problem:
    if first.settings.owns_object or second.settings.owns_object:
        found = f"the object {second.settings.object!r}, which {first.name} writes too"
        expected = "one sync alone where one says owns_object: a full load replaces every row"
        return Problem(second.place.at("object"), found, expected, "remove owns_object, or name another object")
    where = second.place.at("mode")
    if first.settings.mode is second.settings.mode:
        found = f"mirror, as in {first.name}, of one object {second.settings.object!r}"
        expected = "one sync that deletes in an object: each would delete what the other wrote"
        return Problem(where, found, expected, "give one of them mode: upsert, or another object")
    found = f"{second.settings.mode.value} of the object {second.settings.object!r}, and {first.settings.mode.value} in {first.name}, of another changelog"
    expected = "one changelog where one of the syncs is a mirror: it would delete a key that both deliver"
    return Problem(where, found, expected, "unite both in one model, or give the mirror mode: upsert or another object")
