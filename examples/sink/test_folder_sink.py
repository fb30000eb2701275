"""The contract of every sink; `pytest -rs` also lists what this one does not claim."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from folder_sink import FolderSettings, FolderSink

from dbt_reverse_etl.sinks.paths import PROJECT_DIR
from dbt_reverse_etl.testing import ReadBack, SinkContract, Trouble
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

    @pytest.fixture
    def troubles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Trouble]:
        @contextmanager
        def unmounted() -> Iterator[None]:
            elsewhere = tmp_path.rename(tmp_path.with_name("elsewhere"))
            yield
            elsewhere.rename(tmp_path)

        @contextmanager
        def lost_answers() -> Iterator[None]:
            def replace(part: Path, file: Path) -> None:
                part.rename(file)
                raise OSError(errno.EIO, "canary: the answer is lost")

            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace)
                yield

        return {"unmounted": unmounted, "lost answers": lost_answers}

    def expected(self, field: pa.Field, value: Any) -> Any:
        (encoded,) = encode_values(pa.array([value], field.type)).rows
        return json.loads(encoded or b"null")

    def test_a_relative_path_is_that_of_the_project(self, tmp_path: Path) -> None:
        settings = FolderSettings.model_validate({"path": "out"}, context={PROJECT_DIR: tmp_path})
        assert FolderSink(settings).identity == str(tmp_path / "out")
