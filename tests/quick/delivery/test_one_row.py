"""One row that is sent on purpose: what it moves, what it holds back, and that the next push sends all the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import GuardBlocked, Problem, ReverseEtlError
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.ports import OneRow, RunResult, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.run import run
from tests.support.delivery import reference
from tests.support.delivery.desk import Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import bucket

SINKS = pytest.mark.parametrize("kind", [PlainSink, TransactionalSink])
IMAGES = st.dictionaries(st.sampled_from([f"k{number}" for number in range(8)]), st.integers(1, 3))


def sent_alone(
    desk: Desk, key: str, guard: Callable[[PerOperation, PerOperation, State], str] = lambda *_: ""
) -> RunResult:
    job = replace(desk._job(), only=OneRow(key, bucket(key)))
    return run(job, replace(desk._ports(), guard=guard), desk.policy)


@SINKS
def test_one_row_is_sent_and_recorded_and_the_next_push_sends_the_others(kind: type[PlainSink]) -> None:
    desk = Desk(kind)
    desk.changelog.capture({"k0": 1, "k1": 2, "k2": 3})
    result = sent_alone(desk, "k1")
    assert (result.status, result.counts.delivered.total) == (Status.SUCCEEDED, 1)
    assert desk.sink.destination.rows == {"k1": 2}
    assert desk.push().counts.delivered.total == 2, "and not the row that is there"
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2, "k2": 3}


@SINKS
def test_rows_of_the_same_bucket_are_held_back_listed_and_sent_next(
    kind: type[PlainSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reference, __import__(__name__, fromlist=["bucket"])):
        monkeypatch.setattr(module, "bucket", lambda key: 7)
    desk = Desk(kind)
    desk.changelog.capture({"k0": 1, "k1": 2, "k2": 3})
    result = sent_alone(desk, "k1")
    assert (result.status, result.counts.delivered.total, result.counts.skipped.total) == (Status.PARTIAL, 1, 2)
    assert {row.key: row.outcome for row in desk.state().undelivered.values()} == {"k0": "retryable", "k2": "retryable"}
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2, "k2": 3}


@SINKS
def test_a_key_of_which_nothing_is_pending_is_refused_and_nothing_is_recorded(kind: type[PlainSink]) -> None:
    desk = Desk(kind)
    desk.push({"k0": 1})
    facts = len(desk.ledger.facts)
    for key in ("k0", "k9"):  # where nothing at all is pending
        with pytest.raises(ReverseEtlError, match="a key of which nothing is pending"):
            sent_alone(desk, key)
    desk.changelog.capture({"k0": 1, "k1": 2})
    with pytest.raises(ReverseEtlError, match="a key of which nothing is pending"):
        sent_alone(desk, "k0")
    assert len(desk.ledger.facts) == facts


@SINKS
@pytest.mark.parametrize("refusals", [1, 3], ids=["waits", "parked"])
def test_a_row_that_waits_at_the_head_is_sent_where_somebody_names_it(kind: type[PlainSink], refusals: int) -> None:
    desk = Desk(kind)
    desk.sink.script = {"k1": ["rejected"] * refusals}
    desk.push({"k0": 1, "k1": 2})
    for _ in range(1, refusals):
        desk.clock.sleep(timedelta(hours=2).total_seconds())
        desk.push()
    assert (desk.push().status, desk.sink.destination.rows) == (Status.IDLE, {"k0": 1}), "a push leaves it alone"
    result = sent_alone(desk, "k1")
    assert (result.status, result.counts.delivered.total) == (Status.SUCCEEDED, 1)
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2}


@SINKS
@pytest.mark.guarantee("Guards")
def test_what_blocks_a_push_is_asked_of_a_row_that_is_sent_alone_too_and_of_this_row_only(
    kind: type[PlainSink],
) -> None:
    desk = Desk(kind)
    desk.changelog.capture({"k0": 1, "k1": 2, "k2": 3})

    def blocked(planned: PerOperation, *_: object) -> str:
        raise GuardBlocked(Problem("sync", f"{planned.total} rows, and a failed test", "none", "mend it"))

    with pytest.raises(GuardBlocked, match="1 rows"):
        sent_alone(desk, "k1", blocked)
    assert (desk.sink.destination.rows, desk.ledger.facts) == ({}, [])
    sent_alone(desk, "k1", lambda planned, *_: f"sync@1:+{planned.insert}~0-0")
    assert desk.sink.destination.rows == {"k1": 2}
    assert [fact.override for fact in desk.ledger.facts if isinstance(fact, RunStarted)] == ["sync@1:+1~0-0"]


@SINKS
@pytest.mark.guarantee(
    "What is sent", "A row that is sent alone is sent once, whatever was sent before and comes after"
)
@given(first=IMAGES, second=IMAGES, third=IMAGES, key=st.sampled_from(["k0", "k3", "k7"]))
def test_whatever_is_sent_alone_a_push_ends_with_the_model(
    kind: type[PlainSink], first: dict[str, int], second: dict[str, int], third: dict[str, int], key: str
) -> None:
    desk = Desk(kind)
    desk.push(first)
    desk.changelog.capture(second)
    if first.get(key) != second.get(key):
        before = dict(desk.sink.destination.rows)
        assert sent_alone(desk, key).counts.delivered.total == 1
        after = {name: value for name, value in {**before, key: second.get(key)}.items() if value is not None}
        assert desk.sink.destination.rows == after
    assert desk.push(third).status in (Status.SUCCEEDED, Status.IDLE)
    assert desk.sink.destination.rows == third
