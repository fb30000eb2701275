"""What the tests of the SQLite sink share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.settings import SqliteSettings
from dbt_reverse_etl.testing import PEOPLE
from tests.support.effort import scaled

on_a_shared_file = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(40)
)


def sink_on(path: Path, **more: Any) -> SqliteSink:
    return SqliteSink(SqliteSettings(path=str(path), **more))


def a_task(schema: pa.Schema = PEOPLE, **changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "5c", "sync": "people", "fence": 1, "object": "people", "mode": Mode.MIRROR}
    return SinkTask(**(values | {"key": (schema.names[0],), "schema": schema} | changes))


def people(*rows: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("insert", row) for row in rows]


def table(db: sqlite3.Connection, name: str = "people") -> list[tuple[Any, ...]]:
    return db.execute(f'SELECT * FROM "{name}" ORDER BY 1').fetchall()
