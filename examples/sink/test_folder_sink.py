"""The contract of every sink; `pytest -rs` also lists what this one does not claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from folder_sink import FolderSink

from dbt_reverse_etl.testing import ReadBack, SinkContract
from dbt_reverse_etl.values.encoding import encode_values


class TestFolder(SinkContract):
    sink_class = FolderSink

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path)}

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "missing")}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        return lambda task: [json.loads(file.read_bytes()) for file in (tmp_path / task.object).glob("*.json")]

    def expected(self, field: pa.Field, value: Any) -> Any:
        (encoded,) = encode_values(pa.array([value], field.type)).rows
        return json.loads(encoded or b"null")
