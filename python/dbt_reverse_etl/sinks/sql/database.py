"""What the sinks of relational databases share: words, problems, the names of our tables, exact values of Arrow columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.values.arrow import FIRST_SECOND, LAST_SECOND, PER_SECOND, not_utf8
from dbt_reverse_etl.values.encoding import NOT_UTF8, TOO_FINE

OURS = "_dbt_reverse_etl_"
FENCES, CLAIMS = f"{OURS}fences", f"{OURS}claims"
OTHER_RUN = "another run holds this sync"
RESYNC = "restore the database, or dbt run-operation resync for this sync"
LOST_RECORD = "the destination lost its record of this sync"
NEVER_DELETES = "this mode never deletes"
IGNORED = "the table ignored the row (a trigger?)"
NO_ROW = "no row to update"
OTHER_SPELLING = "the table has or shows this key in another spelling"

FIRST_DAY, LAST_DAY = -719_162, 2_932_896

YEAR = "a year outside 1 to 9999"
NULL_KEY = "NULL in a key field"

Refusal = tuple[Any, str]  # boolean Arrow array (true: refused), reason
Converted = tuple[Any, list[Refusal]]  # Arrow array without the refused values, refusals
Convert = Callable[[Any], Converted]


class RolledBack(Exception):
    """The table, or another session that moved its rows, ended the transaction, so nothing of the batch is applied."""

    def __init__(self, reason: str, outcome: Outcome = Outcome.REJECTED) -> None:
        super().__init__(reason)
        self.outcome = outcome


def beside(name: str, use: str, longest: int) -> str:
    """The name of a table of ours that belongs to an object: with a digest where it would be longer than so many bytes."""
    whole = f"{OURS}{use}_{name}"
    if len(whole.encode()) <= longest:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return whole.encode()[: longest - 9].decode(errors="ignore") + f"_{digest}"


def fence_not_taken(task: SinkTask, lost: str, fence: int | None, fences: object) -> tuple[str, str, str]:
    """What was found, what was expected and what to do, where the record of the destination does not let this run begin."""
    if lost == LOST_RECORD:
        return lost, f"the row of sync {task.sync} in {fences}", RESYNC
    next_step = f"let it finish; if the ledger was reset, remove the row of {task.sync_id} from {fences}"
    return f"{lost} (fence {fence})", f"none newer than {task.fence}", next_step


def no_full_load(task: SinkTask, soft_delete: str | None) -> list[Problem]:
    """What a full load would do against the user's word."""
    if not task.full_load or (task.mode in (Mode.MIRROR, Mode.UPSERT) and soft_delete is None):
        return []
    found = f"mode {task.mode.value}" + (f" with soft_delete: {soft_delete}" if soft_delete else "")
    expected = "mirror or upsert without soft_delete, where all rows may be replaced"
    return [Problem(f"sync {task.sync}, full load", found, expected, "set owns_object: false")]


def unmapped_key(task: SinkTask) -> list[Problem]:
    """A key that is empty or not among the fields."""
    names = list(task.schema.names)
    if task.key and set(task.key) <= set(names):
        return []
    return [Problem(f"sync {task.sync}, key", str(list(task.key)), f"fields among {names}", "map the key columns")]


def inexact_types(task: SinkTask, database: str, is_supported: Callable[[pa.DataType], bool]) -> list[Problem]:
    """Fields of a type without an exact form."""
    expected, next_step = f"a type that {database} can hold exactly", "cast the column in the model"
    return [
        Problem(f"sync {task.sync}, field {field.name}", f"the type {field.type}", expected, next_step)
        for field in task.schema
        if not is_supported(field.type)
    ]


def unfilled_column(where: str, column: str) -> Problem:
    """A column without which no row can be inserted."""
    return Problem(
        where,
        f"column {column} is NOT NULL, has no default and is not mapped",
        "a field for each column that a new row must have",
        f"map a column to {column}, or give it a default",
    )


