"""The way back from a part to typed columns, for each format: the reverse of `parts`. Pure."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from dbt_reverse_etl.sinks.files.manifest import Part
from dbt_reverse_etl.sinks.reading import UNREADABLE, rows_of
from dbt_reverse_etl.values.arrow import is_bytes, is_text

_LINES = 10_000  # of JSON that are Python objects at once


def decoded(content: bytes, part: Part, schema: pa.Schema) -> pa.Table:
    """Fields of each row, as `reading.rows_of` gives them; a field that neither the file nor its folder tells is NULL."""
    name = part.name.rpartition("/")[2]
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    if name.endswith(".parquet"):
        return _parquet(plain, part, schema)
    if ".csv" in name:
        return rows_of(_csv_texts(plain, schema) | _of_folder(part, schema, part.rows), schema)
    pieces = _json_texts(plain, schema)
    return pa.concat_tables(rows_of(texts | _of_folder(part, schema, rows), schema) for texts, rows in pieces)


def _of_folder(part: Part, schema: pa.Schema, rows: int) -> dict[str, Any]:
    """The texts of the fields that stand in no file."""
    return {
        name: pa.repeat(pa.scalar(value, pa.string()), rows)
        for name, value in part.partition.items()
        if name in schema.names
    }


def _parquet(content: bytes, part: Part, schema: pa.Schema) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(content))
    stored = file.read(columns=[name for name in schema.names if name in file.schema_arrow.names])
    absent = pa.schema([field for field in schema if field.name not in stored.column_names])
    nulls = {name: pa.nulls(part.rows, pa.string()) for name in absent.names}
    columns, unreadable = {}, pa.repeat(pa.scalar(False), part.rows)
    if absent.names:
        rest = rows_of(nulls | _of_folder(part, absent, part.rows), absent)
        columns = dict(zip(rest.column_names, rest.columns, strict=True))
        unreadable = columns.pop(UNREADABLE).combine_chunks()
    for name in stored.column_names:
        columns[name], wrong = _cast(stored.column(name).combine_chunks(), schema.field(name).type)
        unreadable = pc.or_(unreadable, wrong)
    return pa.table([*(columns[name] for name in schema.names), unreadable], [*schema.names, UNREADABLE])


def _cast(array: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """The values, and where they are of another type that cannot become this one: all, or none."""
    try:
        return array.cast(kind), pa.repeat(pa.scalar(False), len(array))
    except pa.ArrowException:
        return pa.nulls(len(array), kind), array.is_valid()


def _csv_texts(content: bytes, schema: pa.Schema) -> dict[str, Any]:
    told = csv.ConvertOptions(
        column_types=dict.fromkeys(schema.names, pa.string()),
        include_columns=schema.names,
        include_missing_columns=True,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    whole = csv.ReadOptions(block_size=len(content) + 1)  # a row may be longer than a block
    table = csv.read_csv(pa.BufferReader(content), whole, csv.ParseOptions(newlines_in_values=True), told)
    return {field.name: _from_cells(table.column(field.name).combine_chunks(), field.type) for field in schema}


def _from_cells(cells: Any, kind: pa.DataType) -> Any:
    if not (is_text(kind) or is_bytes(kind)):
        return cells
    texts = pc.replace_substring_regex(cells, pattern="^'", replacement="")  # the guard against formulas
    return _from_values(texts.to_pylist(), kind) if is_bytes(kind) else texts


def _json_texts(content: bytes, schema: pa.Schema) -> Iterator[tuple[dict[str, Any], int]]:
    """Texts of the fields, and how many rows."""
    lines = content.split(b"\n")[:-1]
    for begin in range(0, len(lines), _LINES):
        rows = [orjson.loads(line) for line in lines[begin : begin + _LINES]]
        texts = {field.name: _from_values([row.get(field.name) for row in rows], field.type) for field in schema}
        yield texts, len(rows)


def _from_values(values: list[Any], kind: pa.DataType) -> Any:
    text = _hex if is_bytes(kind) else _text
    return pa.array([None if value is None else text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _hex(value: Any) -> str:
    """A value of before the column was binary stays what is no hexadecimal: it is marked as unreadable."""
    try:
        return base64.b64decode(value, validate=True).hex()
    except (ValueError, TypeError):
        return "no base64"
