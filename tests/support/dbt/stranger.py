"""A shop that a stranger has built with dbt, before this package came: seeds, staging views, tables, incremental models, a snapshot, tests, a schema macro.

It knows nothing of the helpers of other tests: its files are what a person writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CUSTOMERS = ["1,Michael,P.", "2,Shawn,M.", "3,Kathleen,P.", "4,Jimmy,C.", "5,Katherine,R."]
ORDERS = [
    "1,1,2018-01-01,returned",
    "2,3,2018-01-02,completed",
    "3,4,2018-01-04,completed",
    "4,1,2018-01-05,completed",
    "5,5,2018-01-05,shipped",
    "6,2,2018-01-07,placed",
]
PAYMENTS = [
    "1,1,credit_card,1000",
    "2,2,credit_card,2000",
    "3,3,coupon,100",
    "4,4,coupon,2500",
    "5,5,bank_transfer,1700",
    "6,6,credit_card,600",
]
HEADS = {
    "raw_customers": "id,first_name,last_name",
    "raw_orders": "id,user_id,order_date,status",
    "raw_payments": "id,order_id,payment_method,amount",
}
MODELS = {
    "staging/stg_customers": "{{ config(materialized='view') }}\nselect id as customer_id, first_name, last_name from {{ ref('raw_customers') }}",
    "staging/stg_orders": "{{ config(materialized='view') }}\nselect id as order_id, user_id as customer_id, cast(order_date as date) as order_date, status from {{ ref('raw_orders') }}",
    "staging/stg_payments": "{{ config(materialized='view') }}\nselect id as payment_id, order_id, payment_method, cast(amount / 100 as decimal(12, 2)) as amount from {{ ref('raw_payments') }}",
    "marts/order_payments": "select order_id, sum(amount) as total_amount from {{ ref('stg_payments') }} group by order_id",
    "marts/orders": """{{ config(materialized='incremental', incremental_strategy='merge', unique_key='order_id') }}
select o.order_id, o.customer_id, o.order_date, o.status, p.total_amount
from {{ ref('stg_orders') }} o left join {{ ref('order_payments') }} p using (order_id)""",
    "marts/customer_orders": "select customer_id, min(order_date) as first_order, max(order_date) as latest_order, count(*) as number_of_orders from {{ ref('orders') }} group by customer_id",
    "marts/customer_payments": "select o.customer_id, sum(p.total_amount) as lifetime_value from {{ ref('order_payments') }} p join {{ ref('orders') }} o using (order_id) group by o.customer_id",
    "marts/customers": """select c.customer_id, c.first_name, c.last_name, o.first_order, o.latest_order, o.number_of_orders, p.lifetime_value
from {{ ref('stg_customers') }} c left join {{ ref('customer_orders') }} o using (customer_id) left join {{ ref('customer_payments') }} p using (customer_id)""",
    "marts/daily_sales": """{{ config(materialized='incremental', incremental_strategy='append') }}
select order_date, count(*) as orders, sum(total_amount) as amount from {{ ref('orders') }}
{% if is_incremental() %}where order_date > (select max(order_date) from {{ this }}){% endif %} group by order_date""",
    "marts/sync_status": "select status, count(*) as orders from {{ ref('orders') }} group by status",
}
CHANGELOGS = {
    "reverse/customers_changelog": "{{ config(materialized='changelog', unique_key='customer_id') }}\nselect * from {{ ref('customers') }}",
    "reverse/orders_changelog": "{{ config(materialized='changelog', unique_key='order_id') }}\nselect * from {{ ref('orders') }}",
}
SNAPSHOT = """{% snapshot orders_history %}
{{ config(target_schema='history', unique_key='order_id', strategy='check', check_cols=['status'], file_format='delta') }}
select * from {{ ref('stg_orders') }}
{% endsnapshot %}"""
SCHEMAS = """{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ (target.schema ~ '_' ~ custom_schema_name | trim) if custom_schema_name else target.schema }}
{%- endmacro %}"""
TESTS = {
    "version": 2,
    "models": [
        {"name": "customers", "columns": [{"name": "customer_id", "data_tests": ["unique", "not_null"]}]},
        {"name": "orders", "columns": [{"name": "order_id", "data_tests": ["unique", "not_null"]}]},
        {
            "name": "customers_changelog",
            "columns": [{"name": "customer_id", "data_tests": ["reverse_etl.current_unique"]}],
        },
    ],
}


def write(folder: Path, schema: str, package: Path, destinations: Mapping[str, Any] | str) -> None:
    """All files of the project; `destinations` of its one target."""
    for name, rows in {"raw_customers": CUSTOMERS, "raw_orders": ORDERS, "raw_payments": PAYMENTS}.items():
        seed(folder, name, rows)
    for name, sql in {**MODELS, **CHANGELOGS}.items():
        _text(folder / f"models/{name}.sql", sql)
    _text(folder / "snapshots/orders_history.sql", SNAPSHOT)
    _text(folder / "macros/schemas.sql", SCHEMAS)
    _yaml(folder / "models/tests.yml", TESTS)
    _yaml(folder / "packages.yml", {"packages": [{"local": str(package)}]})
    models = {
        "+file_format": "delta",
        "jaffle": {"+materialized": "table", "marts": {"+schema": "marts"}, "reverse": {"+schema": "reverse"}},
    }
    project = {
        "name": "jaffle",
        "version": "1.0.0",
        "profile": "jaffle",
        "models": models,
        "seeds": {"+file_format": "delta"},
    }
    _yaml(folder / "dbt_project.yml", {**project, "flags": {"use_colors": False, "send_anonymous_usage_stats": False}})
    profiles(folder, schema, destinations)
    sync(
        folder, "crm_customers", "customers_changelog", object="customers", mode="mirror", guards={"max_deletes": "10%"}
    )
    sync(folder, "app_orders", "orders_changelog", destination="app", object="orders", mode="upsert")


def profiles(folder: Path, schema: str, destinations: Mapping[str, Any] | str) -> None:
    """profiles.yml beside the project."""
    output = {"type": "spark", "method": "session", "host": "NA", "schema": schema, "threads": 1}
    jaffle = {"target": "prod", "outputs": {"prod": output}}
    _yaml(folder / "profiles.yml", {"jaffle": jaffle, "dbt_reverse_etl": {"outputs": {"prod": destinations}}})


def seed(folder: Path, name: str, rows: list[str]) -> None:
    """One CSV file."""
    _text(folder / f"seeds/{name}.csv", "\n".join([HEADS[name], *rows]) + "\n")


def sync(folder: Path, name: str, changelog: str, destination: str = "crm", **settings: Any) -> None:
    """One exposure."""
    meta = {"reverse_etl": {"destination": destination, **settings}}
    owner = {"name": "Growth", "email": "growth@example.com"}
    exposure = {
        "name": name,
        "type": "application",
        "owner": owner,
        "depends_on": [f"ref('{changelog}')"],
        "config": {"meta": meta},
    }
    _yaml(folder / f"models/{name}.yml", {"exposures": [exposure]})


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _yaml(path: Path, document: Any) -> None:
    _text(path, yaml.safe_dump(document, sort_keys=False))
