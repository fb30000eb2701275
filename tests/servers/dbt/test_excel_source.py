"""examples/excel: what stands in a sheet is read as the schema says, or refused; nothing is lost."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from pyspark.errors import PySparkValueError
from pyspark.sql.types import BooleanType, DataType, DecimalType, LongType, StringType, StructField, StructType

from tests.support import ROOT

SPEC = importlib.util.spec_from_file_location("pyspark_excel", ROOT / "examples" / "excel" / "pyspark_excel.py")
assert SPEC
assert SPEC.loader
excel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(excel)


def written(path: Path, *rows: Sequence[Any]) -> str:
    workbook = Workbook()
    for row in rows:
        workbook.worksheets[0].append([*row])
    workbook.save(path)
    return f"file:{path}"


def read(path: str, **schema: DataType) -> list[tuple[Any, ...]]:
    fields = [StructField(name, kind) for name, kind in schema.items()]
    return [*excel.SheetReader({"path": path}, StructType(fields)).read(None)]


def test_each_cell_becomes_a_value_of_its_column_whatever_the_file_is_called(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a b#1%20?.xlsx",
        ("id", "name", "price", "ok", None),
        (1, "x", 1.1, True),
        (2, True),
        (None, None),
        (3.0, 12),
    )
    assert read(path, id=LongType(), name=StringType(), price=DecimalType(10, 2), ok=BooleanType()) == [
        (1, "x", Decimal("1.1"), True),
        (2, "true", None, None),
        (3, "12", None, None),
    ]
    assert excel.DefaultSource({"path": path}).schema().names == ["id", "name", "price", "ok"]


@pytest.mark.parametrize(
    ("column", "kind", "found"),
    [
        ("id", LongType(), "a fraction in id"),
        ("v", LongType(), "a cell in v that is no number"),
        ("twice", StringType(), "the column twice 2 times in the first row"),
        ("other", StringType(), "the column other 0 times in the first row"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused_without_its_value(
    tmp_path: Path, column: str, kind: DataType, found: str
) -> None:
    path = written(tmp_path / "a.xlsx", ("id", "v", "twice", "twice"), (3.5, "canary", 1, 2))
    with pytest.raises(PySparkValueError, match=found) as refused:
        read(path, **{column: kind})
    assert "canary" not in str(refused.value)


def test_rows_beyond_what_the_file_says_of_its_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    written(path, ("id",), (1,), (2,))
    wrong = tmp_path / "wrong.xlsx"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(wrong, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("sheet1.xml"):
                content, count = re.subn(rb'<dimension ref="[^"]*"', b'<dimension ref="A1"', content)
                assert count == 1
            target.writestr(name, content)
    assert read(str(wrong), id=LongType()) == [(1,), (2,)]
