"""Views of the changes between two snapshots, whose ids begin again after a reset of the changelog."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

KEYED: dict[str, dict[str, Any]] = {
    "changes": {},
    "changes_side_by_side": {"key": "id"},
    "net_changes": {"key": "id"},
    "signed_changes": {"key": "id"},
}


@pytest.mark.parametrize("view", KEYED)
def test_a_range_that_ends_before_it_begins_is_refused_by_each_view(view: str) -> None:
    refused = (
        "from_snapshot: found 41, later than to_snapshot 9; expected the older one first. "
        "Next: exchange them, or, where the changelog was reset, build the model with --full-refresh"
    )
    for ids in [(41, 9), ("41", "9")]:
        with pytest.raises(CompilationError, match=refused):
            getattr(_in("run"), view)("people", *ids, **KEYED[view])


@pytest.mark.parametrize("command", ["compile", "generate"])
def test_a_range_up_to_a_changelog_that_is_not_built_compiles(command: str) -> None:
    """Whose newest snapshot is 0 there, also of one that dbt does not list."""
    assert "_snapshot_id > 41" in _in(command).changes("people", 41, 0)
    with pytest.raises(CompilationError, match="later than to_snapshot 9"):
        _in(command).changes("people", 41, 9)


@pytest.mark.parametrize("view", KEYED)
def test_an_empty_range_is_a_view_of_no_changes_and_nothing_is_refused_while_dbt_parses(view: str) -> None:
    assert "_snapshot_id > 41 and _snapshot_id <= 41" in getattr(Macros(), view)("people", 41, 41, **KEYED[view])
    assert getattr(_in("run", execute=False), view)("people", 41, 9, **KEYED[view])


def _in(command: str, **given: object) -> Macros:
    return Macros(flags=SimpleNamespace(WHICH=command), **given)
