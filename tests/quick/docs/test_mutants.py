"""Each fault of `make mutants` can be planted, and the tests that are to notice it are there."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from tests.support import ROOT


@pytest.fixture(scope="module")
def mutants() -> list[dict[str, str]]:
    found: list[dict[str, str]] = yaml.load(text("tests/mutants.yml"), yaml.CSafeLoader)
    return found


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def names_in(file: str) -> set[str]:
    """As pytest names them: `test_x`, `TestX`, `TestX::test_y`; a class may also be assigned."""
    names: set[str] = set()
    for node in ast.parse(text(file)).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inside = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            names |= {node.name, *(f"{node.name}::{name}" for name in inside)}
        elif isinstance(node, ast.Assign):
            names |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return names


def wrong_with(mutant: dict[str, str]) -> Iterator[str]:
    if mutant.keys() != {"name", "file", "old", "new", "tests"}:
        yield f"it has {', '.join(mutant)}"
        return
    if mutant["old"] == mutant["new"]:
        yield "it changes nothing"
    places = text(mutant["file"]).count(mutant["old"])
    if places != 1:
        yield f"{mutant['file']} has {places} places for it"
    if not mutant["tests"].split():
        yield "no test is to notice it"
    for test in mutant["tests"].split():
        path, _, name = test.partition("::")
        if path.startswith("tests/full/"):
            yield f"{test} is no part of `make test`"
        elif not (ROOT / path).is_file() or (name and name.partition("[")[0] not in names_in(path)):
            yield f"{test} is not there"


def test_each_mutant_has_a_name_of_its_own(mutants: list[dict[str, str]]) -> None:
    assert not [name for name, count in Counter(one["name"] for one in mutants).items() if count > 1]


def test_each_mutant_can_be_planted_in_one_place_and_its_tests_are_there(mutants: list[dict[str, str]]) -> None:
    assert not [f"{one.get('name')}: {wrong}" for one in mutants for wrong in wrong_with(one)]
