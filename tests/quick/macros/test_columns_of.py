"""The columns of a relation: types that DESCRIBE cuts off are read whole, without a setting, which a SQL warehouse would refuse."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros

WHOLE = f"struct<{','.join(f'f{n}:bigint' for n in range(60))}>"
CUT = f"struct<{','.join(f'f{n}:bigint' for n in range(24))},... 36 more fields>"
TAIL = [{"col_name": "# Partitioning", "data_type": ""}, {"col_name": "Part 0", "data_type": "day"}]


def columns_of(*described: tuple[str, str]) -> tuple[list[dict[str, str]], list[str]]:
    """The columns, and what was asked."""

    def answer(sql: str) -> list[Mapping[str, Any]]:
        if sql == "describe table shop.people":
            return [{"col_name": name, "data_type": kind} for name, kind in described] + TAIL
        return [{f"type_{n}": kind.replace(CUT, WHOLE) for n, (_, kind) in enumerate(described) if "more" in kind}]

    macros = Macros(answer)
    return macros._columns_of("shop.people"), macros.run


@pytest.mark.guarantee("Capture")
def test_a_struct_of_many_fields_has_its_whole_type_and_no_row_and_no_setting_is_needed() -> None:
    columns, run = columns_of(("id", "bigint"), ("od`d", CUT), ("name", "varchar(20)"), ("all", f"array<{CUT}>"))
    assert [column["type"] for column in columns] == ["bigint", WHOLE, "varchar(20)", f"array<{WHOLE}>"]
    assert run[1:] == [
        "select typeof(whole.`od``d`) as type_1, typeof(whole.`all`) as type_2 "
        "from (values (1)) as one left join shop.people as whole on false"
    ]


def test_types_that_describe_shows_whole_are_asked_for_once() -> None:
    columns, run = columns_of(("id", "bigint"), ("more fields", "string"))
    assert columns == [{"name": "id", "type": "bigint"}, {"name": "more fields", "type": "string"}]
    assert run == ["describe table shop.people"]


def test_a_diff_compares_columns_behind_one_whose_name_begins_with_a_hash() -> None:
    described = [{"col_name": name, "data_type": "int"} for name in ("id", "# of orders", "spent")]
    macros = Macros(lambda _: described + TAIL, load_cached_relation=lambda one: one)
    people = SimpleNamespace(identifier="people", schema="shop")
    assert macros._except_columns(people, None) == "`id`, `# of orders`, `spent`"
