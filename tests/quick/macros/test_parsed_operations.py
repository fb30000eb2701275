"""An operation that a hook of a project calls: it does nothing while dbt parses the project."""

from __future__ import annotations

import re

import pytest

from tests.support.dbt.macros import OPERATIONS, Macros


def test_enough_of_them_are_found() -> None:
    assert {"adopt", "forget", "import_history", "maintain", "prune", "rollback"} <= OPERATIONS.keys()


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_hook_that_calls_an_operation_does_not_stop_dbt_from_parsing_the_project(operation: str) -> None:
    found = re.search(rf"macro {operation}\(\s*([^)]*?)\s*\)", OPERATIONS[operation].read_text(encoding="utf-8"))
    assert found
    needed = [name.strip() for name in found[1].split(",") if "=" not in name]
    macros = Macros(execute=False)  # which has no graph and no adapter
    assert getattr(macros, operation)(**dict.fromkeys(needed, "people")) == ""
    assert macros.run == []
