"""Operations in `on-run-end`, which also runs in commands that capture nothing: they do nothing there, with a line, and fail no command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

THINGS = {
    "unique_id": "model.shop.things", "name": "things", "package_name": "shop", "resource_type": "model",
    "database": None, "schema": "shop", "alias": "things", "depends_on": {"nodes": []},
    "config": {"materialized": "changelog", "unique_key": "id", "meta": {"reverse_etl": {"publish": "live"}}},
}  # fmt: skip
HEAD = {"snapshot_id": 3, "columns": [], "key_columns": ["id"], "frozen": False, "since_base": 2}
CALLS: dict[str, dict[str, Any]] = {"prune": {"keep": 1}, "checkpoint": {}, "maintain": {}}


def macros(command: str, *, head: Any = None, exists: bool = False, **args: Any) -> Any:
    """Of a project whose changelog has this head, or no snapshot, or no table."""
    relation = SimpleNamespace(type="table") if exists else None
    made: Any = Macros(
        graph=SimpleNamespace(nodes={THINGS["unique_id"]: THINGS}),
        adapter=SimpleNamespace(get_relation=lambda **_: relation),
        flags=SimpleNamespace(WHICH=command, EMPTY=args.get("empty", False)),
        invocation_args_dict=args,
        invocation_id="1",
    )
    made._macros["_found"] = lambda _: {"target": relation, "present": [], "head": head}
    return made


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("command", ["seed", "run", "test", "build"])
def test_in_a_new_schema_an_operation_of_a_hook_does_nothing_and_fails_no_command(operation: str, command: str) -> None:
    made = macros(command)
    assert getattr(made, operation)("things", **CALLS[operation]) == ""
    missing = "table" if operation == "maintain" else "snapshot"
    assert made.logged == [f"{operation} things: nothing done, because there is no {missing} yet"]
    assert made.run == []


@pytest.mark.parametrize("operation", CALLS)
def test_what_a_user_runs_is_refused_where_there_is_nothing_to_work_on(operation: str) -> None:
    with pytest.raises(CompilationError, match=f"{operation} things: found no (snapshot|table); expected"):
        getattr(macros("run-operation"), operation)("things", **CALLS[operation])


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("args", [{"empty": True}, {"sample": "1 day"}])
def test_a_check_with_a_part_of_the_rows_leaves_history_and_files_as_they_are(
    operation: str, args: dict[str, Any]
) -> None:
    made = macros("run", head=HEAD, exists=True, **args)
    getattr(made, operation)("things", **CALLS[operation])
    assert made.logged == [f"{operation} things: nothing done, because of --empty or --sample"]
    assert made.run == []


def test_tests_that_passed_over_a_changelog_without_a_snapshot_publish_nothing_and_fail_no_command() -> None:
    made = macros("build", exists=True)
    made.publish([{"node": THINGS, "status": "success", "adapter_response": {}}])
    assert made.logged == ["publish things: nothing done, because there is no snapshot yet"]


def test_an_operation_that_no_hook_is_for_is_refused_there_too() -> None:
    with pytest.raises(CompilationError, match="savepoint things: found no snapshot"):
        macros("run").savepoint("things", "before")
