"""From a pydantic error to problems that a user can act on, without showing a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path as Folder
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.base.redaction import MASK, SHORTEST, redact, text_leaves
from dbt_reverse_etl.sinks.paths import PROJECT_DIR

Path = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)

_RENAMED = {"drift": "grace", "queue": "folder", "reconcile_every": "full_compare_every"}
_CHOICES = {"enum", "literal_error", "union_tag_invalid", "threshold"}
# Where pydantic has words of Python.
_EXPECTED = {
    "string_too_short": "a text of {min_length} or more characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_type": "a text",
    "too_short": "{min_length} or more entries",
    **dict.fromkeys(("dict_type", "model_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type", "frozen_set_type"), "a list"),
}
LONGEST_SHOWN = 40
# What a validator says in three parts.
_PARTS = re.compile(r"found (?P<found>.*?); expected (?P<expected>.*); next: (?P<next_step>.*)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """Where a block of settings stands.

    Attributes:
        hides: tells of a path inside the block whether its value must not be shown.
        also: keys of the block that are read elsewhere.
        project_dir: the folder to which the paths of the block are relative; None: the working directory.
    """

    file: str
    keys: Path
    hides: Callable[[Path], bool] = lambda _: False
    also: tuple[str, ...] = ()
    project_dir: Folder | None = None

    def at(self, *path: str) -> str:
        """The file and the key path of a value."""
        return f"{self.file}: {'.'.join((*self.keys, *path))}"


def validate(model: type[M], given: Mapping[str, Any], place: Place, problems: list[Problem]) -> M | None:
    """The settings as their model; or None, and every mistake appended to `problems`."""
    try:
        return model.model_validate(dict(given), context={PROJECT_DIR: place.project_dir})
    except ValidationError as error:
        # Several branches of a union say the same of one key.
        found = (_problem(dict(detail), model, given, place) for detail in error.errors(include_url=False))
        problems.extend(dict.fromkeys(found))
        return None


def described(value: object) -> str:
    """A value by its type alone."""
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number", dict: "a mapping", list: "a list"}
    if value == "":
        return "an empty text"
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def closest(name: str, known: Sequence[str]) -> str:
    """A hint at the name that was probably meant, or an empty text."""
    match = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {match[0]!r}? " if match else ""


def _problem(detail: dict[str, Any], model: type[BaseModel], given: Mapping[str, Any], place: Place) -> Problem:
    path = _key_path(detail["loc"], given)
    where, kind = place.at(*path), detail["type"]
    if kind == "missing":
        return _missing(where, path[-1], detail)
    if kind == "extra_forbidden":
        allowed = [*_keys_at(model, path[:-1], detail["loc"][-2:-1]), *(place.also if len(path) == 1 else ())]
        if (renamed := _RENAMED.get(path[-1])) in allowed:
            return Problem(where, "a former name", f"its name of now, {renamed}", f"rename it to `{renamed}`")
        expected = f"one of {', '.join(allowed)}" if allowed else "no key here"
        return Problem(where, "an unknown key", expected, f"{closest(path[-1], allowed)}Correct its name or remove it")
    if kind == "string_type" and detail["loc"][-1] == "[key]":
        return _odd_key(where, detail["input"])
    said = _said(detail, given, place)
    if parts := _PARTS.fullmatch(said):
        return Problem(where, *parts.groups())
    found = described(detail["input"]) if place.hides(path) else _shown(kind, detail["input"])
    return Problem(where, found, said, "correct the value")


def _missing(where: str, last: str, detail: Mapping[str, Any]) -> Problem:
    name = str(detail["loc"][-1])
    if last == name:
        return Problem(where, "nothing", "a value: it is required", f"add `{name}:`")
    keys = " and ".join(f"`{key}:`" for key in [*detail["input"], name])  # a short form, as `capture: cdf`
    return Problem(where, "a text", f"a mapping, for `{name}` is required", f"write {keys} below it")


def _shown(kind: str, value: object) -> str:
    """Numbers and wrong words of a choice help when they are seen; any other text might be anything."""
    if isinstance(value, Enum | bool | int | float) or (kind in _CHOICES and isinstance(value, str)):
        text = repr(value)
        return redact(text) if len(text) <= LONGEST_SHOWN else described(value)
    return described(value)


def _said(detail: dict[str, Any], given: Mapping[str, Any], place: Place) -> str:
    """The message of a validator: what was expected, or three parts."""
    if detail["type"] == "union_tag_invalid":
        return f"one of {detail['ctx']['expected_tags']}"
    if expected := _EXPECTED.get(detail["type"]):
        return expected.format_map(detail.get("ctx", {}))
    if detail["type"] == "invalid-json-value":  # YAML reads 2024-01-31 as a date
        return f"found {described(detail['input'])}; expected a value that JSON has; next: put it into quotes"
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    message = message.removeprefix("input was not ")
    for path, text in text_leaves(given):
        if place.hides(path) and text:
            message = _without(message, text)
    return redact(message)


def _without(message: str, secret: str) -> str:
    """The message without a text; a short one is taken out where it stands alone."""
    if len(secret) >= SHORTEST:
        return message.replace(secret, MASK)
    return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, message)


def _key_path(loc: tuple[int | str, ...], given: Any) -> Path:
    """The user's own keys: pydantic also names the branches of a union, which stand in no file."""
    path: list[str] = []
    for index, part in enumerate(loc):
        inside = _step(given, part)
        if inside is not None:
            given = inside[0]
            path.append(str(part))
        elif index == len(loc) - 1 and isinstance(given, Mapping) and part != "[key]":
            path.append(str(part))
    return tuple(path) or tuple(map(str, loc))


