"""The files sink under the public contract, in each form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.files.settings import FilesOptions
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import ReadBack, SinkContract
from dbt_reverse_etl.values.encoding import encode_values
from tests.support.effort import scaled
from tests.support.sinks.files import listed
from tests.support.sinks.files_consumer import state


class TestJsonLines(SinkContract):
    sink_class = FilesSink
    histories = scaled(20)
    form: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "out"), **self.form}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        return lambda task: state(listed(tmp_path / "out" / task.object), task.key)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").write_text("not a directory")
        return {"path": str(tmp_path / "file" / "out"), **self.form}

    def expected(self, field: pa.Field, value: Any) -> Any:
        return orjson.loads(encode_values(pa.array([value], field.type)).rows[0] or b"")


class TestJsonLinesGzip(TestJsonLines):
    form: ClassVar = {"compression": "gzip"}


class TestParquet(TestJsonLines):
    form: ClassVar = {"format": "parquet"}

    def expected(self, field: pa.Field, value: Any) -> Any:
        return pa.array([value], field.type)[0].as_py()


class TestPartitioned(TestJsonLines):
    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        def read(task: SinkTask) -> list[dict[str, Any]]:
            rows = state(listed(tmp_path / "out" / task.object), task.key)
            texts = [field.name for field in task.schema if pa.types.is_string(field.type)]
            return [
                {name: str(value) if name in texts and value is not None else value for name, value in row.items()}
                for row in rows
            ]

        return read

    def refine(self, task: SinkTask) -> SinkTask:
        return replace(task, options=FilesOptions(partition_by=("id",)))
