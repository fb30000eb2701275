"""A Kafka sink whose values have a schema in a registry, and rows of every type for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.testing import TYPES, Row
from tests.support.servers.kafka import sink
from tests.support.servers.schema_registry import PASSWORD, USER, SchemaRegistry


def registry_sink(registry: SchemaRegistry, **more: Any) -> KafkaSink:
    login = {"schema_registry_user": USER, "schema_registry_password": PASSWORD}
    return sink(**{"schema_registry_url": registry.url, **login, **more})


def rows_of_every_type() -> tuple[pa.Schema, list[Row]]:
    """The last one is NULL in every field."""
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    longest = max(len(values) for _, values in TYPES.values())
    rows: list[Row] = [{"id": number} for number in range(longest + 1)]
    for name, (_, values) in TYPES.items():
        for number, value in enumerate(values):
            rows[number][name] = value
    return schema, rows
