"""Operations with a manifest that dbt made for another target or profile, as its partial parsing may keep one: its tables are not theirs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import OPERATIONS, CompilationError, Macros

LEDGER = "model.reverse_etl.reverse_etl_ledger"
PEOPLE = {
    "unique_id": "model.shop.people", "name": "people", "package_name": "shop", "resource_type": "model",
    "database": None, "schema": "prod", "alias": "people", "depends_on": {"nodes": []},
    "config": {"materialized": "changelog", "meta": {"reverse_etl": {"publish": "live"}}},
}  # fmt: skip


def macros(made_for: Any, **context: Any) -> Any:
    """Of a command at the target `dev` of the profile `shop`."""
    ledger = {"unique_id": LEDGER, "name": "l", "resource_type": "model", "relation_name": "prod.ledger"}
    ledger["config"] = {"materialized": "ledger", "meta": {"reverse_etl_made_for": made_for} if made_for else None}
    return Macros(
        graph=SimpleNamespace(nodes={PEOPLE["unique_id"]: PEOPLE, LEDGER: ledger}, exposures={}),
        target=SimpleNamespace(type="spark", name="dev", profile_name="shop"),
        flags=SimpleNamespace(WHICH="run-operation", EMPTY=False),
        invocation_args_dict={},
        **context,
    )


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), "adopt a sync"])
def test_no_operation_touches_the_tables_of_another_target(operation: str) -> None:
    made = macros({"target": "prod", "profile": "shop"})  # without an adapter: nothing is even looked up
    name, _, of_sync = operation.partition(" a ")
    found = re.search(rf"macro {name}\(\s*([^)]*?)\s*\)", OPERATIONS[name].read_text(encoding="utf-8"))
    assert found
    needed = [one.strip() for one in found[1].split(",") if "=" not in one]
    given = {of_sync: "crm"} if of_sync else {"model": "people"} if name == "adopt" else dict.fromkeys(needed, "people")
    words = "found the tables of target prod, .*; expected those of dev, .* Nothing was changed. Next: .*--no-partial"
    with pytest.raises(CompilationError, match=words):
        getattr(made, name)(**given)
    assert made.run == []


@pytest.mark.guarantee("Capture")
def test_publish_shows_no_snapshot_of_another_target() -> None:
    node = SimpleNamespace(unique_id=PEOPLE["unique_id"], resource_type="model")
    results = [SimpleNamespace(node=node, status="success", adapter_response={})]
    with pytest.raises(CompilationError, match="found the tables of target prod"):
        macros({"target": "prod"}).publish(results)


def test_another_profile_with_the_same_target_is_refused_and_what_an_older_package_left_out_is_not() -> None:
    with pytest.raises(CompilationError, match=r"found the tables of profile lab, .* expected those of shop"):
        macros({"target": "dev", "profile": "lab"})._changelog_node("people")
    for made_for in ({"target": "dev", "profile": "shop"}, {"target": "dev"}, {"target": None}, {}, None, "a text"):
        assert macros(made_for)._changelog_node("people") == PEOPLE, made_for