def one_array(column: pa.ChunkedArray) -> Any:
    """A column in one piece."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def positions(mask: Any) -> list[int]:
    """Where a boolean array is true."""
    if not pc.any(mask).as_py():
        return []
    indices: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return indices


def without(array: Any, mask: Any) -> Any:
    """The array with NULL where the mask is true, so that what is refused cannot break the conversion of the rest."""
    return pc.if_else(mask, pa.scalar(None, array.type), array) if pc.any(mask).as_py() else array


def reasons_of(name: str, refusals: Iterable[Refusal]) -> dict[int, str]:
    """Row -> reason of each value of a field that is refused."""
    return {row: f"field {name}: {reason}" for mask, reason in refusals for row in positions(mask)}


def null_keys(batch: pa.Table, key: Sequence[str]) -> dict[int, str]:
    """Row -> reason of each row with NULL in its key."""
    found: dict[int, str] = {}
    for name in key:
        found |= reasons_of(name, [(one_array(batch.column(name)).is_null(), NULL_KEY)])
    return found


def rejections(refused: Mapping[int, str]) -> Delivery:
    """Every row was delivered but the refused ones, and those that the table does not have."""
    outcomes = {NO_ROW: Outcome.NO_MATCH}
    reasons = ((row, refused[row]) for row in sorted(refused))
    return Delivery(tuple(RowResult(row, outcomes.get(why, Outcome.REJECTED), why) for row, why in reasons))


def cast_to(target: pa.DataType) -> Convert:
    """A conversion that refuses nothing."""
    return lambda array: (array.cast(target), [])


def utf8(array: Any) -> Converted:
    """Texts; what is not UTF-8 is refused."""
    damaged = not_utf8(array)
    return (array, []) if damaged is None else (without(array, damaged), [(damaged, NOT_UTF8)])


def decimal_text(array: Any) -> Converted:
    """Decimals as text with all digits, never an exponent."""
    text = array.cast(pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():  # Arrow writes small values as 1E-8
        plain = [value if value is None else format(Decimal(value), "f") for value in text.to_pylist()]
        text = pa.array(plain, pa.string())
    return text, []


def timestamp_micros(array: Any) -> Converted:
    """Timestamps as int64 microseconds since 1970, in UTC where they have a zone."""
    unit, ticks = array.type.unit, array.cast(pa.int64())
    if unit == "ns":  # int64 nanoseconds end in the year 2262: only the precision can be wrong
        return whole_micros(ticks)
    first, last = FIRST_SECOND * PER_SECOND[unit], (LAST_SECOND + 1) * PER_SECOND[unit] - 1
    outside = _outside(ticks, first, last)
    return pc.multiply(without(ticks, outside), 10**6 // PER_SECOND[unit]), [(outside, YEAR)]


def whole_micros(nanos: Any) -> Converted:
    """int64 nanoseconds as microseconds."""
    micros = pc.divide(nanos, 1000)
    return micros, [(pc.not_equal(pc.multiply(micros, 1000), nanos), TOO_FINE)]


def date_days(array: Any) -> Converted:
    """Dates as int32 days since 1970."""
    days = array.cast(pa.date32(), safe=False).cast(pa.int32())
    outside = _outside(days, FIRST_DAY, LAST_DAY)
    return without(days, outside), [(outside, YEAR)]


def time_micros(array: Any) -> Converted:
    """Times of day as int64 microseconds."""
    if array.type == pa.time64("ns"):
        return whole_micros(array.cast(pa.int64()))
    return array.cast(pa.time64("us")).cast(pa.int64()), []


def timestamp_text(array: Any) -> Converted:
    """`2024-01-31 10:00:00.000000`."""
    micros, refusals = timestamp_micros(array)
    return micros.cast(pa.timestamp("us")).cast(pa.string()), refusals


def date_text(array: Any) -> Converted:
    """`2024-01-31`."""
    days, refusals = date_days(array)
    return days.cast(pa.date32()).cast(pa.string()), refusals


def time_text(array: Any) -> Converted:
    """`10:00:00.000000`."""
    micros, refusals = time_micros(array)
    return micros.cast(pa.time64("us")).cast(pa.string()), refusals


def _outside(ticks: Any, first: int, last: int) -> Any:
    bounds = pa.scalar(first, ticks.type), pa.scalar(last, ticks.type)
    return pc.or_(pc.less(ticks, bounds[0]), pc.greater(ticks, bounds[1]))
