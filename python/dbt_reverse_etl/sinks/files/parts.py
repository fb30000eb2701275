"""From the rows of a batch to the contents of its parts, one for each partition. Pure but for names and times."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch
from dbt_reverse_etl.sinks.files.csv import csv_part
from dbt_reverse_etl.sinks.files.manifest import Part
from dbt_reverse_etl.sinks.files.partitions import Partition, partitions, row_numbers
from dbt_reverse_etl.sinks.files.settings import FilesOptions, FilesSettings
from dbt_reverse_etl.values.encoding import NOT_UTF8, encode_lines

_NAME = re.compile(r"([^/]+=[^/]*/)*\d{10}-[A-Za-z0-9_-]+-[0-9a-f]{12}\.((jsonl|csv)(\.gz)?|parquet)")


def encoded(
    batch: Batch, refused: Mapping[int, str], fence: int, settings: FilesSettings, options: FilesOptions
) -> tuple[list[tuple[Part, bytes]], dict[int, str]]:
    """The parts of a batch, each with its content, and row -> reason of the rows that are in none, as of `refused`. Raises TooManyFolders."""
    found, wrong = partitions(batch.rows, options.partition_by)
    refused = {**wrong, **refused}
    contents = []
    for one in found:
        content, rows, bad = _content(batch.rows, one, refused, settings, options)
        refused |= bad
        if content:
            counts = pc.value_counts(rows.column(OPERATION).combine_chunks()).to_pylist()  # the rows need not stay
            contents.append((one, rows.num_rows, counts, content))
    sent = batch.rows.column(EVENT_ID).take(_without(row_numbers(batch.rows.num_rows), refused))
    events = hashlib.sha256("\n".join(sent.to_pylist()).encode()).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9_-]", "", batch.claim)[:64] or "claim"
    pieces = []
    for partition, rows, counts, content in contents:
        part = Part(
            name=f"{partition.folder}{fence:010d}-{plain}-{uuid4().hex[:12]}.{settings.extension}",
            partition=partition.values,
            rows=rows,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            fence=fence,
            claim=batch.claim,
            events=events,
            operations={entry["values"]: entry["counts"] for entry in counts},
            written=datetime.now(timezone.utc),
        )
        pieces.append((part, content))
    return pieces, refused


def is_part(name: str) -> bool:
    """Whether a file has the name of a part."""
    return _NAME.fullmatch(name) is not None


def _content(
    rows: pa.Table, partition: Partition, refused: Mapping[int, str], settings: FilesSettings, options: FilesOptions
) -> tuple[bytes, pa.Table, dict[int, str]]:
    """The file (empty without rows), the rows in it, and row of the batch -> reason of those that have no exact form."""
    numbers = _without(partition.rows, refused)
    chosen = rows if len(numbers) == rows.num_rows else rows.take(numbers)
    table, bad = chosen.drop_columns(list(partition.values)), dict[int, str]()
    if settings.format == "parquet":
        bad = _not_utf8(table)
        table = table.take(_without(row_numbers(table.num_rows), bad)) if bad else table
        content = _parquet(table, settings.codec) if table.num_rows else b""
    elif settings.format == "csv":
        content, bad = csv_part(table, options.nan)
    else:
        content, bad = encode_lines(table, nan=options.nan)
    if content and settings.extension.endswith(".gz"):
        content = gzip.compress(content, 6, mtime=0)  # Python's own 9 takes twice as long for 2 to 6 % less
    kept = chosen.take(_without(row_numbers(chosen.num_rows), bad)) if bad else chosen
    return content, kept, {numbers[row].as_py(): reason for row, reason in bad.items()}


def _without(numbers: pa.Array, refused: Mapping[int, str]) -> pa.Array:
    """Row numbers but for the refused ones."""
    if not refused:
        return numbers
    return numbers.filter(pc.invert(pc.is_in(numbers, pa.array(list(refused), pa.int64()))))


def _parquet(rows: pa.Table, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression=codec)
    return bytes(sink.getvalue())


def _not_utf8(rows: pa.Table) -> dict[int, str]:
    """Row -> reason where a text, however deep, is not UTF-8: one such value makes the whole file unreadable."""
    bad: dict[int, str] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if _is_valid(column):
            continue
        wrong = [row for row in range(rows.num_rows) if row not in bad and not _is_valid(column.take(pa.array([row])))]
        bad |= dict.fromkeys(wrong, f"field {name}: {NOT_UTF8}")
    return bad


def _is_valid(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
