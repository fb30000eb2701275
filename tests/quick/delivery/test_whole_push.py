"""A push that Spark writes whole: what its one answer says of all rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.delivery.gate import StopKind
from dbt_reverse_etl.delivery.sending import Sent
from dbt_reverse_etl.warehouse.whole_push import WholePush
from tests.support.delivery.engine_bench import TASK

NOW = datetime(2026, 1, 1)
ELSEWHERE = Sent()


def sent(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Of five rows; `ELSEWHERE` if they are sent batch by batch."""
    rows, sink = Mock(), Mock(extra_columns=lambda task: ())
    rows.frame.return_value.groupBy.return_value.count.return_value.collect.return_value = [
        Row(_operation="insert", count=5)
    ]
    sink.push.return_value = delivery
    nothing: Any = None
    push = WholePush(rows, sink, nothing, nothing)
    monkeypatch.setattr(push, "_batch_by_batch", lambda *_: ELSEWHERE)
    return push.send(Mock(), TASK, lambda: NOW)


def test_no_answer_for_row_0_delivers_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(Delivery(), monkeypatch).counts.delivered.insert == 5


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("delivery", [Delivery(refused_whole=True), Delivery.of_all(0, Outcome.REJECTED, "why")])
def test_a_refusal_without_a_row_refuses_all_and_the_row_at_fault_is_looked_for(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent(delivery, monkeypatch) is ELSEWHERE


@pytest.mark.guarantee("Refusals and outages")
def test_a_stop_without_a_row_leaves_all_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DestinationError, match="a newer run holds the fence"):
        sent(Delivery(stop="a newer run holds the fence"), monkeypatch)


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("answer", [None, Delivery([])])  # type: ignore[arg-type]
def test_an_answer_without_the_form_of_one_leaves_all_in_doubt(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DestinationError, match="the sink answered with"):
        sent(answer, monkeypatch)


def test_a_fatal_answer_stops_with_no_row_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = sent(Delivery.of_all(1, Outcome.FATAL, "why"), monkeypatch)
    assert answer.stop is not None
    assert (answer.stop.kind, answer.nothing_applied, answer.counts.delivered.insert) == (StopKind.FATAL, True, 0)
