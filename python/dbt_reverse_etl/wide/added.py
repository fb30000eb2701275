"""What an author adds to the models that end a chain: `chain` in the declaration, entries of a dbt properties file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dbt_reverse_etl.base.errors import Problem

_MODELS = ("changelog", "wide")
_OPTIONS = ("description", "config", "columns", "data_tests", "tests", "constraints", "docs")


def problems_of_added(model: str, given: Any, *, changelogs: bool) -> Iterator[Problem]:
    """What is wrong with `chain`, as far as it shows before there are models."""
    where = f"{model}.wide_table.chain"
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield Problem(where, f"{given!r}", f"a mapping with {' or '.join(_MODELS)}", "correct it")
        return
    for name, entry in given.items():
        if name not in _MODELS:
            yield Problem(f"{where}.{name}", "no model that can be named", f"one of {', '.join(_MODELS)}", "remove it")
            continue
        if name == "changelog" and not changelogs:
            expected = "a chain of changelogs, whose last one it is for"
            yield Problem(f"{where}.{name}", "no --changelogs", expected, "add --changelogs, or remove it")
        if not isinstance(entry, Mapping):
            expected = f"a mapping with some of {', '.join(_OPTIONS)}"
            yield Problem(f"{where}.{name}", f"{entry!r}", expected, "write it as an entry of a properties file")
            continue
        for option in entry:
            if option not in _OPTIONS:
                next_step = "put settings below config, those of this package below config.meta.reverse_etl"
                yield Problem(
                    f"{where}.{name}.{option}", "no such property", f"one of {', '.join(_OPTIONS)}", next_step
                )


def merged(
    generated: Mapping[str, Any], added: Mapping[str, Any], where: str, problems: list[Problem]
) -> dict[str, Any]:
    """Both, deeply; where they contradict each other is a problem, but in the description."""
    result = dict(generated)
    for name, value in added.items():
        own, place = generated.get(name, value), f"{where}.{name}"
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            result[name] = merged(own, value, place, problems)
            continue
        if own != value and name != "description":
            expected = f"nothing, or what the chain needs: {own!r}"
            problems.append(Problem(place, f"{value!r}", expected, "remove it"))
        result[name] = value
    return result
