"""Declarations of wide tables that several tests use."""

from __future__ import annotations

from typing import Any

CUSTOMERS: dict[str, Any] = {"name": "customers", "table": "customers", "key": "id", "columns": ["name", "region_id"]}

BILLING = {"name": "billing", "table": "app.billing", "key": "customer_id", "join": "full", "columns": {"plan": "plan"}}

REGION = {"name": "region", "table": "regions", "key": "id", "join_on": {"region_id": "id"}, "prefix": "region_"}

COUNTRY = {"name": "country", "table": "countries", "key": "code", "parent": "region", "join_on": {"country": "code"}}

ORDERS = {"name": "orders", "table": "orders", "cardinality": "many", "join_on": {"id": "customer_id"}}

NODES = [
    CUSTOMERS,
    BILLING,
    REGION | {"columns": ["name"], "where": "not gone"},
    COUNTRY | {"columns": [{"name": "country"}], "join": "inner", "priority": -1},
    ORDERS | {"aggregates": {"order_count": "count(*)"}},
]


TABLES = ["customers", "regions", "countries", "orders"]

HINTS = "".join(f"-- depends_on: {{{{ ref('{name}') }}}}\n" for name in TABLES)
HINTS += "-- depends_on: {{ source('app', 'billing') }}\n"
