"""Rows, batches and histories for the tests of a sink."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import BEFORE, CAPTURED_AT, EVENT_ID, OPERATION, SNAPSHOT, Batch, Sink, SinkTask

Row = dict[str, Any]
Change = tuple[str, Row]  # operation, fields
AnySink = TypeVar("AnySink", bound=Sink)

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
_UTC = timezone.utc
SNAPSHOT_ID, CAPTURED = 7, datetime(2024, 2, 29, 12, 30, 0, 123456, _UTC)

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    "float32": (pa.float32(), [0.5, -1.25]),
    "float64": (pa.float64(), [0.1, -1.7976931348623157e308, 5e-324]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "NULL", 'O\'Neil "x"; drop table t', "a\0b", "zwölf 😀", "\u2028\r\n\t\\"]),
    "binary": (pa.binary(), [b"", bytes(range(256))]),
    "decimal": (pa.decimal128(38, 10), [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10"), Decimal(0)]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "instant": (
        pa.timestamp("us", "Europe/Berlin"),
        [datetime(1969, 12, 31, 23, 59, 59, 1, _UTC), datetime(2024, 2, 29, 12, tzinfo=_UTC)],
    ),
    "local": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "list": (pa.list_(pa.int64()), [[], [1, None, 2**53 + 1]]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("k", 1)]]),
}


def batch_of(  # noqa: PLR0913  (those by name have defaults)
    task: SinkTask,
    changes: Sequence[Change],
    claim: str = "claim-1",
    *,
    last: bool = True,
    left_out: int = 0,
    extra: Sequence[str] = (),
    before: Sequence[Row | None] = (),
    state: int = 0,
) -> Batch:
    """A batch as the engine makes it: a field that a change does not name is NULL.

    Args:
        extra: the `extra_columns` of the sink; the snapshot is `SNAPSHOT_ID`, captured at `CAPTURED`.
        before: the row that the destination holds, for each change; none: unknown.
        state: number of the state to which the changes lead: the same change is another event in another one.
    """
    events = [hashlib.sha256(repr((task.sync_id, state, *change)).encode()).hexdigest() for change in changes]
    columns: dict[str, Any] = {
        OPERATION: pa.array([operation for operation, _ in changes], pa.string()),
        EVENT_ID: pa.array(events, pa.string()),
    }
    ours = {
        SNAPSHOT: pa.array([SNAPSHOT_ID] * len(changes), pa.int64()),
        CAPTURED_AT: pa.array([CAPTURED] * len(changes), pa.timestamp("us", "UTC")),
        BEFORE: pa.array(before or [None] * len(changes), pa.struct(list(task.schema))),
    }
    columns |= {name: ours[name] for name in extra}
    for column in task.schema:
        columns[column.name] = pa.array([row.get(column.name) for _, row in changes], column.type)
    return Batch(pa.table(columns), claim, last=last, left_out=left_out)


@contextmanager
def opened(sink: AnySink, task: SinkTask) -> Iterator[AnySink]:
    """A sink in the state in which the engine delivers."""
    with closing(sink):
        sink.check()
        sink.validate(task)
        sink.open(task)
        yield sink


def outcomes(delivery: Delivery, rows: int) -> list[Outcome]:
    """The outcome of each row; fails where the sink breaks the rules of its answer."""
    wrong = delivery.violation(rows)
    assert wrong is None, wrong
    by_index = {result.index: result.outcome for result in delivery.results}
    return [by_index.get(index, Outcome.DELIVERED) for index in range(rows)]


def person(number: int, name: str = "Ada", score: float | None = 1.5) -> Row:
    """A row of `PEOPLE`."""
    return {"id": number, "name": name, "score": score}


def deliver(  # noqa: PLR0913  (those by name have defaults)
    sink: Sink,
    task: SinkTask,
    changes: Sequence[Change],
    claim: str = "claim-1",
    *,
    last: bool = True,
    state: int = 0,
    apart: bool = False,
) -> list[Outcome]:
    """Deliver one batch, or as many as the sink's limit of rows makes of it; the outcome of each row.

    Args:
        apart: rows of a batch that is refused as one are sent alone, as the engine does in the end.
    """
    most, found = sink.limits(task).rows, list[Outcome]()
    for start in range(0, max(1, len(changes)), most):
        rows, is_end = changes[start : start + most], start + most >= len(changes)
        extra = sink.extra_columns(task)
        delivery = sink.deliver(batch_of(task, rows, claim, last=last and is_end, extra=extra, state=state))
        answers = outcomes(delivery, len(rows))
        if apart and delivery.refused_whole and len(rows) > 1:
            answers = [answer for row in rows for answer in deliver(sink, task, [row])]
        found += answers
    return found


def next_run(task: SinkTask, fence: int = 2) -> SinkTask:
    """The task as a later run of the same sync has it."""
    return replace(task, fence=fence, first=False)


def changes_to(model: dict[int, Row], state: dict[int, Row | None], *, deletes: bool) -> list[Change]:
    """The changes that lead to a state; `model` is moved along. None: the row is deleted."""
    changes: list[Change] = []
    for key, fields in state.items():
        if fields is not None:
            changes.append(("update" if key in model else "insert", {"id": key, **fields}))
            model[key] = {"id": key, **fields}
        elif deletes:
            changes.append(("delete", {"id": key}))
            model.pop(key, None)
    return changes
