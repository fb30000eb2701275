"""What a query reads, by Spark's plan: None where some function in it is not known to give the same rows each time."""

from __future__ import annotations

import pytest

from tests.support.dbt.macros import Macros


def plan(call: str) -> str:
    tree = f"Project [id#1, {call} AS name#2]\n+- SubqueryAlias c.s.a\n   +- Relation c.s.a[id#1,x#3] parquet\n"
    parts = "".join(
        f"\n== {kind} Plan ==\n{top}{tree}"
        for kind, top in (("Analyzed Logical", "id: int, name: string\n"), ("Optimized Logical", ""), ("Physical", ""))
    )
    return f"== Parsed Logical Plan ==\n'Project{parts}"


@pytest.mark.parametrize("call", ["upper(x#3)", "concat(upper(x#3), cast(id#1 as string))"])
def test_functions_that_give_the_same_each_time_are_known(call: str) -> None:
    read = Macros(lambda _: [{"plan": plan(call)}])._read_by("select 1")
    assert read["tables"] == ["`c`.`s`.`a`"]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    "call",
    ["c.s.upper(x#3)", "c.`s t`.upper(x#3)", "upper(c.s.trim(x#3))", "current_user()", "input_file_name()", "e()"],
)
def test_neither_is_a_users_function_with_the_name_of_a_steady_one_nor_what_depends_on_the_user_or_a_file(
    call: str,
) -> None:
    assert Macros(lambda _: [{"plan": plan(call)}])._read_by("select 1") is None
