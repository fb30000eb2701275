"""Which column marks deletions in the history that `import_history` reads."""

from __future__ import annotations

import pytest

from tests.support.dbt.macros import Macros

TIMES = ["dbt_valid_from", "dbt_valid_to"]


def problems(of_type: str, times: list[str]) -> list[str]:
    """What is wrong with the columns of a relation whose `gone` is of this type."""
    types = {**dict.fromkeys(times, "timestamp"), "gone": of_type, "id": "int"}
    changelog = {"key": ["id"], "columns": [{"name": "id", "type": "int"}]}
    return Macros()._import_column_problems(changelog, types, times, "gone", None)  # type: ignore[no-any-return]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("of_type", ["int", "timestamp", "decimal(1,0)"])
def test_a_mark_of_deletions_that_no_value_would_set_is_refused(of_type: str) -> None:
    (problem,) = problems(of_type, TIMES)
    assert problem.startswith(f"column gone of type {of_type}; expected boolean, or the texts 'true' and 'false'")


@pytest.mark.parametrize("of_type", ["boolean", "string", "varchar(5)"])
def test_a_mark_of_deletions_may_be_a_boolean_or_a_text(of_type: str) -> None:
    assert problems(of_type, TIMES) == []


def test_dated_copies_mark_no_deletions() -> None:
    assert problems("int", ["day"]) == []
