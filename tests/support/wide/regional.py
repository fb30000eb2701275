"""Orders of customers in regions, as Delta tables with change feeds, and the wide table over them."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner

from dbt_reverse_etl.cli import cli
from tests.support.dbt.project import Project

TABLES = {
    "orders": "id bigint, customer_id int, ship_to int, note string",
    "invoices": "order_id bigint, paid int",
    "customers": "id int, name string, region_id int",
    "regions": "id int, name string",
    "lines": "line_id int, order_id bigint, amount int",
}
FEED = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
REGIONAL = {
    "root": "orders",
    "nodes": [
        {"name": "orders", "table": "app.orders", "key": "id", "columns": ["note"], "changes": "cdf"},
        {"name": "customer", "table": "app.customers", "key": "id", "join_on": {"customer_id": "id"}, "changes": "cdf"},
        {
            "name": "region",
            "table": "app.regions",
            "key": "id",
            "parent": "customer",
            "join_on": {"region_id": "id"},
            "columns": {"name": "region"},
            "changes": "cdf",
        },
    ],
}


def regional(project: Project, materialized: str, wide: dict[str, Any] = REGIONAL, **settings: Any) -> None:
    """Twelve orders of six customers in five regions: every sixth order is of customer 6 in region 5."""
    sources = ("orders", "customers", "regions")
    for name in sources:
        project.spark.sql(f"create table {project.schema}.{name} ({TABLES[name]}) using delta {FEED}")
    tables = [{"name": name} for name in sources]
    project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
    project.rows("insert into {s}.orders select id, (id - 1) % 6 + 1, null, 'first' from range(1, 13)")
    project.rows("insert into {s}.customers select id, 'c', least(id, 5) from range(1, 6) union all select 6, 'c', 5")
    project.rows("insert into {s}.regions select id, concat('r', id) from range(1, 6)")
    body = "".join(f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in sources)
    meta = {"reverse_etl": {"wide_table": wide, **settings}}
    project.model(
        "wide",
        body + "{{ reverse_etl.wide_table() }}",
        {"materialized": materialized, "unique_key": "id", "meta": meta},
    )


def generate(project: Project, *options: str) -> None:
    """The chain of `wide`, of changelogs."""
    assert project.dbt("parse").success
    place = ["--changelogs", "--project-dir", str(project.folder)]
    CliRunner().invoke(
        cli, ["wide-table", "generate", "wide", *options, *place], standalone_mode=False, catch_exceptions=False
    )
