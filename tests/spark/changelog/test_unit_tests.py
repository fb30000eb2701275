"""dbt's unit tests of changelogs: their rows in place of every input, and what a failed one keeps from a destination."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dbt.project import Project

WIDE = {
    "root": "orders",
    "nodes": [
        {"name": "orders", "table": "orders_changelog", "key": "id", "columns": ["customer_id"]},
        {
            "name": "customer", "table": "customers_changelog", "key": "id", "join_on": {"customer_id": "id"},
            "columns": {"name": "customer"}, "reverse_index": "orders_by_customer",
        },
        {
            "name": "lines", "table": "app.lines", "cardinality": "many", "join_on": {"id": "order_id"},
            "aggregates": {"line_count": "count(*)", "amount": "sum(amount)"},
        },
    ],
}  # fmt: skip
FEED = {"strategy": "feed", "operation": "op", "sequence": "number"}
EVENTS = {"strategy": "feed", "operation": "_op", "sequence": "_sequence"}
MESSAGE = json.dumps({"op": "c", "after": {"id": 1}, "source": {"connector": "postgresql", "lsn": 7, "txId": 7}})


def unit_test(name: str, model: str, given: dict[str, str], expected: list[dict[str, Any]], **more: Any) -> Any:
    inputs = [{"input": table, "format": "sql", "rows": query} for table, query in given.items()]
    return {"name": name, "model": model, "given": inputs, "expect": {"rows": expected}, **more}


WIDE_ROWS = {
    "ref('orders_changelog')": "select 1 as id, 7 as customer_id union all select 2, 8",
    "ref('customers_changelog')": "select 7 as id, 'ADA' as name",
    "source('app', 'lines')": "select 1 as order_id, 2.5 as amount union all select 1, 1.5",
}
UNIT_TESTS = [
    unit_test("upper", "customers_changelog", {"ref('customers')": "select 7 as id, 'Ada' as name"}, [{"id": 7, "name": "ADA"}]),
    unit_test(
        "joined", "orders_wide", WIDE_ROWS,
        [
            {"id": 1, "customer_id": 7, "customer": "ADA", "line_count": 2, "amount": 4.0},
            {"id": 2, "customer_id": 8, "customer": None, "line_count": None, "amount": None},
        ],
    ),
    unit_test("in_yaml", "wide_in_yaml", {"ref('orders_changelog')": WIDE_ROWS["ref('orders_changelog')"]}, []),
    unit_test(
        "read_in_its_place", "fed_changelog", {}, [{"id": 1, "op": "u", "number": 3}],
        overrides={"macros": {"reverse_etl.new_files": "(select 1 as id, 'u' as op, 3 as number)"}},
    ),
    unit_test("outside", "fed_changelog", {}, []),
    unit_test(
        "event", "events_changelog",
        {"ref('messages')": f"select '{{\"id\": 1}}' as key, '{MESSAGE}' as value, 0 as _partition, 0L as _offset"},
        [{"id": 1, "_op": "c"}],
    ),
]  # fmt: skip


@pytest.fixture
def shop(project: Project) -> Project:
    project.table("lines", "select 1 as order_id, 2.5 as amount")
    project.properties(
        "sources", {"sources": [{"name": "app", "schema": project.schema, "tables": [{"name": "lines"}]}]}
    )
    project.model("customers", "select 7 as id, 'Ada' as name", {"materialized": "table"})
    project.changelog("customers_changelog", "select id, upper(name) as name from {{ ref('customers') }}")
    project.changelog("orders_changelog", "select 1 as id, 7 as customer_id")
    index = {"materialized": "incremental", "incremental_strategy": "merge", "unique_key": ["customer_id", "id"]}
    project.model(
        "orders_by_customer", "{{ reverse_etl.reverse_index(ref('orders_changelog'), 'customer_id') }}", index
    )
    project.changelog("orders_wide", f"{{{{ reverse_etl.wide_table({WIDE}) }}}}", settings={"wide_table": WIDE})
    own = {"root": "orders", "nodes": WIDE["nodes"][:1]}
    of_yaml = "-- depends_on: {{ ref('orders_changelog') }}\n{{ reverse_etl.wide_table() }}"
    project.changelog("wide_in_yaml", of_yaml, settings={"wide_table": own})
    (project.folder / "landing").mkdir()
    (project.folder / "landing" / "1.csv").write_text("id,op,number\n5,u,1\n")
    files = f"reverse_etl.new_files('{project.folder / 'landing'}', schema='id int, op string, number int')"
    project.changelog("fed_changelog", f"select id, op, number from {{{{ {files} }}}}", settings={"capture": FEED})
    message = f"select '{{\"id\": 1}}' as key, '{MESSAGE}' as value, 0 as _partition, 0L as _offset"
    project.model("messages", message, {"materialized": "table"})
    events = "reverse_etl.debezium(ref('messages'), {'id': 'bigint'}, ['id'])"
    project.changelog(
        "events_changelog", f"select id, _op, _sequence from {{{{ {events} }}}}", settings={"capture": EVENTS}
    )
    project.properties("unit_tests", {"unit_tests": UNIT_TESTS})
    project.sync("crm_orders", "orders_wide", mode="mirror", object="orders")
    project.sync("crm_customers", "customers_changelog", mode="mirror", object="customers")
    return project


@pytest.mark.guarantee("Capture")
def test_unit_tests_give_rows_in_place_of_what_a_wide_table_joins_and_a_feed_reads(shop: Project) -> None:
    told = shop.dbt("test", "--select", "test_type:unit")
    passed = {"upper", "joined", "read_in_its_place", "event"}
    assert {name for name, status in told.statuses.items() if status == "pass"} == passed, told.text
    assert "found no wide table in the SQL of its model; expected one that is passed" in told.messages["in_yaml"]
    outside = "found new_files(), which reads from outside of dbt; expected rows in its place"
    assert outside in told.messages["outside"]


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_a_unit_test_that_fails_keeps_its_changelog_and_those_above_from_capture_and_push(shop: Project) -> None:
    for name in ("wide_in_yaml", "fed_changelog", "events_changelog"):
        (shop.folder / "models" / f"{name}.sql").write_text("{{ config(enabled=false) }} select 1 as id")
    kept = [test for test in UNIT_TESTS if test["name"] in ("upper", "joined")]
    wrong = [kept[0] | {"expect": {"rows": [{"id": 7, "name": "Ada"}]}}, kept[1]]
    shop.properties("unit_tests", {"unit_tests": wrong})
    built = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert (built.success, built.statuses["upper"], built.statuses["customers_changelog"]) == (False, "fail", "skipped")
    assert not built.pushed(), built.text

    shop.properties("unit_tests", {"unit_tests": kept})
    again = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert again.success, again.text
    assert [again.sync(f"crm_{name}") for name in ("orders", "customers")] == ["+1 ~0 -0", "+1 ~0 -0"]
    assert shop.crm("select id, customer, line_count, amount from orders") == [(1, "ADA", 1, "2.5")]
