"""Rows as messages. Without a broker."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import pytest

from dbt_reverse_etl.sinks.base import BEFORE, CAPTURED_AT, SNAPSHOT, Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.messages import entries_of, json_of
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.testing import PEOPLE, Change, batch_of, person

NAN = float("nan")


def made(change: Change, before: dict[str, Any], nan: Literal["reject", "null"]) -> Any:
    """The event of a change, or why there is none."""
    options = KafkaOptions(partitions=1, nan=nan)
    task = SinkTask("5c", "people", 1, "people", Mode.CHANGELOG, ("id",), PEOPLE, options=options)
    rows = batch_of(task, [change], extra=(SNAPSHOT, CAPTURED_AT, BEFORE), before=[before]).rows
    (entry,) = entries_of(rows, task, options, json_of(options, task.mode))
    if isinstance(entry, str):
        return entry
    assert entry[1] is not None
    return orjson.loads(entry[1])


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("change", [("update", person(1)), ("delete", {"id": 1})], ids=["update", "delete"])
def test_a_row_that_was_delivered_with_null_for_nan_changes_also_where_nan_is_refused_now(change: Change) -> None:
    event = made(change, person(1, score=NAN), "reject")
    assert event["before"] == person(1, score=None)
    assert event["after"] == (person(1) if change[0] == "update" else None)
    assert event == made(change, person(1, score=NAN), "null")


def test_nan_in_the_image_after_is_refused_also_where_the_image_before_has_one() -> None:
    nan = person(1, score=NAN)
    assert made(("update", nan), nan, "reject") == "field after.score: NaN or Infinity has no JSON form"
