"""A data source of Spark for Excel: `format='excel'`, wherever Python finds this module and openpyxl.

Spark registers it by itself, because the module's name begins with `pyspark_`. Options: `path` of one .xlsx file, and `sheet` (default: the first).
The first row of the sheet names the columns; a column of the schema that it does not name is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import unquote, urlsplit

from openpyxl import load_workbook
from pyspark.errors import PySparkValueError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType


class DefaultSource(DataSource):
    """One sheet as a table."""

    @classmethod
    def name(cls) -> str:
        """What stands behind `using`."""
        return "excel"

    def schema(self) -> StructType:
        """Where nobody gives a schema: every column of the first row, as text."""
        names = next(sheet(self.options), ())
        return StructType([StructField(str(name), StringType()) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The sheet with the columns of the schema."""
        return SheetReader(self.options, schema)


class SheetReader(DataSourceReader):
    """Reads a sheet in one task."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  (there is one)
        """The rows below the first one."""
        rows = sheet(self._options)
        header = [str(name) for name in next(rows, ())]
        missing = [field.name for field in self._schema if field.name not in header]
        if missing:
            raise PySparkValueError(
                f"{self._options['path']}: found no column {', '.join(missing)} in the first row; "
                f"expected one for each of the schema. Next: correct the sheet or the schema"
            )
        fields = [(header.index(field.name), isinstance(field.dataType, StringType)) for field in self._schema]
        for row in rows:
            yield tuple(text(row[place]) if is_text else row[place] for place, is_text in fields)


def sheet(options: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    """The rows of the sheet, the values of formulas as Excel last computed them; rows without any value are left out."""
    path = unquote(urlsplit(options["path"]).path)
    with closing(load_workbook(path, read_only=True, data_only=True)) as workbook:
        rows = workbook[options["sheet"]] if "sheet" in options else workbook.worksheets[0]
        yield from (row for row in rows.iter_rows(values_only=True) if any(value is not None for value in row))


def text(value: Any) -> str | None:
    """A cell in a column of strings."""
    return None if value is None else str(value)
