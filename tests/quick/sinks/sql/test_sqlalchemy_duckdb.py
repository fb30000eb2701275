"""The SQLAlchemy sink under the public contract, on a DuckDB file."""

from __future__ import annotations

import json
from datetime import timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from dbt_reverse_etl.testing import ReadBack, SinkContract


class TestDuckdb(SinkContract):
    sink_class = SqlalchemySink
    histories = 4  # each opens the file anew

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "crm.duckdb"

    @pytest.fixture
    def settings(self, file: Path) -> dict[str, Any]:
        return {"url": f"duckdb:///{file}", "create_object": True}

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": f"duckdb:///{tmp_path}/nowhere/crm.duckdb"}

    @pytest.fixture
    def read_back(self, file: Path) -> ReadBack:
        def read(task: SinkTask) -> list[dict[str, Any]]:
            with duckdb.connect(str(file)) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                found = connection.execute(f'SELECT * FROM "{task.object}"')
                names = [column[0] for column in found.description or ()]
                return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

        return read

    def expected(self, field: pa.Field, value: Any) -> Any:
        if pa.types.is_nested(field.type):
            return json.dumps(dict(value) if pa.types.is_map(field.type) else value, separators=(",", ":"))
        if pa.types.is_timestamp(field.type) and value.tzinfo:
            return value.astimezone(timezone.utc)
        return value
