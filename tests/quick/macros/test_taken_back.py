"""A changelog that was taken back: what the next capture and `undo_restore` say, by the table's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

CAPTURED = [("WRITE", f"snapshot {number} of capture u{number}") for number in (1, 2, 3)]


class Target(SimpleNamespace):
    def __str__(self) -> str:
        return self.identifier


TARGET = Target(identifier="people", database=None, schema=None)


def history(*after: str) -> list[dict[str, Any]]:
    """The newest first: three captures, and what was done after them."""
    commits = [("CREATE TABLE", None), *CAPTURED, *((operation, None) for operation in after)]
    rows = [{"version": n, "operation": word, "userMetadata": said} for n, (word, said) in enumerate(commits)]
    return rows[::-1]


def of(commits: list[dict[str, Any]], kept: int) -> Any:
    """The macros over a changelog with these commits whose newest snapshot is `kept`."""

    def answer(query: str) -> Sequence[Mapping[str, Any]]:
        if query.startswith("describe history"):
            return commits
        return [{"kept": kept}] if "max(_snapshot_id)" in query else []

    macros = Macros(answer, graph=SimpleNamespace(nodes={}), adapter=SimpleNamespace(get_relation=lambda **_: TARGET))
    node = SimpleNamespace(database=None, schema=None, alias="people")
    macros._macros.update(_commit_rows=lambda *_: "select 1", _header=lambda *_: None, _changelog_node=lambda _: node)
    return macros


def refused(commits: list[dict[str, Any]], kept: int) -> str:
    """What a capture says whose insert Delta skipped."""
    header = SimpleNamespace(snapshot_id=kept + 1, capture_uuid="mine", base=kept)
    with pytest.raises(CompilationError) as error:
        of(commits, kept)._commit_staged(TARGET, None, None, header, None)
    return str(error.value)


@pytest.mark.parametrize("operation", ["RESTORE", "TRUNCATE", "DELETE", "CREATE OR REPLACE TABLE AS SELECT", "CLONE"])
def test_what_took_a_changelog_back_is_named_and_undone(operation: str) -> None:
    said = refused(history("MERGE", operation, "OPTIMIZE"), kept=1)
    assert f"found {operation} (version 5 of the table) that took it back to snapshot 1, while snapshot 3" in said
    assert "undo_restore --args '{model: people}'" in said
    assert "dbt run-operation reset --args '{model: people}'" in said
    undone = of(history("MERGE", operation, "OPTIMIZE"), kept=1)
    undone.undo_restore("people")
    assert undone.run[-1] == "restore table people to version as of 4", "what prune removed before stays removed"


def test_of_several_operations_that_took_it_back_the_first_is_undone() -> None:
    undone = of(history("TRUNCATE", "RESTORE"), kept=0)
    undone.undo_restore("people")
    assert undone.run[-1] == "restore table people to version as of 3"


def test_a_changelog_that_lost_nothing_is_left_by_undo_restore() -> None:
    macros = of(history("DELETE"), kept=3)
    macros.undo_restore("people")
    assert not [statement for statement in macros.run if statement.startswith("restore")]
    assert "nothing to do" in macros.logged[0]


def test_a_capture_that_another_run_won_is_to_be_run_again_and_one_that_never_wins_to_be_reset() -> None:
    said = refused(history(), kept=3)
    assert "another run captured snapshot 4 meanwhile" in said
    assert "run it again; if this repeats, dbt run-operation reset --args '{model: people}'" in said


def test_what_another_run_captures_during_the_look_is_not_lost() -> None:
    macros = of(history(), kept=3)
    assert macros._lost_snapshots(TARGET) is None
    assert [statement.split()[0] for statement in macros.run] == ["describe", "select"]
