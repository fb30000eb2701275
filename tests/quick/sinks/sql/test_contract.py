"""The sinks of database files under the public contract."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.dialects.duckdb import DuckdbSink
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.testing import ReadBack, SinkContract
from tests.support.sinks.json_values import as_text


class TestSqlite(SinkContract):
    sink_class = SqliteSink

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "crm.sqlite")}

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "no such directory" / "crm.sqlite")}

    @pytest.fixture
    def read_back(self, settings: dict[str, Any]) -> Iterator[ReadBack]:
        connection = sqlite3.connect(settings["path"])
        connection.row_factory = sqlite3.Row
        yield lambda task: [dict(row) for row in connection.execute(f'SELECT * FROM "{task.object}"')]
        connection.close()

    def expected(self, field: pa.Field, value: Any) -> Any:
        if not pa.types.is_nested(field.type):
            return as_text(field, value)
        return json.dumps(dict(value) if pa.types.is_map(field.type) else value, separators=(",", ":"))


class TestDuckdb(SinkContract):
    sink_class = DuckdbSink
    histories = 4  # each opens the file anew

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "crm.duckdb"

    @pytest.fixture
    def settings(self, file: Path) -> dict[str, Any]:
        return {"path": str(file)}

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "nowhere" / "crm.duckdb")}

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
