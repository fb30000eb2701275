"""A data source of Spark for Excel: `format='excel'`, wherever Python finds this module and openpyxl.

Spark registers it by itself, because the module's name begins with `pyspark_`. Options: `path` of one .xlsx file, and `sheet` (default: the first).
The first row of the sheet names the columns. Times have no zone: `timestamp_ntz` takes them as they stand, `timestamp` as of the zone of Spark's machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NoReturn

from openpyxl import load_workbook
from pyspark.errors import PySparkValueError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

NOT_COMPUTED = "not computed"


class DefaultSource(DataSource):
    """One sheet as a table."""

    @classmethod
    def name(cls) -> str:
        """What stands behind `using`."""
        return "excel"

    def schema(self) -> StructType:
        """Where nobody gives a schema: every column that the first row names, as text."""
        names = [cell.value for cell in next(sheet(self.options), ())]
        return StructType([StructField(str(name), StringType()) for name in names if name is not None])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The sheet with the columns of the schema."""
        return SheetReader(self.options, schema)


class SheetReader(DataSourceReader):
    """Reads a sheet in one task."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  (there is one)
        """The rows below the first one.

        Raises:
            PySparkValueError: the first row does not have each column of the schema once, or a cell is no value of its column's type.
        """
        rows = sheet(self._options)
        header = [str(cell.value) for cell in next(rows, ())]
        for field in self._schema:
            if header.count(field.name) != 1:
                self._refuse(f"the column {field.name} {header.count(field.name)} times in the first row", "it once")
        columns = [(header.index(field.name), field) for field in self._schema]
        for row in rows:
            yield tuple(self._value(row[at], field) if at < len(row) else None for at, field in columns)

    def _value(self, cell: Any, field: StructField) -> Any:
        kind = field.dataType.simpleString()
        if cell.data_type == "e":
            self._refuse(f"an error of a formula in {field.name}", kind)
        if cell.data_type == NOT_COMPUTED:
            self._refuse(f"a formula in {field.name} that no program has computed", f"a {kind} that was saved with it")
        if cell.value is None:
            return None
        try:
            return value_of(cell.value, field.dataType)
        except ValueError as error:
            self._refuse(f"a cell in {field.name} that is {error}", kind)

    def _refuse(self, found: str, expected: str) -> NoReturn:
        where = self._options["path"]
        raise PySparkValueError(f"{where}: found {found}; expected {expected}. Next: correct the sheet or the schema")


def value_of(cell: Any, kind: DataType) -> Any:
    """A cell as a value of this type.

    Raises:
        ValueError: what it is instead, without its value.
    """
    if isinstance(kind, StringType):
        return text_of(cell)
    if isinstance(kind, BooleanType):
        return expected(cell, bool, "no TRUE or FALSE")
    if isinstance(kind, NumericType):
        return number_of(cell, kind)
    if not isinstance(kind, (DateType, TimestampType, TimestampNTZType)):
        raise ValueError("of a type that no sheet has")  # noqa: TRY004  (it is about the sheet, not about a program)
    if isinstance(kind, DateType) and type(cell) is date:  # as some programs write it, in ISO 8601
        return cell
    moment = expected(cell, datetime, "no date or time")
    if not isinstance(kind, DateType):
        return moment
    if moment.time() != time():
        raise ValueError("a date with a time of day")
    return moment.date()


def number_of(cell: Any, kind: NumericType) -> Any:
    """As `value_of`. Excel keeps 15 digits of a number; what a float has more is of its binary form."""
    number = expected(cell, (int, float), "no number")
    if isinstance(kind, DecimalType):
        return decimal_of(Decimal(number) if isinstance(number, int) else Decimal(f"{number:.15g}"), kind)
    if isinstance(kind, FractionalType):
        return float(number)
    if number != int(number):
        raise ValueError("a fraction")
    if isinstance(number, float) and abs(number) >= 2**53:
        raise ValueError("a number of more digits than Excel keeps")
    return int(number)


def decimal_of(number: Decimal, kind: DecimalType) -> Decimal:
    """As `value_of`: Spark would round, or fail without saying where."""
    if number != round(number, kind.scale):
        raise ValueError("a number with more decimals")
    if abs(number) >= 10 ** (kind.precision - kind.scale):
        raise ValueError("too large a number")
    return number


def expected(cell: Any, types: Any, what: str) -> Any:
    """The cell if it is of these types of Python, where TRUE is an int as well."""
    if not isinstance(cell, types) or (isinstance(cell, bool) and types is not bool):
        raise ValueError(what)
    return cell


def text_of(cell: Any) -> str:
    """Numbers in full, as no exponent is meant."""
    if isinstance(cell, bool):
        return str(cell).lower()
    return format(Decimal(str(cell)), "f") if isinstance(cell, float) else str(cell)


def sheet(options: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """The cells of each row of the sheet, the values of formulas as Excel last computed them; rows without any are left out."""
    with opened(options, data_only=True) as values, opened(options, data_only=False) as formulas:
        for row, as_written in zip(values, formulas, strict=True):
            cells = tuple(map(computed, row, as_written))
            if any(cell.value is not None or cell.data_type == NOT_COMPUTED for cell in cells):
                yield cells


@contextmanager
def opened(options: Mapping[str, str], *, data_only: bool) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The rows of the sheet, with values or with formulas."""
    path = re.sub(r"^file:(//)?(?=/)", "", options["path"])
    with closing(load_workbook(path, read_only=True, data_only=data_only)) as workbook:
        rows = workbook[options["sheet"]] if "sheet" in options else workbook.worksheets[0]
        rows.reset_dimensions()  # what a file says of its size may be wrong, and rows beyond it would be lost
        yield rows.iter_rows()


def computed(cell: Any, as_written: Any) -> Any:
    """The cell; a formula without a value is marked. One that gives an empty text has the type of a text."""
    if as_written.data_type == "f" and cell.value is None and cell.data_type == "n":
        return SimpleNamespace(value=None, data_type=NOT_COMPUTED)
    return cell
