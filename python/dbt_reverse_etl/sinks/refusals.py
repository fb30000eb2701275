"""What sinks refuse, in which words: a sync whose fields cannot arrive, a run, and single rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import OPERATION, Mode, SinkTask
from dbt_reverse_etl.values.arrow import not_utf8
from dbt_reverse_etl.values.encoding import NOT_UTF8, encode_rows

LOST_RECORD = "the destination lost its record of this sync"
OTHER_RUN = "another run holds this sync"
NEVER_DELETES = "this mode never deletes"
NO_ROW = "no row to update"
NULL_KEY = "NULL in a key field"

Refusal = tuple[Any, str]  # boolean Arrow array (true: refused), reason
Converted = tuple[Any, list[Refusal]]  # Arrow array without the refused values, refusals


def unmapped_key(task: SinkTask) -> list[Problem]:
    """A key that is empty or not among the fields."""
    names = list(task.schema.names)
    if task.key and set(task.key) <= set(names):
        return []
    return [Problem(f"sync {task.sync}, key", str(list(task.key)), f"fields among {names}", "map the key columns")]


def positions(mask: Any) -> list[int]:
    """Where a boolean array is true."""
    if not pc.any(mask).as_py():
        return []
    indices: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return indices


def without(array: Any, mask: Any) -> Any:
    """The array with NULL where the mask is true, so that what is refused cannot break the conversion of the rest."""
    return pc.if_else(mask, pa.scalar(None, array.type), array) if pc.any(mask).as_py() else array


def utf8(array: Any) -> Converted:
    """Texts; what is not UTF-8 is refused."""
    damaged = not_utf8(array)
    return (array, []) if damaged is None else (without(array, damaged), [(damaged, NOT_UTF8)])


def reasons_of(name: str, refusals: Iterable[Refusal]) -> dict[int, str]:
    """Row -> reason of each value of a field that is refused."""
    return {row: f"field {name}: {reason}" for mask, reason in refusals for row in positions(mask)}


def null_keys(batch: pa.Table, key: Sequence[str]) -> dict[int, str]:
    """Row -> reason of each row with NULL in its key."""
    found: dict[int, str] = {}
    for name in key:
        found |= reasons_of(name, [(batch.column(name).combine_chunks().is_null(), NULL_KEY)])
    return found


def nan_keys(rows: pa.Table, key: Sequence[str], *, as_null: bool) -> dict[int, str]:
    """Row -> reason of each row with NaN or Infinity in its key; written as null, it would have the key of other rows."""
    return encode_rows(rows.select(key)).rejected if as_null else {}


def deleted_rows(rows: pa.Table) -> list[int]:
    """Positions of the deletes."""
    return positions(pc.equal(rows.column(OPERATION).combine_chunks(), "delete"))


def refused_deletes(rows: pa.Table, mode: Mode) -> dict[int, str]:
    """Row -> reason of each delete, in a mode that has none."""
    return {} if mode.deletes else dict.fromkeys(deleted_rows(rows), NEVER_DELETES)


def rejections(refused: Mapping[int, str]) -> Delivery:
    """Every row was delivered but the refused ones, and those that the table does not have."""
    outcomes = {NO_ROW: Outcome.NO_MATCH}
    reasons = ((row, refused[row]) for row in sorted(refused))
    return Delivery(tuple(RowResult(row, outcomes.get(why, Outcome.REJECTED), why) for row, why in reasons))
