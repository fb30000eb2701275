"""What the tests of the SQLAlchemy sink share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbt_reverse_etl.sinks.sql.sqlalchemy.settings import SqlalchemySettings
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from tests.support.servers.postgres import Database


def on_postgres(db: Database, **more: Any) -> dict[str, Any]:
    """What profiles.yml would say about a database of the Postgres server."""
    return {**db.settings(), "drivername": "postgresql+psycopg", **more}


def postgres_sink(db: Database, **more: Any) -> SqlalchemySink:
    """A sink that logs in as the role of docs/postgres.md."""
    return SqlalchemySink(SqlalchemySettings.model_validate(on_postgres(db, **more)))


def duckdb_sink(file: Path, **more: Any) -> SqlalchemySink:
    """A sink on a DuckDB file."""
    return SqlalchemySink(
        SqlalchemySettings.model_validate({"url": f"duckdb:///{file}", "create_object": True, **more})
    )
