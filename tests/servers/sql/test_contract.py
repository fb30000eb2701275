"""The sinks of database servers under the public contract, as the roles of their pages, on tables that belong to somebody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresSink
from dbt_reverse_etl.testing import TYPES, ReadBack, SinkContract
from tests.support.servers import mysql, postgres


class OfServer(SinkContract):
    database: postgres.Database | mysql.Database

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return self.database.settings()

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return self.database.settings(database="nowhere")

    def refine(self, task: SinkTask) -> SinkTask:
        self.database.make(task)
        return task


class TestPostgres(OfServer):
    sink_class = PostgresSink
    refused_characters = "\0"
    database: postgres.Database
    types = TYPES | {"string": (pa.string(), [text for text in TYPES["string"][1] if "\0" not in text])}

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = postgres.new_database()

    @pytest.fixture
    def read_back(self) -> ReadBack:
        def read(task: SinkTask) -> list[dict[str, Any]]:
            with self.database.owner(row_factory=dict_row) as connection:
                name = self.database.object_name(task).sql
                return connection.execute(f"SELECT * FROM {name}".encode()).fetchall()

        return read

    def expected(self, field: pa.Field, value: Any) -> Any:
        if pa.types.is_map(field.type):
            return dict(value)
        return value


class TestMysql(OfServer):
    sink_class = MysqlSink
    database: mysql.Database

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = mysql.new_database()

    @pytest.fixture
    def read_back(self) -> Iterator[ReadBack]:
        with closing(self.database.owner()) as connection:

            def read(task: SinkTask) -> list[dict[str, Any]]:
                name = self.database.object_name(task)
                with connection.cursor(DictCursor) as cursor:
                    cursor.execute(f"SELECT * FROM {name.sql}")
                    return list(cursor.fetchall())

            yield read

    def expected(self, field: pa.Field, value: Any) -> Any:
        if pa.types.is_nested(field.type):
            return json.dumps(dict(value) if pa.types.is_map(field.type) else value, separators=(",", ":"))
        if pa.types.is_timestamp(field.type) and value.tzinfo:
            return value.astimezone(timezone.utc).replace(tzinfo=None)
        if pa.types.is_time(field.type):
            return timedelta(
                hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
            )
        return value
