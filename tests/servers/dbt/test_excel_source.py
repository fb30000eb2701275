"""examples/excel: what stands in a sheet is read as the schema says, or refused; nothing is lost."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from pyspark.errors import PySparkValueError
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

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


WRITTEN = datetime(2023, 3, 15)
NOON = WRITTEN.replace(hour=12)
COLUMNS: dict[str, tuple[Any, ...]] = {
    "id": (3, 4.0, -1, 2**52, None),
    "name": ("x", 12, 1.5, 1.5e18, 1e-7, True, WRITTEN, None),
    "price": (1, 1.25, 0.1 + 0.2, -99999999.99, None),
    "ratio": (1, 0.5, None),
    "ok": (True, False, None),
    "day": (WRITTEN, None),
    "at": (NOON, WRITTEN, None),
}
KINDS = {
    "id": LongType(),
    "name": StringType(),
    "price": DecimalType(10, 2),
    "ratio": DoubleType(),
    "ok": BooleanType(),
    "day": DateType(),
    "at": TimestampNTZType(),
}
PYTHON = {"id": int, "name": str, "price": Decimal, "ratio": float, "ok": bool, "day": date, "at": datetime}
AS_READ: dict[str, tuple[Any, ...]] = {
    "name": ("x", "12", "1.5", "1500000000000000000", "0.0000001", "true", "2023-03-15 00:00:00", None)
}
AS_READ |= {
    "price": (Decimal(1), Decimal("1.25"), Decimal("0.3"), Decimal("-99999999.99"), None),
    "day": (date(2023, 3, 15), None),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_every_value_of_a_type_is_read_as_that_type(tmp_path: Path, column: str) -> None:
    cells = COLUMNS[column]
    path = written(tmp_path / "a.xlsx", ("n", column), *((at, cell) for at, cell in enumerate(cells)))
    found = [value for _, value in read(path, **{"n": LongType(), column: KINDS[column]})]
    assert found == [*AS_READ.get(column, cells)]
    assert {type(value) for value in found} <= {PYTHON[column], type(None)}


@pytest.mark.parametrize(
    ("column", "kind", "found"),
    [
        ("twice", StringType(), "the column twice 2 times in the first row"),
        ("other", StringType(), "the column other 0 times in the first row"),
    ],
)
def test_a_column_that_is_not_there_once_is_refused(tmp_path: Path, column: str, kind: DataType, found: str) -> None:
    path = written(tmp_path / "a.xlsx", ("id", "twice", "twice"), (3, 1, 2))
    with pytest.raises(PySparkValueError, match=found):
        read(path, **{column: kind})


CELLS = ("canary", 45000, 45000.75, 1.2345e18, True, WRITTEN, NOON)
FIT: dict[str, set[Any]] = {
    "id": {45000},
    "price": {45000, 45000.75},
    "ratio": {45000, 45000.75, 1.2345e18},
    "ok": {True},
    "day": {WRITTEN},
    "at": {WRITTEN, NOON},
}


@pytest.mark.parametrize("column", FIT)
@pytest.mark.parametrize("cell", CELLS)
def test_what_is_no_value_of_the_type_is_refused_without_its_value(tmp_path: Path, column: str, cell: Any) -> None:
    path = written(tmp_path / "a.xlsx", (column,), (cell,))
    if any(cell is one or (cell == one and not isinstance(cell, bool)) for one in FIT[column]):
        assert len(read(path, **{column: KINDS[column]})) == 1
        return
    with pytest.raises(
        PySparkValueError, match=rf"found a cell in {column} that is .*; expected .*\. Next: "
    ) as refused:
        read(path, **{column: KINDS[column]})
    assert not any(str(one) in str(refused.value) for one in CELLS if one is not True)


@pytest.mark.parametrize("price", [45000.755, 10**8, -(10.0**8)])
def test_a_number_that_a_decimal_does_not_hold_is_refused(tmp_path: Path, price: float) -> None:
    path = written(tmp_path / "a.xlsx", ("price",), (price,))
    with pytest.raises(PySparkValueError, match=r"a cell in price that is .*number.*; expected decimal\(10,2\)"):
        read(path, price=DecimalType(10, 2))


def test_a_date_in_iso_8601_is_a_date(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    written(path, ("day",), (45000,))
    iso = changed(path, rb'<c r="A2" t="n"><v>45000</v>', b'<c r="A2" t="d"><v>2023-03-15</v>')
    assert read(str(iso), day=DateType()) == [(date(2023, 3, 15),)]


@pytest.mark.parametrize("kind", [StringType(), DoubleType()])
@pytest.mark.parametrize(
    ("cell", "found"), [("#N/A", "an error of a formula in v"), ("=1+1", "a formula in v that no program has computed")]
)
def test_an_error_and_a_formula_without_a_value_are_refused(
    tmp_path: Path, kind: DataType, cell: str, found: str
) -> None:
    path = written(tmp_path / "a.xlsx", ("id", "v"), (1, cell))
    assert read(path, id=LongType()) == [(1,)], "a column that nobody asks for"
    with pytest.raises(PySparkValueError, match=found):
        read(path, v=kind)


def test_a_formula_has_the_value_that_was_computed_and_an_empty_text_is_null(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    written(path, ("id", "v"), (1, "=1+1"), (2, '=""'), (None, '=""'))
    excel_wrote = changed(path, rb"<f>1\+1</f><v ?/>", b"<f>1+1</f><v>2</v>")
    for row in (b"B3", b"B4"):
        excel_wrote = changed(excel_wrote, rb'<c r="%b"><f>' % row, b'<c r="%b" t="str"><f>' % row)
    assert read(str(excel_wrote), id=LongType(), v=StringType()) == [(1, "2"), (2, None)]


def changed(path: Path, old: bytes, new: bytes) -> Path:
    """A copy of a workbook in which this stands otherwise, once."""
    target_path = path.with_name(f"changed {path.name}")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target_path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("sheet1.xml"):
                content, count = re.subn(old, new, content)
                assert count == 1, content
            target.writestr(name, content)
    return target_path


def test_rows_beyond_what_the_file_says_of_its_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    written(path, ("id",), (1,), (2,))
    wrong = changed(path, rb'<dimension ref="[^"]*"', b'<dimension ref="A1"')
    assert read(str(wrong), id=LongType()) == [(1,), (2,)]
