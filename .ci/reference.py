"""`make docs`: docs/reference.md, from the models that check the configuration and from macros/macros.yml."""

from __future__ import annotations

import inspect
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Secret, SecretStr
from pydantic.fields import FieldInfo

from dbt_reverse_etl.config.guards import Threshold
from dbt_reverse_etl.config.settings import ChangelogSettings, SyncSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Every setting and every macro. How they are used: [configuration](configuration.md), [capture](capture.md), [querying](querying.md).
`make docs` writes this page from the code that checks the configuration and from `macros/macros.yml`. A mapping has its own table, below.
"""
WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true, false",
    SecretStr: "secret",
    Path: "text",
    Threshold: "rows, or a share such as `10%`",
}
SIGNS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
ARGUMENTS = "| argument | type | |\n|---|---|---|"
SHARED_BY = 3  # more macros than this
TITLES = {
    "changelog": "Views of a changelog",
    "delivery": "What was delivered",
    "tests": "Generic tests",
    "feeds": "Feeds",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *settings(), *macros()]).rstrip() + "\n"


def settings() -> Iterator[str]:
    """A table for each place in which settings are written."""
    yield "## Settings\n"
    yield from table("A changelog model: `meta.reverse_etl`", ChangelogSettings)
    yield from table("A sync: `config.meta.reverse_etl` of an exposure", SyncSettings)
    for point in sorted(entry_points(group="dbt_reverse_etl.sinks"), key=lambda point: point.name):
        if point.module.startswith("dbt_reverse_etl."):
            sink = point.load()
            yield from table(f"Destination `{point.name}`", sink.settings_model)
            yield from table(f"`options` of a sync to `{point.name}`", sink.options_model)


def table(title: str, model: type[BaseModel]) -> Iterator[str]:
    """Key, values, default, meaning of each setting, and a table for each mapping in it; nothing for a model without keys."""
    nested: dict[type[BaseModel], list[str]] = {}
    if model.model_fields:
        yield f"### {title}\n"
        yield from rows(model, "", nested)
    done: set[type[BaseModel]] = set()
    while todo := [inner for inner in nested if inner not in done]:
        inner = todo[0]
        done.add(inner)
        path = nested[inner][0]
        below = list(rows(inner, f"{path}.", nested))
        shared = any(inner in bases(other) for other in nested)
        several = sum(path in paths for paths in nested.values()) > 1 and not shared
        which = variant(inner) or (" with any other word" if several else "")
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(nested[inner]))
        yield f"{names}{which}: {summary(inner)}\n"
        yield from below


def rows(model: type[BaseModel], prefix: str, nested: dict[type[BaseModel], list[str]]) -> Iterator[str]:
    """The keys of one model, without the one that picks it; `nested` collects their mappings, and what several of these share."""
    meanings, apart = described(model), {*chosen(model)}
    if prefix:
        for base in bases(model):
            nested.setdefault(base, []).append(prefix.removesuffix("."))
            apart |= base.model_fields.keys()
    fields = {name: field for name, field in model.model_fields.items() if name not in apart}
    if fields:
        yield "| key | values | default | |\n|---|---|---|---|"
    for name, field in fields.items():
        written = field.alias or name
        for inner in models(field.annotation):
            nested.setdefault(inner, []).append(f"{prefix}{written}")
        cells = (f"`{written}`", values(field.annotation, field), default(field), meanings.get(name, ""))
        yield f"| {' | '.join(cells)} |"
    if fields:
        yield ""


def bases(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The models from which it inherits keys."""
    return [kind for kind in model.__bases__ if issubclass(kind, BaseModel) and kind.model_fields]


def variant(model: type[BaseModel]) -> str:
    """The word that picks this mapping among several."""
    return "".join(f" with `{name}: {word}`" for name, word in chosen(model).items())