def _step(given: Any, part: int | str) -> tuple[Any] | None:
    if isinstance(given, Mapping) and part in given:
        return (given[part],)
    if isinstance(given, list) and isinstance(part, int) and part < len(given):
        return (given[part],)
    return None


def _keys_at(model: type[BaseModel], path: Path, branch: Sequence[object] = ()) -> list[str]:
    """Of a union those of the branch whose tag is written, if it has tags."""
    models = _models_at(model, path)
    tagged = [
        found
        for found in models
        if any(tag in get_args(info.annotation) for info in found.model_fields.values() for tag in branch)
    ]
    return list(dict.fromkeys(name for found in tagged or models for name in _names(found)))


def _models_at(model: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    models = [model]
    for part in path:
        annotations = [found.model_fields[part].annotation for found in models if part in found.model_fields]
        models = [inner for annotation in annotations for inner in _models_in(annotation)]
    return models


def secret_names(model: type[BaseModel]) -> frozenset[str]:
    """The names of all fields, at any depth, whose type holds a pydantic secret."""
    return frozenset(_names_of(model, lambda part: part in (SecretStr, SecretBytes), set())) | secret_mappings(model)


def secret_mappings(model: type[BaseModel]) -> frozenset[str]:
    """The names of fields whose type is a secret mapping: some of its texts are secrets, others plain words such as `public`."""
    return frozenset(_names_of(model, lambda part: get_origin(part) is Secret, set()))


def _names_of(model: type[BaseModel], wanted: Callable[[Any], bool], seen: set[type[BaseModel]]) -> Iterator[str]:
    seen.add(model)
    for name, info in model.model_fields.items():
        if any(map(wanted, _parts(info.annotation))):
            yield name
            yield from (alias for alias in (info.alias, info.validation_alias) if isinstance(alias, str))
        for inner in _models_in(info.annotation):
            if inner not in seen:
                yield from _names_of(inner, wanted, seen)


def is_unlisted(model: type[BaseModel], path: Path) -> bool:
    """Whether the value has a key that a model with `extra="allow"` does not list, so that it may be a secret."""
    return any(
        part not in _keys_at(model, path[:depth])
        and any(inner.model_config.get("extra") == "allow" for inner in _models_at(model, path[:depth]))
        for depth, part in enumerate(path)
    )


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    return [part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _odd_key(where: str, key: object) -> Problem:
    return Problem(where, f"{described(key)} as a key", "a text", "put the key into quotes")


def mapping_of(
    value: object, where: str, expected: str, problems: list[Problem], next_step: str = "write a mapping"
) -> Mapping[str, Any] | None:
    """The value if it is a mapping whose keys are texts; otherwise None, and a problem."""
    if not isinstance(value, Mapping):
        problems.append(Problem(where, described(value), expected, next_step))
        return None
    for key in value:
        if not isinstance(key, str):
            problems.append(_odd_key(f"{where}.{key}", key))
    return value if all(isinstance(key, str) for key in value) else None
