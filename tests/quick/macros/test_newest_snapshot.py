"""What `newest_snapshot` asks for a number: the whole table also with --empty, and nothing where a command only compiles."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dbt.macros import Macros

if TYPE_CHECKING:
    from dbt.adapters.base.relation import BaseRelation


def macros(command: str, *, exists: bool = True, **context: Any) -> Any:
    return Macros(
        lambda _: [{"newest": 41}],
        flags=SimpleNamespace(WHICH=command),
        load_cached_relation=lambda one: one if exists else None,
        **context,
    )


def relation(limit: int | None = None) -> BaseRelation:
    """What `ref` gives; with --empty, dbt gives it a limit of 0."""
    from dbt.adapters.base.relation import BaseRelation

    return BaseRelation.create(schema="shop", identifier="people", limit=limit)


@pytest.mark.parametrize(
    "read", [relation, lambda: relation(limit=0), lambda: "shop.people"], ids=["whole", "empty", "text"]
)
@pytest.mark.parametrize("command", ["run", "compile"])
def test_it_is_the_number_of_the_whole_table_also_with_empty(read: Callable[[], object], command: str) -> None:
    made = macros(command)
    assert made.newest_snapshot(read()) == 41
    assert [sql.replace('"', "") for sql in made.run] == ["select coalesce(max(_snapshot_id), 0) from shop.people"]


@pytest.mark.parametrize("command", ["compile", "generate"])
def test_a_command_that_only_compiles_takes_0_where_there_is_no_table(command: str) -> None:
    made = macros(command, exists=False)
    assert made.newest_snapshot(relation()) == 0
    assert made.run == []


def test_a_run_asks_also_for_what_dbt_does_not_list() -> None:
    assert macros("run", exists=False).newest_snapshot(relation()) == 41
    assert macros("run", execute=False).newest_snapshot(relation()) == 0