def chosen(model: type[BaseModel]) -> dict[str, str]:
    """The key that can only have one value, and that value."""
    found = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    literal = {name for name, field in model.model_fields.items() if get_origin(field.annotation) is Literal}
    return {name: words[0] for name, words in found.items() if name in literal and len(words) == 1}


def summary(model: type[BaseModel]) -> str:
    """What its docstring says before the attributes."""
    return cell(inspect.cleandoc(model.__doc__ or "").partition("Attributes:")[0])


def described(model: type[BaseModel]) -> dict[str, str]:
    """The meaning of each attribute, from the docstrings."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        text = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        for names, meaning in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), re.sub(r"\bNone\b", "null", cell(meaning)).removesuffix("."))
    return found


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a value may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models(inner)


def values(annotation: Any, field: FieldInfo | None = None) -> str:
    """What may be written, with its bounds."""
    return ", ".join([kinds(annotation), *limits(field.metadata if field else ())])


def limits(metadata: Iterable[Any]) -> Iterator[str]:
    """The bounds that an annotation adds to its type."""
    for one in metadata:
        bounds = [(word, getattr(one, sign, None)) for sign, word in SIGNS]
        yield from (f"{word} {bound}" for word, bound in bounds if bound is not None)
        yield from limits(one.metadata if isinstance(one, FieldInfo) else ())


def kinds(annotation: Any) -> str:
    """In words."""
    origin, inner = get_origin(annotation), [arg for arg in get_args(annotation) if arg is not type(None)]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(kinds, inner)))
    if origin is dict:
        return f"mapping of {kinds(inner[0])} to {kinds(inner[1])}"
    if inner:
        what = f"{'' if origin in (Annotated, Secret) else 'list of '}{kinds(inner[0])}"
        return ", ".join([what, *limits(inner[1:])])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    return "mapping" if list(models(annotation)) else WORDS.get(annotation, "any")


def default(field: FieldInfo) -> str:
    """As it is written in YAML."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel) or value in (None, {}, [], (), frozenset()):
        return ""
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Threshold):
        return f"`{value}`"
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str | int | float | list | dict):
        return ""  # an empty secret
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix('...' + chr(10)).strip()}`"


def macros() -> Iterator[str]:
    """The macros that users call, by folder."""
    described = yaml.safe_load((ROOT / "macros" / "macros.yml").read_text(encoding="utf-8"))["macros"]
    lines = Counter(line for one in described for line in arguments(one).values())
    shared = [line for line, count in lines.items() if count > SHARED_BY]
    yield f"## Arguments that macros share\n\n{ARGUMENTS}\n" + "\n".join(shared) + "\n"
    files = {file.stem: file.parent.name for file in sorted((ROOT / "macros").rglob("*.sql"))}
    folders: dict[str, list[dict[str, Any]]] = {}
    for one in described:
        folders.setdefault(files[one["name"].removeprefix("test_")], []).append(one)
    for folder, ones in folders.items():
        yield f"## {TITLES.get(folder, folder.replace('_', ' ').capitalize())}\n"
        for one in ones:
            yield from macro(one["name"].removeprefix("test_"), one, shared)


def macro(name: str, one: dict[str, Any], shared: list[str]) -> Iterator[str]:
    """Its description and its arguments."""
    yield f"### {name}\n\n{' '.join(one['description'].split())}\n"
    own = {key: line for key, line in arguments(one).items() if line not in shared}
    if own:
        yield "\n".join([ARGUMENTS, *own.values(), ""])
    if others := [f"`{key}`" for key in arguments(one) if key not in own]:
        yield f"Shared: {', '.join(others)}.\n"


def arguments(one: dict[str, Any]) -> dict[str, str]:
    """A line of a table for each argument of a macro."""
    return {
        argument["name"]: f"| `{argument['name']}` | {argument['type']} | {cell(argument['description'])} |"
        for argument in one.get("arguments", [])
    }


def cell(text: str) -> str:
    """One line, without the sign that ends a cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
