"""The SQLAlchemy sink under the public contract, on a real Postgres server, as the role of docs/postgres.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from dbt_reverse_etl.testing import TYPES, ReadBack, SinkContract
from tests.support.effort import scaled
from tests.support.servers.postgres import new_database
from tests.support.sinks.sqlalchemy import on_postgres

WITHOUT_NUL = {**TYPES, "string": (pa.string(), [text for text in TYPES["string"][1] if "\0" not in text])}


class TestPostgresThroughSqlalchemy(SinkContract):
    sink_class = SqlalchemySink
    refused_characters = "\0"
    types = WITHOUT_NUL
    histories = scaled(4)

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = new_database()

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return on_postgres(self.database)

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return on_postgres(self.database, database="nowhere")

    def refine(self, task: SinkTask) -> SinkTask:
        self.database.make(task)
        return task

    @pytest.fixture
    def read_back(self) -> Iterator[ReadBack]:
        with self.database.owner(row_factory=dict_row) as connection:

            def read(task: SinkTask) -> list[dict[str, Any]]:
                connection.execute("SET TIME ZONE 'UTC'")
                return connection.execute(f'SELECT * FROM "{task.object}"'.encode()).fetchall()

            yield read

    def expected(self, field: pa.Field, value: Any) -> Any:
        return dict(value) if pa.types.is_map(field.type) else value
