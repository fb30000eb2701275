"""Which folder the rows of a partitioned object belong in: `country=DE/day=2024-01-31/`, in the writing of Hive and Spark. Pure.

NULL is `__HIVE_DEFAULT_PARTITION__`. Characters that Hive escapes are `%` and two hexadecimal digits; any other stands as it is, for
Hive and Spark read such an escape as one character and not as a byte of UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.refusals import reasons_of, utf8
from dbt_reverse_etl.sinks.sql.values import date_text
from dbt_reverse_etl.values.arrow import is_text

MOST_FOLDERS = 10_000  # of one batch
# What a file system takes as a name, and what leaves room for the rest of a key of S3, which has 1024 bytes.
LONGEST_NAME, LONGEST_FOLDER = 255, 600
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPES = {ord(one): f"%{ord(one):02X}" for one in (*map(chr, range(32)), *"\"#%'*/:=?\\[]{^\x7f")}
_ROW = "row"


class TooManyFolders(Exception):
    """A batch would make more than `MOST_FOLDERS`."""


@dataclass(frozen=True)
class Partition:
    """Rows of a batch that stand in one folder."""

    folder: str  # as in a path, with a slash behind it; empty for an object without partitions
    values: dict[str, str | None]  # of the fields as text, or NULL
    rows: Any  # their numbers in the batch, int64


def problems(task: SinkTask, fields: Sequence[str]) -> list[Problem]:
    """Fields that cannot name folders."""
    where, names = f"sync {task.sync}: options.partition_by", task.schema.names
    found = [
        Problem(where, f"'{name}'", f"one of the fields {', '.join(names)}", "correct it")
        for name in fields
        if name not in names and task.known != "key"
    ]
    found += [
        Problem(where, f"field {name} of type {task.schema.field(name).type}",
            "a text, an integer, a boolean or a date", "cast the column in the model")
        for name in fields
        if name in names and not _has_a_name(task.schema.field(name).type)
    ]  # fmt: skip
    if len(set(fields)) < len(fields):
        found.append(Problem(where, "a field twice", "each once", "correct it"))
    if set(names) <= set(fields) and task.known != "key":
        found.append(Problem(where, "every field", "a field that stands in the files", "partition by fewer"))
    return found


def row_numbers(count: int) -> Any:
    """0, 1, 2 ... as int64."""
    return pc.indices_nonzero(pa.repeat(pa.scalar(True), count)).cast(pa.int64())


def _has_a_name(kind: pa.DataType) -> bool:
    return is_text(kind) or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind)


def partitions(rows: pa.Table, fields: Sequence[str]) -> tuple[list[Partition], dict[int, str]]:
    """The rows by folder, ordered by its name, and row -> reason of those that have none. Raises TooManyFolders."""
    numbers = row_numbers(rows.num_rows)
    if not fields:
        return [Partition("", {}, numbers)], {}
    columns, refused = {}, dict[int, str]()
    for name in fields:
        columns[name], refusals = _texts(rows.column(name).combine_chunks())
        refused |= reasons_of(name, refusals)
    groups = pa.table([*columns.values(), numbers], names=[*(f"_{name}" for name in fields), _ROW])
    groups = groups.group_by(groups.column_names[:-1], use_threads=False).aggregate([(_ROW, "list")])
    if groups.num_rows > MOST_FOLDERS:
        raise TooManyFolders
    found = []
    texts = zip(*(groups.column(f"_{name}").to_pylist() for name in fields), strict=True)
    for values, chosen in zip(texts, groups.column(f"{_ROW}_list").combine_chunks(), strict=True):
        named = dict(zip(fields, values, strict=True))
        reason = _unfit(named)
        if reason:
            refused |= dict.fromkeys(chosen.values.to_pylist(), reason)
        else:
            found.append(Partition(_folder(named), named, chosen.values))
    return sorted(found, key=lambda one: one.folder), refused


def _texts(array: Any) -> Any:
    """As `refusals.utf8`."""
    if is_text(array.type):
        return utf8(array)
    return date_text(array) if pt.is_date(array.type) else (array.cast(pa.string()), [])


def _folder(values: dict[str, str | None]) -> str:
    return "".join(f"{_name(field, value)}/" for field, value in values.items())


def _name(field: str, value: str | None) -> str:
    return f"{field.translate(_ESCAPES)}={_NULL if value is None else value.translate(_ESCAPES)}"


def _unfit(values: dict[str, str | None]) -> str | None:
    for field, value in values.items():
        if value in ("", _NULL):
            return f"field {field}: a text that names no folder, for Hive reads it as NULL"
        if len(_name(field, value).encode()) > LONGEST_NAME:
            return f"field {field}: too long for the name of a folder"
    if len(_folder(values).encode()) > LONGEST_FOLDER:
        return "the fields of partition_by: too long for a path"
    return None
