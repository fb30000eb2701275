"""A wide table over five tables: a run in which a few rows of one dimension changed, against full recompute and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.benchmarks.turns import report
from tests.support.dbt.files_read import files_read
from tests.support.dbt.project import Project

CUSTOMERS = 20_000
HOT = CUSTOMERS // 1000  # the customers that change; one order in 200 is theirs
FILES = 12
INDEX_FILE = 256 * 1024  # bytes, in proportion to the small index
TABLES = {
    "orders": f"id, cast(if({{hot}}, id % {HOT}, {HOT} + id % {CUSTOMERS - HOT}) as bigint) as customer_id, id % 5000 as item_id, id % 97 as store_id, "
    "id * 7 as cents, concat('note ', id) as note",
    "customers": "id, concat('customer ', id) as name, id % 200 as region_id",
    "regions": "id, concat('region ', id) as region",
    "items": "id, concat('item ', id) as item, id % 10 as size",
    "stores": "id, concat('store ', id) as store",
}
ROWS = {"customers": CUSTOMERS, "regions": 200, "items": 5000, "stores": 97}


def _dimension(name: str, column: str, *columns: str, **more: Any) -> dict[str, Any]:
    joined = {"key": "id", "join_on": {column: "id"}, "columns": list(columns)}
    return {"name": name, "table": f"app.{name}", "changes": "cdf", **joined, **more}


NODES = [
    {"name": "orders", "table": "app.orders", "key": "id", "columns": ["cents", "note"], "changes": "cdf"},
    _dimension("customers", "customer_id", "name"),
    _dimension("regions", "region_id", "region", parent="customers"),
    _dimension("items", "item_id", "item", "size"),
    _dimension("stores", "store_id", "store"),
]


def wide(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """0.1 % of the customers change, whose orders are 0.5 % of all: spread over all files, and side by side in tables clustered by their keys."""
    scattered, neighbours = "id % 200 = 0", f"id between {rows // 2} and {rows // 2 + rows // 200 - 1}"
    for name, hot, clustered in (
        ("", scattered, ""),
        (", side by side, inputs clustered by their keys", neighbours, "cluster by (id)"),
    ):
        project = _project(spark, home / f"wide{bool(name)}", rows, hot, clustered)
        found = [_captured(project, rows, number) for number in range(rounds + 1)][1:]
        incremental, full = (min(seconds[model] for seconds in found) for model in ("wide", "compared"))
        what = f"capture of {rows} wide rows, 0.5 % of them affected{name} / full recompute and compare"
        report(what, incremental / full, "<= 0.3" if name else "<= 0.5")
        report("the same: seconds of the first", incremental, "")
    _looked_up(spark, home / "indexed", rows // 10)


def _looked_up(spark: SparkSession, home: Path, rows: int) -> None:
    """The files of a reverse index that are read for the ids that changed."""
    project = _project(spark, home, rows, "id % 200 = 0", "")
    nodes = [
        {"name": "orders", "table": "orders_log", "key": "id", "columns": ["cents", "note"]},
        _dimension("customers", "customer_id", "name", reverse_index="orders_by_customer"),
    ]
    project.changelog("orders_log", "select id, customer_id, cents, note from {{ source('app', 'orders') }}")
    merged = {"materialized": "incremental", "incremental_strategy": "merge", "unique_key": ["customer_id", "id"]}
    project.model("orders_by_customer", "{{ reverse_etl.reverse_index(ref('orders_log'), 'customer_id') }}", merged)
    depends = (
        "-- depends_on: {{ ref('orders_log') }} {{ ref('orders_by_customer') }} {{ source('app', 'customers') }}\n"
    )
    settings = {"wide_table": {"root": "orders", "nodes": nodes}, "capture": "affected_keys"}
    project.changelog("indexed", depends + "{{ reverse_etl.wide_table() }}", settings=settings)
    ours = ("run", "--select", "orders_log", "orders_by_customer", "indexed")
    assert project.dbt(*ours).success
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", INDEX_FILE)
    clustered = "{model: orders_by_customer, cluster_by: [customer_id]}"
    assert project.dbt("run-operation", "maintain", "--args", clustered).success
    project.rows(f"update {{s}}.customers set name = 'renamed' where id < {HOT}")
    with files_read(spark) as files:
        result = project.dbt(*ours)
    assert result.messages["indexed"].startswith(f"+0 ~{rows // 200} -0"), result.messages
    some, every = files["indexed__candidates"]["orders_by_customer"]
    report(f"files of a reverse index that are read for {HOT} ids of {CUSTOMERS} / its {every} files", some / every, "")


def _captured(project: Project, rows: int, number: int) -> dict[str, float]:
    """Seconds of both models."""
    project.rows(f"update {{s}}.customers set name = concat('name ', id, ' ', {number}) where id < {HOT}")
    result = project.run()
    assert result.success, result.text
    for model in ("wide", "compared"):
        assert result.messages[model].startswith(f"+0 ~{rows // 200} -0"), result.messages
    assert "full compare" not in result.messages["wide"]
    return result.seconds


def _project(spark: SparkSession, home: Path, rows: int, hot: str, clustered: str) -> Project:
    project = Project(home, spark, f"bench_{home.name.lower()}", quiet=True)
    for name, columns in TABLES.items():
        files = FILES if name == "orders" else 1
        feed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
        project.rows(
            f"create table {{s}}.{name} using delta {clustered} {feed} as select {columns.format(hot=hot)} from range(0, {ROWS.get(name, rows)}, 1, {files})"
        )
    tables = [{"name": name} for name in TABLES]
    project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
    body = "".join(f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in TABLES)
    declared = {"wide_table": {"root": "orders", "nodes": NODES}}
    for model, settings in (("wide", {"capture": "affected_keys"}), ("compared", {})):
        project.changelog(model, body + "{{ reverse_etl.wide_table() }}", settings={**declared, **settings})
    assert project.run().success
    return project
