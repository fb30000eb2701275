"""Columns of a model whose names a view gives, too: refused with the way out, before Spark finds a name twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

PEOPLE = SimpleNamespace(identifier="people", schema="shop", event_time_filter=None)


class Relation:
    """What `ref` gives; Jinja takes no text for one."""

    identifier = schema = "facts"

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def macros(*names: str, exists: bool = True, **context: Any) -> Any:
    """Of a project whose tables have these columns, if they exist."""
    described = [{"col_name": name, "data_type": "string"} for name in names]
    return Macros(lambda _: described, load_cached_relation=lambda one: one if exists else None, **context)


@pytest.mark.parametrize("name", ["valid_from", "VALID_TO", "is_current", "valid_to_snapshot"])
def test_a_column_that_scd2_adds_is_refused_with_the_way_out(name: str) -> None:
    words = (
        f"reverse_etl.scd2: found a column {name.lower()} beside that of the view; expected columns with other names"
    )
    with pytest.raises(CompilationError, match=f"{words}. Next: leave it out with columns="):
        macros("id", name).scd2(PEOPLE, key="id")
    with pytest.raises(CompilationError, match=words):
        macros().scd2("(select 1)", key="id", columns=["id", name])
    assert "valid_from" in macros("id", name).scd2(PEOPLE, key="id", columns=["id"])


def test_columns_of_labels_are_taken_only_with_labels() -> None:
    assert macros("id", "valid_to_label").scd2(PEOPLE, key="id")
    with pytest.raises(CompilationError, match="a column valid_to_label"):
        macros("id", "valid_to_label").scd2(PEOPLE, key="id", labels=True)


def test_what_is_no_table_yet_or_a_sub_query_is_not_looked_at() -> None:
    for relation, made in [(PEOPLE, macros("valid_from", exists=False)), ("(select 1)", macros("valid_from"))]:
        assert made.scd2(relation, key="id")
        assert made.run == []
    parsing = macros("valid_from", execute=False)
    assert parsing.scd2(PEOPLE, key="id")
    assert parsing.run == []


def test_a_column_that_scd3_adds_is_refused() -> None:
    assert macros("id", "plan", "plan_since").scd3(PEOPLE, "id", key="id")
    for name in ("plan_since", "previous_plan"):
        with pytest.raises(CompilationError, match=f"scd3: found a column {name} beside"):
            macros("id", "plan", name).scd3(PEOPLE, "plan", key="id")


def test_a_column_of_facts_that_the_version_has_is_refused() -> None:
    made = macros("id", "at", "plan", "valid_to")
    join = {"facts": PEOPLE, "dimension": "(select 1)", "on": "id", "at": "at"}
    for columns, name in [(None, "valid_to"), (["plan"], "plan"), ({"size": "Plan"}, "plan")]:
        with pytest.raises(CompilationError, match=f"found a column {name} beside .* Next: pass columns="):
            made.point_in_time_join(**join, columns=columns)
    assert made.point_in_time_join(**join, columns={"plan": "plan_then"})


def test_except_diff_takes_the_columns_of_what_is_listed_or_what_the_adapter_finds_and_refuses_what_is_not_there() -> (
    None
):
    facts, empty = Relation("facts"), Relation("(select * from facts where false limit 0)")
    for relation, listed, found in [(empty, facts, []), (facts, None, ["id"])]:
        made = Macros(
            lambda _: [{"col_name": "id", "data_type": "int"}],
            load_cached_relation=lambda _, listed=listed: listed,
            adapter=SimpleNamespace(get_columns_in_relation=lambda _, found=found: found),
        )
        assert f"select `id` from {relation} except" in made.except_diff(relation, "b", key="id")
        assert made.run == ["describe table facts"]
    adapter = SimpleNamespace(get_columns_in_relation=lambda _: [])
    nothing = Macros(load_cached_relation=lambda _: None, adapter=adapter)
    with pytest.raises(
        CompilationError, match=r"found no columns of facts in the catalog; expected a table or a view. N"
    ):
        nothing.except_diff(facts, "b", key="id")
    assert nothing.run == []


@pytest.mark.parametrize(
    "name", ["captured_at", "Snapshot_ID", "delivered_from", "delivered_to", "is_held", "in_doubt"]
)
def test_a_column_that_delivered_adds_is_refused_and_left_out_with_columns(name: str) -> None:
    context = {"ref": lambda *_: "ledger", "load_relation": lambda _: None}
    with pytest.raises(
        CompilationError, match=f"delivered: found a column {name.lower()} beside .* Next: leave it out"
    ):
        macros("id", name, **context).delivered(PEOPLE, "crm_people", key="id")
    chosen = macros("id", name, **context).delivered(PEOPLE, "crm_people", key="id", columns=["id", "plan"])
    assert "select v.`id`, v.`plan`,\n    i.snapshot_id" in chosen
    every = macros("id", **context).delivered(PEOPLE, "crm_people", key="id")
    assert "select v.* except (_change, _snapshot_id, _captured_at, _row_hash, _header, _reverse_etl_next)," in every
