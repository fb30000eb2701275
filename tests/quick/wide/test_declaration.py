"""The declaration of a wide table: what it becomes, and everything that is refused in it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dbt_reverse_etl.base.sql import render, value_of
from tests.support.wide.declarations import BILLING, CUSTOMERS, NODES, ORDERS, REGION

RELATIONS = {"customers": "shop.customers", "billing": "app.billing", "region": "shop.regions"} | {
    "country": "shop.countries",
    "orders": "shop.orders",
}

SQL = """\
with

`customers` as (
    select * from shop.customers
),

`billing` as (
    select * from app.billing
),

`orders` as (
    select
        `customer_id`,
        count(*) as `order_count`
    from shop.orders
    where `customer_id` is not null
    group by `customer_id`
),

`region` as (
    select * from shop.regions
    where not gone
),

`country` as (
    select * from shop.countries
)

select
    coalesce(`customers`.`id`, `billing`.`customer_id`) as `id`,
    `customers`.`name`,
    `customers`.`region_id`,
    `billing`.`plan`,
    `orders`.`order_count`,
    `region`.`name` as `region_name`,
    `country`.`name` as `country`
from `customers`
full join `billing`
    on `billing`.`customer_id` = `customers`.`id`
left join `orders`
    on `orders`.`customer_id` = coalesce(`customers`.`id`, `billing`.`customer_id`)
left join `region`
    on `region`.`id` = `customers`.`region_id`
