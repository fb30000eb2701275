"""A consumer of the files sink that knows only the manifest and the formats."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dbt_reverse_etl.testing import Row

Read = Callable[[str], bytes]


def in_folder(folder: Path) -> Read:
    """Reads the files of an object on this machine."""
    return lambda name: (folder / name).read_bytes()


def listed(read: Read) -> list[Row]:
    """Every change of every listed part, each part checked against its entry."""
    return listed_in(json.loads(read("manifest.json")), read)


def listed_in(manifest: Row, read: Read) -> list[Row]:
    """As `listed`, by a manifest that was read before."""
    rows: list[Row] = []
    for part in manifest["parts"]:
        content = read(part["name"])
        assert (len(content), hashlib.sha256(content).hexdigest()) == (part["bytes"], part["sha256"])
        changes = changes_in(part["name"], content)
        assert len(changes) == part["rows"] == sum(part["operations"].values())
        rows += [
            {**change, **{name: as_number(text) for name, text in part["partition"].items()}} for change in changes
        ]
    return rows


def as_number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() and str(int(text)) == text else text


def changes_in(name: str, content: bytes) -> list[Row]:
    if name.endswith(".parquet"):
        return pq.read_table(io.BytesIO(content)).to_pylist()  # type: ignore[no-any-return]
    text = gzip.decompress(content) if name.endswith(".gz") else content
    return csv_rows(text) if ".csv" in name else [json.loads(line) for line in text.splitlines()]


def csv_rows(content: bytes) -> list[Row]:
    """Texts and NULLs, as Arrow's reader sees them; the guard's apostrophe is taken away."""
    names = next(csv.reader(io.StringIO(content.decode())))
    told = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(io.BytesIO(content), parse_options=parsing, convert_options=told)
    return [{name: text and text.removeprefix("'") for name, text in row.items()} for row in table.to_pylist()]


def typed(row: Row, schema: pa.Schema) -> Row:
    """A row of CSV with the values that its texts stand for."""
    return {field.name: None if row[field.name] is None else _value(field.type, row[field.name]) for field in schema}


def _value(kind: pa.DataType, text: str) -> Any:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        return json.loads(text)
    return float(text) if pa.types.is_floating(kind) else text


def state(changes: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """The object after all changes, applied by key in their order."""
    rows: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        fields = {name: value for name, value in change.items() if name not in ("_operation", "_event_id")}
        identity = tuple(change[name] for name in key)
        rows.pop(identity, None)
        if change["_operation"] != "delete":
            rows[identity] = fields
    return list(rows.values())
