"""`make docs`: docs/reference.md, from the models that check the configuration and from macros/macros.yml."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from dbt_reverse_etl.config.settings import ChangelogSettings, SyncSettings, Threshold

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made by `make docs` from the code that checks the configuration and from `macros/macros.yml`; a test fails when it is stale.
What the settings are for: [configuration](configuration.md). A mapping has a table of its own, below.
"""
WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true, false",
    SecretStr: "secret",
    Threshold: "rows, or a share such as `10%`",
}
SIGNS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
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
        several = sum(path in paths for paths in nested.values()) > 1
        which = variant(inner) or (" with any other word" if several else "")
        yield f"{', '.join(f'`{name}`' for name in nested[inner])}{which}:\n"
        yield from below


def rows(model: type[BaseModel], prefix: str, nested: dict[type[BaseModel], list[str]]) -> Iterator[str]:
    """The keys of one model; `nested` collects what stands below them."""
    meanings = described(model)
    yield "| key | values | default | |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        written = field.alias or name
        for inner in models(field.annotation):
            nested.setdefault(inner, []).append(f"{prefix}{written}")
        cells = (f"`{written}`", values(field.annotation, field), default(field), meanings.get(name, ""))
        yield f"| {' | '.join(cells)} |"
    yield ""


def variant(model: type[BaseModel]) -> str:
    """The word that picks this mapping among several."""
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            return f" with `{name}: {get_args(field.annotation)[0]}`"
    return ""


def described(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings say of each attribute."""
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
    limits = [(word, getattr(limit, sign, None)) for limit in (field.metadata if field else ()) for sign, word in SIGNS]
    return ", ".join([kinds(annotation), *(f"{word} {bound}" for word, bound in limits if bound is not None)])


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
        return f"{'' if origin is Annotated else 'list of '}{kinds(inner[0])}"
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
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str | int | float | list | dict):
        return ""  # an empty secret
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix('...' + chr(10)).strip()}`"


def macros() -> Iterator[str]:
    """The macros that users call, by the folder in which they stand."""
    told = yaml.safe_load((ROOT / "macros" / "macros.yml").read_text(encoding="utf-8"))["macros"]
    files = {file.stem: file.parent.name for file in sorted((ROOT / "macros").rglob("*.sql"))}
    folders: dict[str, list[dict[str, Any]]] = {}
    for one in told:
        folders.setdefault(files[one["name"].removeprefix("test_")], []).append(one)
    for folder, ones in folders.items():
        yield f"## {TITLES.get(folder, folder.replace('_', ' ').capitalize())}\n"
        for one in ones:
            yield from macro(one["name"].removeprefix("test_"), one)


def macro(name: str, one: dict[str, Any]) -> Iterator[str]:
    """Its description and its arguments."""
    yield f"### {name}\n\n{' '.join(one['description'].split())}\n"
    if one.get("arguments"):
        yield "| argument | type | |\n|---|---|---|"
        for argument in one["arguments"]:
            yield f"| `{argument['name']}` | {argument.get('type', '')} | {cell(argument.get('description', ''))} |"
        yield ""


def cell(text: str) -> str:
    """One line, without the sign that ends a cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