inner join `country`
    on `country`.`code` = `region`.`country`"""


def plan(*nodes: Any, **rest: Any) -> dict[str, Any]:
    found: dict[str, Any] = value_of("_wide_plan", {"root": "customers", "nodes": list(nodes), **rest})
    return found


@pytest.mark.guarantee("Capture")
def test_full_joins_come_first_then_each_node_after_its_parent_and_no_join_multiplies_rows() -> None:
    found = plan(*NODES)
    assert found["problems"] == []
    assert render("_wide_query", found, RELATIONS) == SQL


@pytest.mark.guarantee("Capture")
def test_the_nodes_in_any_order_give_the_same_sql() -> None:
    for nodes in itertools.permutations(NODES):
        assert render("_wide_query", plan(*nodes), RELATIONS) == SQL


def test_of_joins_whose_parent_stands_the_smallest_priority_comes_first_then_the_name() -> None:
    nodes = [REGION | {"name": name, "priority": 0 if name == "c" else 1} for name in "bac"]
    assert [node["name"] for node in plan(CUSTOMERS, *nodes)["joined"]] == ["c", "a", "b"]


def test_a_dimension_under_a_key_is_joined_to_the_key_of_whichever_table_has_the_row() -> None:
    found = plan(CUSTOMERS, BILLING, REGION | {"join_on": {"id": "id"}})
    assert "coalesce(`customers`.`id`, `billing`.`customer_id`)" in render("_wide_query", found, RELATIONS)


def test_columns_of_a_key_join_in_any_case_of_their_letters() -> None:
    by_plan = {
        "name": "plan",
        "table": "plans",
        "parent": "billing",
        "cardinality": "many",
        "aggregates": {"n": "count(*)"},
    }

    def spelled(key: str, billed: str, region: str) -> dict[str, Any]:
        return plan(
            CUSTOMERS,
            BILLING | {"join_on": {key: billed}},
            REGION | {"join_on": {"region_id": region}},
            ORDERS | {"join_on": {key: "customer_id"}, "aggregates": {"orders": "count(*)"}},
            by_plan | {"join_on": {billed: "customer_id"}},
        )

    found = spelled("ID", "Customer_ID", "Id")
    assert found == spelled("id", "customer_id", "id")
    assert found["problems"] == []


@pytest.mark.guarantee("Capture")
def test_everything_that_is_wrong_is_said_at_once() -> None:
    problems = plan(
        CUSTOMERS | {"cardinality": "many"},
        {"name": "a", "table": "a", "key": "id", "parent": "b", "join_on": "id"},
        {"name": "b", "table": "b", "key": ["x", "y"], "parent": "a", "join_on": "x", "join": "outer"},
        {"name": "c", "key": "id", "parent": "nowhere", True: {"id": "id"}},
        {"name": "d", "table": "d", "key": "id", "join_on": "id", "columns": ["name", 7], "priority": "high"},
        {"name": "e", "table": "e", "cardinality": "many", "join_on": {"id": "of"}, "aggregates": {"of": "max(x)"}},
        {"name": "f", "table": "f", "key": "id", "parent": "e", "join_on": {"of": "id"}, "join": "full"},
        {"name": "g", "table": "g", "cardinality": "many", "join_on": {"id": "of"}, "columns": ["x"]},
        {"name": "D", "table": "d"},
        {"name": "i", "table": "i", "key": "id", "join_on": {"id": "id"}, "reverse_index": "by_id"},
        {"name": "j", "table": "j", "cardinality": "many", "join_on": ["id", False], "aggregates": {"m": "count(*)"}},
        {"name": "k", "table": "k", "key": ["id", 2024], "join_on": "id"},
        "nothing",
        more=1,
    )["problems"]
    said = "\n".join(problems)
    for words in [
        "wide_table.more: no option",
        "wide_table.nodes.customers.cardinality: no option of the root",
        "found the cycle a -> b -> a",
        "wide_table.nodes.b.join: found 'outer'; expected left or inner or full",
        "wide_table.nodes.b.join_on: found the columns x of b; expected its key (x, y), or a row may meet several",
        "wide_table.nodes.c.table: not found",
        "wide_table.nodes.c.True: no option of a node",
        "write join_on: YAML reads on as true",
        "wide_table.nodes.c.parent: found 'nowhere', so that nothing leads from the root",
        "wide_table.nodes.c.join_on: not found; expected {column of nowhere: column of c}",
        "wide_table.nodes.d.columns: found 7",
        "wide_table.nodes.d.priority: found 'high'",
        "wide_table.nodes.e.aggregates: found the name of, by which the rows are grouped",
        "wide_table.nodes.f.parent: found e, of cardinality many",
        "wide_table.nodes.f.join: found full, with e on of; expected a full join with the key of the root",
        "wide_table.nodes.g.columns: no option of cardinality many",
        "wide_table.nodes.g.aggregates: not found",
        "wide_table.nodes: found D twice",
        "wide_table.nodes.i.reverse_index: found a join by the key of the root (id)",
        "wide_table.nodes.j.join_on: found 'False', which is no text; expected names of columns; put it in quotes",
        "wide_table.nodes.k.key: found '2024', which is no text",
        "number 13 is no node with a name",
        "found the column name 2 times, from customers, d",
    ]:
        assert words in said, words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "wide_table: found no mapping"),
        ({"root": "x"}, "wide_table.nodes: found none"),
        ({"root": "x", "nodes": [CUSTOMERS]}, "wide_table.root: found 'x'; expected the name of a node (customers)"),
        ({"root": "customers", "nodes": [CUSTOMERS | {"key": None}]}, "wide_table.nodes.customers.key: not found"),
    ],
)
def test_what_is_no_declaration_is_refused(given: Any, words: str) -> None:
    assert words in "\n".join(value_of("_wide_plan", given)["problems"])


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("at > current_date - 7", ["current_date"]),
        ("id in (SELECT id FROM other)", ["select"]),
        ("x < rand() and y = now()", ["rand", "now"]),
        ("status <> 'over' and selected and overall > 1", []),
        (r"note <> 'it\'s' and at > current_date", ["current_date"]),
        ("""note <> "O'Brien" and at > current_date""", ["current_date"]),
        (r"note <> r'\' and at > now()", ["now"]),
        ("at >= date'today' or at < date \"Tomorrow UTC\"", ["date'today'", 'date "tomorrow utc"']),
        ("at <= timestamp 'now'", ["timestamp 'now'"]),
        (
            "at > cast('today' as date) and at < to_date(' Now') and at < 'tomorrow'::date",
            ["'today'", "' now'", "'tomorrow'"],
        ),
        ("at > date '2026-01-01' and day <> 'not today' and day <> 'todays'", []),
        ("at = current_time() or at < getdate()", ["current_time", "getdate"]),
        ("name <> user() and x < uniform(0, 10) and y <> randstr(3)", ["user", "uniform", "randstr"]),
        ("id in (table other)", ["table"]),
        ("exists ( from other |> where id = 1)", ["(from"]),
        ("a is distinct from b and extract(year from at) > 1", []),
        ("x -- don't\n > now()", ["now"]),
        ("x /* don't, now */ > rand() -- now", ["rand"]),
        ("x /* a /* b */ don't */ > 1", ["/*"]),
        ("`over` > 1 and `user` = 'a `now`() b'", []),
        ("`now`() > at", ["now"]),
        ("_metadata.file_path > 'a' and input_file_block_start() > 0", ["_metadata", "input_file_block_start"]),
        ("input_file_block_length() > 0 and is_member('a')", ["input_file_block_length", "is_member"]),
        ("is_account_group_member('a') or a = current_catalog()", ["is_account_group_member", "current_catalog"]),
        ("a in (current_schema(), current_database())", ["current_schema", "current_database"]),
        ("at > session.day or at > System.Session . day", ["session.", "system.session ."]),
        ("a.session.x = 1 and my_session = 1 and session = 2 and `session`.x = 1", []),
    ],
)
def test_what_changes_without_a_change_of_its_rows_is_seen_in_the_declaration(where: str, found: list[str]) -> None:
    reasons = value_of("_wide_outside", plan(CUSTOMERS | {"where": where}))
    assert [reason.split(" uses ")[1].split(",")[0] for reason in reasons] == found


def test_the_reason_for_a_variable_names_the_backticks_that_a_column_called_session_needs() -> None:
    reasons = value_of("_wide_outside", plan(CUSTOMERS | {"where": "session.days > 5 and rand() > 0"}))
    assert reasons == [
        "wide_table.nodes.customers uses session., so that more changes than its rows; if it is a column, write it as `session`.",
        "wide_table.nodes.customers uses rand, so that more changes than its rows",
    ]


def test_keys_that_meet_by_a_cast_are_seen_where_one_is_text_and_the_other_is_not() -> None:
    found = plan(CUSTOMERS, BILLING, REGION, ORDERS | {"aggregates": {"n": "count(*)"}})

    def problems(customer: str, billing: str, order: str) -> list[str]:
        types = {
            "customers": [{"name": "ID", "type": customer}, {"name": "region_id", "type": "int"}],
            "billing": [{"name": "customer_id", "type": billing}],
            "orders": [{"name": "customer_id", "type": order}],
        }
        return list(value_of("_keys_by_cast", found, types))

    assert not problems("bigint", "int", "decimal(9,0)")
    assert not problems("string", "varchar(9)", "string")
    assert problems("string", "bigint", "date") == [
        "keys meet by a cast: customers.id is string, billing.customer_id is bigint",
        "keys meet by a cast: customers.id is string, orders.customer_id is date",
    ]
    assert len(problems("char(3)", "char(5)", "char(3)")) == 1
