"""CSV parts, read by a CSV reader that is not ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.files.csv import csv_part
from dbt_reverse_etl.sinks.files.settings import FilesSettings
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import ReadBack, Row, SinkContract, batch_of, opened, outcomes, person
from tests.support.effort import scaled
from tests.support.sinks.files import task_of
from tests.support.sinks.files_consumer import csv_rows, in_folder, listed, state, typed
from tests.support.sinks.json_values import as_json


class TestCsv(SinkContract):
    sink_class = FilesSink
    histories = scaled(20)
    form: ClassVar[dict[str, Any]] = {"format": "csv"}

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "out"), **self.form}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        def read(task: Any) -> Sequence[Row]:
            changes = listed(in_folder(tmp_path / "out" / task.object))
            return [typed(row, task.schema) for row in state(changes, task.key)]

        return read

    def expected(self, field: pa.Field, value: Any) -> Any:
        return as_json(field, value)


class TestCsvGzip(TestCsv):
    form: ClassVar = {"format": "csv", "compression": "gzip"}


FORMULAS = ["=1+1", "+1", "-1", "@sum(a)", "\t=1", "\r=1", "\n=1", "\uff1d1", "'", "'=1", "''"]


@pytest.mark.guarantee("Files")
@given(st.lists(st.one_of(st.none(), st.sampled_from(FORMULAS), st.text(st.characters(codec="utf-8"))), min_size=1))
def test_any_text_and_null_is_read_back_and_none_begins_like_a_formula(texts: list[str | None]) -> None:
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})
    content, refused = csv_part(table, "reject")
    assert refused == {}
    assert [row["text"] for row in csv_rows(content)] == texts
    cells = [row["text"] for row in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    assert not [cell for cell in cells if cell and cell[0] in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"]


def test_numbers_stay_numbers_and_encoded_bytes_are_guarded() -> None:
    table = pa.table({"n": [-1], "d": pa.array(["-1.50"]).cast(pa.decimal128(5, 2)), "b": [b"\xfb\xef\xbe"]})
    assert csv_part(table, "reject")[0] == b'"n","d","b"\n"-1","-1.50","\'++++"\n'


def test_what_has_no_exact_form_is_refused_alone(tmp_path: Path) -> None:
    task = task_of()
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with opened(FilesSink(FilesSettings(path=str(tmp_path), format="csv")), task) as sink:
        changes = [("insert", person(1, score=float("nan"))), ("insert", person(2))]
        assert outcomes(sink.deliver(batch_of(task, changes)), 2) == [Outcome.REJECTED, Outcome.DELIVERED]
        (part,) = (tmp_path / "people").glob("*.csv")
        assert [row["id"] for row in csv_rows(part.read_bytes())] == ["2"]
    assert csv_part(pa.table({"t": bad}), "reject") == (b"", {0: "field t: text that is not UTF-8"})
