"""A wide table as a changelog: when a row of any of its tables changed, the wide rows that it touches are recomputed, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.project import Project, Result

pytestmark = pytest.mark.spark

TABLES = {
    "orders": "id bigint, customer_id int, ship_to int, note string",
    "invoices": "order_id bigint, paid int",
    "customers": "id int, name string, region_id int",
    "regions": "id int, name string",
    "lines": "line_id int, order_id bigint, amount int",
}
WIDE: dict[str, Any] = {
    "root": "orders",
    "nodes": [
        {"name": "orders", "table": "app.orders", "key": "id", "columns": ["note"]},
        {"name": "invoice", "table": "app.invoices", "key": "order_id", "join": "full", "columns": ["paid"]},
        {
            "name": "customer",
            "table": "customers_changelog",
            "key": "id",
            "join_on": {"customer_id": "id"},
            "columns": {"name": "customer"},
        },
        {
            "name": "region",
            "table": "app.regions",
            "key": "id",
            "parent": "customer",
            "join_on": {"region_id": "id"},
            "columns": {"name": "region"},
        },
        {
            "name": "ship_region",
            "table": "app.regions",
            "key": "id",
            "join_on": {"ship_to": "id"},
            "columns": {"name": "ship_region"},
        },
        {
            "name": "lines",
            "table": "app.lines",
            "cardinality": "many",
            "join_on": {"id": "order_id"},
            "aggregates": {"line_count": "count(*)", "amount": "sum(amount)"},
        },
    ],
}
for node in WIDE["nodes"]:
    if node["table"].startswith("app."):
        node["changes"] = "cdf"
COLUMNS = "id, note, paid, customer, region, ship_region, line_count, amount"
TRUTH = """
    select coalesce(o.id, i.order_id) as id, o.note, i.paid, c.name as customer, r.name as region, s.name as ship_region, l.line_count, l.amount
    from {s}.orders o full join {s}.invoices i on i.order_id = o.id
    left join {s}.customers c on c.id = o.customer_id left join {s}.regions r on r.id = c.region_id left join {s}.regions s on s.id = o.ship_to
    left join (select order_id, count(*) as line_count, sum(amount) as amount from {s}.lines group by 1) l on l.order_id = coalesce(o.id, i.order_id)
    order by 1
"""
FEED = "tblproperties ('delta.enableChangeDataFeed' = 'true')"


class Shop:
    """The tables of a shop, and the wide table of its orders."""

    def __init__(self, project: Project, orders: int = 20, **capture: Any) -> None:
        self.project = project
        for name, columns in TABLES.items():
            project.spark.sql(f"create table {project.schema}.{name} ({columns}) using delta {FEED}")
        tables = [{"name": name} for name in TABLES]
        project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
        project.changelog("customers_changelog", "select * from {{ source('app', 'customers') }}")
        self.change(
            f"insert into orders select id, id % 4, 1, 'first' from range(1, {orders + 1})",
            "insert into customers values (0, 'Ann', 1), (1, 'Bob', 2), (2, 'Cas', 9)",
            "insert into regions values (1, 'North'), (2, 'South')",
            f"insert into lines select id, id, 10 from range(1, {orders + 1})",
        )
        settings = {"wide_table": WIDE, "capture": {"strategy": "affected_keys", **capture}}
        project.changelog("wide", self.body(), settings=settings)
        assert self.run().messages["wide"] == f"+{orders} ~0 -0, snapshot 1"

    @staticmethod
    def body() -> str:
        lines = [f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in TABLES if name != "customers"]
        return "".join(lines) + "-- depends_on: {{ ref('customers_changelog') }}\n{{ reverse_etl.wide_table() }}"

    def change(self, *statements: str) -> None:
        for statement in statements:
            words = statement.split()
            place = next(number for number, word in enumerate(words) if word in TABLES)
            words[place] = f"{self.project.schema}.{words[place]}"
            self.project.spark.sql(" ".join(words))

    def run(self, *arguments: str) -> Result:
        """`dbt run`, after which the wide rows are those of the full join."""
        result = self.project.dbt("run", "--exclude", "package:reverse_etl", *arguments)
        assert result.success, result.text
        assert self.project.image("wide", COLUMNS) == [tuple(row) for row in self.project.rows(TRUTH)]
        return result


CASES: dict[str, tuple[list[str], str]] = {
    "the dimension arrives days before the fact": (["insert into customers values (50, 'Early', 2)"], "+0 ~0 -0"),
    "its fact, and a fact days before its dimensions": (
        ["insert into orders values (100, 50, 2, 'late fact'), (101, 60, 7, 'early fact')"],
        "+2 ~0 -0",
    ),
    "the dimensions of that fact, one of them a dimension of a dimension; and a fact with its dimensions": (
        [
            "insert into customers values (60, 'Late', 7), (70, 'Now', 8)",
            "insert into regions values (7, 'West')",
            "insert into orders values (102, 70, 8, 'with them')",
            "insert into regions values (8, 'East')",
        ],
        "+1 ~1 -0",
    ),
    "a dimension of five facts changes; a fact and a dimension are re-targeted; references become NULL; a dimension is deleted;"
    " a line moves to another order; a table of the same key has one of its own, and one whose other row is deleted": (
        [
            "update customers set name = 'Anna' where id = 0",
            "update orders set customer_id = 1 where id = 4",
            "update customers set region_id = 1 where id = 1",
            "update orders set customer_id = null, ship_to = null where id = 5",
            "delete from regions where id = 7",
            "update lines set order_id = 7 where line_id = 6",
            "insert into invoices values (500, 1), (10, 2)",
            "insert into lines values (900, 500, 3)",
            "delete from orders where id in (10, 11)",
            "delete from lines where order_id = 11",
        ],
        "+1 ~14 -1",
    ),
}


def test_late_early_re_targeted_deleted_and_null_references_reach_exactly_the_wide_rows_that_they_touch(
    project: Project,
) -> None:
    shop = Shop(project, full_above=1)
    for case, (statements, counts) in CASES.items():
        shop.change(*statements)
        message = shop.run().messages["wide"]
        assert message.startswith(counts), (case, message)
        assert "full compare" not in message, (case, message)
