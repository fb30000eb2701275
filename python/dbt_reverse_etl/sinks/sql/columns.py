"""The rows of a batch in the values of a database, but for those that it cannot hold exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.sinks.base import OPERATION, SinkTask
from dbt_reverse_etl.sinks.refusals import null_keys, positions, reasons_of, refused_deletes
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.table import Column
from dbt_reverse_etl.values.encoding import encode_values


@dataclass(frozen=True)
class Changes:
    """The rows of a batch in the values of a database.

    Attributes:
        fields: the values of each field. What is refused is NULL.
        deleted: whether a row is a delete, as a boolean array.
        kept: places of the rows to apply.
        refused: place -> reason.
        data: the rows to apply in the form of the database, which then takes the place of the fields.
    """

    fields: Mapping[str, Any]
    deleted: Any
    kept: Sequence[int]
    refused: dict[int, str]
    data: Any = None

    @property
    def places(self) -> pa.Array:
        """Of all rows."""
        return pa.array(range(len(self.deleted)), pa.int32())

    @cached_property
    def deletes(self) -> int:
        """How many deletes are to be applied."""
        return int(self.applied(self.deleted).true_count)

    @property
    def writes(self) -> int:
        """How many other rows are to be applied."""
        return len(self.kept) - self.deletes

    def applied(self, rows: Any) -> Any:
        """Those of all rows that are to be applied."""
        is_whole = len(self.kept) == len(self.deleted)
        return rows if is_whole else rows.take(pa.array(self.kept, pa.int64()))

    def without(self, refused: Mapping[int, str]) -> Changes:
        """The same, but for these rows."""
        kept = [row for row in self.kept if row not in refused]
        return replace(self, kept=kept, refused={**self.refused, **refused})


def columns_of(batch: pa.Table, columns: Mapping[str, Column], task: SinkTask, dialect: Dialect) -> Changes:
    """Convert one batch; rows with a value that its column cannot hold exactly are refused, and deletes in a mode that has none.

    `columns`: field -> its column, in the order of the fields.
    """
    deleted = pc.equal(batch.column(OPERATION).combine_chunks(), "delete")
    gone, refused = frozenset(positions(deleted)), refused_deletes(batch, task.mode)
    absent: set[int] = set()  # deletes of keys that the table cannot hold: nothing to do
    fields = {}
    for name, column in columns.items():
        fields[name], unheld = _written(name, batch.column(name).combine_chunks(), column, dialect)
        if name in task.key:
            absent |= gone & unheld.keys()
        refused |= {row: reason for row, reason in unheld.items() if row not in gone}
    refused |= null_keys(batch, task.key)
    out = refused.keys() | absent
    kept = [row for row in range(batch.num_rows) if row not in out] if out else range(batch.num_rows)
    return Changes(fields, deleted, kept, refused)


def _written(name: str, array: Any, column: Column, dialect: Dialect) -> tuple[Any, dict[int, str]]:
    """The values of a field, and the reason of each row with one that the database or the column cannot hold."""
    if pt.is_nested(array.type):
        encoded = encode_values(array, name=name)
        texts = pa.array([None if row == b"null" else row for row in encoded.rows], pa.large_binary())
        written, wrong = texts.cast(pa.large_string()), encoded.rejected
    else:
        written, refusals = dialect.converted(array, column)
        wrong = reasons_of(name, refusals)
    return written, wrong | reasons_of(name, dialect.unfit(array, written, column))
