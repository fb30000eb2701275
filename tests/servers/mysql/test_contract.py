"""The MySQL sink under the public contract, as the role of docs/mysql.md, on tables that belong to somebody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pymysql.cursors import DictCursor

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.mysql.catalog import object_name
from dbt_reverse_etl.sinks.sql.mysql.sink import MysqlSink
from dbt_reverse_etl.testing import ReadBack, SinkContract
from tests.support.servers.mysql import new_database


class TestMysql(SinkContract):
    sink_class = MysqlSink

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.database = new_database()

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return self.database.settings()

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return self.database.settings(database="nowhere")

    def refine(self, task: SinkTask) -> SinkTask:
        self.database.make(task)
        self.database.may_load(task.object)
        return task

    @pytest.fixture
    def read_back(self) -> Iterator[ReadBack]:
        with closing(self.database.owner()) as connection:

            def read(task: SinkTask) -> list[dict[str, Any]]:
                name = object_name(task.object, self.database.name)
                assert name
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
