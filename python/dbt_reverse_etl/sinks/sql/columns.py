"""The rows of a batch in the values of a database, but for those that it cannot hold exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION
from dbt_reverse_etl.sinks.refusals import null_keys, positions, reasons_of
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.table import Column
from dbt_reverse_etl.values.encoding import encode_values


@dataclass(frozen=True)
class Columns:
    """The rows of a batch in the values of a database.

    Attributes:
        fields: the values of each field. What is refused is NULL.
        deleted: whether a row is a delete, as a boolean array.
        kept: places of the rows to apply.
        refused: place -> reason.
    """

    fields: Mapping[str, Any]
    deleted: Any
    kept: Sequence[int]
    refused: dict[int, str]

    @property
    def is_whole(self) -> bool:
        """Whether every row is kept."""
        return len(self.kept) == len(self.deleted)

    def without(self, refused: Mapping[int, str]) -> Columns:
        """The same, but for these rows."""
        kept = [row for row in self.kept if row not in refused]
        return replace(self, kept=kept, refused={**self.refused, **refused})


@dataclass(frozen=True)
class Changes:
    """One batch, ready to be written.

    Attributes:
        rows: rows of the batch; the places of those in `data` are below it.
        data: the rows in the form of the database.
        writes, deletes: how many rows of each kind are in it.
        refused: place -> reason, for rows that are not in it.
    """

    rows: int
    data: Any
    writes: int
    deletes: int
    refused: dict[int, str]


def columns_of(
    batch: pa.Table, columns: Mapping[str, Column], key: Sequence[str], dialect: Dialect, deletes: str | None
) -> Columns:
    """Convert one batch; rows with a value that its column cannot hold exactly are refused, and all deletes if `deletes` says why.

    `columns`: field -> its column, in the order of the fields.
    """
    deleted = pc.equal(batch.column(OPERATION).combine_chunks(), "delete")
    gone = frozenset(positions(deleted))
    refused: dict[int, str] = dict.fromkeys(gone, deletes) if deletes else {}
    absent: set[int] = set()  # deletes of keys that the table cannot hold: nothing to do
    fields = {}
    for name, column in columns.items():
        fields[name], wrong, unfit = _written(name, batch.column(name).combine_chunks(), column, dialect)
        unheld = wrong | unfit
        if name in key:
            absent |= gone & unheld.keys()
        refused |= {row: reason for row, reason in unheld.items() if row not in gone}
    refused |= null_keys(batch, key)
    out = refused.keys() | absent
    kept = [row for row in range(batch.num_rows) if row not in out] if out else range(batch.num_rows)
    return Columns(fields, deleted, kept, refused)


def _written(name: str, array: Any, column: Column, dialect: Dialect) -> tuple[Any, dict[int, str], dict[int, str]]:
    """The values of a field, the rows with values that the database cannot hold, and those that the column cannot."""
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = pa.array([None if row == b"null" else row for row in encoded.rows], pa.large_binary())
        written, wrong = texts.cast(pa.large_string()), encoded.rejected
    else:
        written, refusals = dialect.converted(array, column)
        wrong = reasons_of(name, refusals)
    return written, wrong, reasons_of(name, dialect.unfit(array, written, column))
