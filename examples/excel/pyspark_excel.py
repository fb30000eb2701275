"""A data source of Spark for Excel: `format='excel'`, wherever Python finds this module and openpyxl.

Spark registers it by itself, because the module's name begins with `pyspark_`. Options: `path` of one .xlsx file, and `sheet` (default: the first).
The first row of the sheet names the columns. Times have no zone: `timestamp_ntz` takes them as they stand, `timestamp` as of the zone of Spark's machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any, NoReturn

from openpyxl import load_workbook
from pyspark.errors import PySparkValueError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType, StructField, StructType


class DefaultSource(DataSource):
    """One sheet as a table."""

    @classmethod
    def name(cls) -> str:
        """What stands behind `using`."""
        return "excel"

    def schema(self) -> StructType:
        """Where nobody gives a schema: every column that the first row names, as text."""
        names = next(sheet(self.options), ())
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
            PySparkValueError: a column of the schema does not stand in the first row exactly once, or a cell does not fit its type.
        """
        rows = sheet(self._options)
        header = [str(name) for name in next(rows, ())]
        for field in self._schema:
            if header.count(field.name) != 1:
                self._refuse(f"the column {field.name} {header.count(field.name)} times in the first row", "it once")
        columns = [(header.index(field.name), field) for field in self._schema]
        for row in rows:
            yield tuple(self._value(row[at] if at < len(row) else None, field) for at, field in columns)

    def _value(self, cell: Any, field: StructField) -> Any:
        kind: DataType = field.dataType
        if cell is None:
            return None
        if isinstance(kind, StringType):
            return str(cell).lower() if isinstance(cell, bool) else str(cell)
        if isinstance(kind, (IntegralType, DecimalType)) and not isinstance(cell, (int, float)):
            self._refuse(f"a cell in {field.name} that is no number", kind.simpleString())
        if isinstance(kind, DecimalType):
            return Decimal(str(cell))
        if isinstance(kind, IntegralType) and cell != int(cell):
            self._refuse(f"a fraction in {field.name}", kind.simpleString())
        if isinstance(kind, IntegralType):
            return int(cell)
        return cell

    def _refuse(self, found: str, expected: str) -> NoReturn:
        where = self._options["path"]
        raise PySparkValueError(f"{where}: found {found}; expected {expected}. Next: correct the sheet or the schema")


def sheet(options: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """The rows of the sheet, the values of formulas as Excel last computed them; rows without any value are left out."""
    path = re.sub(r"^file:(//)?(?=/)", "", options["path"])
    with closing(load_workbook(path, read_only=True, data_only=True)) as workbook:
        rows = workbook[options["sheet"]] if "sheet" in options else workbook.worksheets[0]
        rows.reset_dimensions()  # what a file says of its size may be wrong, and rows beyond it would be lost
        yield from (row for row in rows.iter_rows(values_only=True) if any(value is not None for value in row))
