"""Each fault of `make mutants` can be planted, and the tests that are to notice it are there."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT

MUTANTS: list[dict[str, str]] = yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text(encoding="utf-8"))


def names_in(file: Path) -> set[str]:
    """As pytest names them: `test_x`, `TestX`, `TestX::test_y`; a class may also be assigned."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inside = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            names |= {node.name, *(f"{node.name}::{name}" for name in inside)}
        elif isinstance(node, ast.Assign):
            names |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return names


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(one["name"] for one in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one["name"])
def test_a_mutant_can_be_planted_in_one_place_and_its_tests_are_there(mutant: dict[str, str]) -> None:
    assert mutant.keys() == {"name", "file", "old", "new", "tests"}
    assert mutant["old"] != mutant["new"]
    assert (ROOT / mutant["file"]).read_text(encoding="utf-8").count(mutant["old"]) == 1
    assert mutant["tests"].split()
    for test in mutant["tests"].split():
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert not path.startswith("tests/full/"), f"{test} is no part of `make test`"
        assert not name or name.partition("[")[0] in names_in(ROOT / path), test
