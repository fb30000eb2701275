"""One run, example by example: who may run, what is written, how a run ends, what becomes of rejected rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from unittest.mock import patch

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError, OtherChangelog, Problem, ReverseEtlError, SyncBusy
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import Fact, Heartbeat, RunFinished, RunStarted, WaveAcknowledged
from dbt_reverse_etl.delivery.gate import never
from dbt_reverse_etl.delivery.policy import Retries
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch, SinkTask
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import DictSource
from tests.support.delivery.world import Plan, World

SECRET = "s3cr3t-DriverOnly"


def kinds(desk: Desk) -> list[str]:
    return [type(fact).__name__ for fact in desk.ledger.facts]


# --- what is written


def test_a_push_of_one_wave_is_two_commits_the_start_with_its_claim_and_the_acknowledgement_with_the_end() -> None:
    desk, commits = Desk(), list[int]()
    append = desk.ledger.append

    def counted(*facts: Fact) -> None:
        commits.append(len(facts))
        append(*facts)

    desk.ledger.append = counted  # type: ignore[method-assign]
    result = desk.push({"k0": 1, "k1": 2})
    assert commits == [1, 2]
    assert (result.status, result.counts.delivered) == (Status.SUCCEEDED, PerOperation(insert=2))
    assert kinds(desk) == ["RunStarted", "WaveAcknowledged", "RunFinished"]
    assert desk.state().is_at(1, desk.spec.id)
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2}


@pytest.mark.guarantee("What is sent")
def test_a_push_with_nothing_to_do_plans_nothing_and_writes_nothing() -> None:
    desk = Desk()
    desk.push({"k0": 1})
    facts, planned = len(desk.ledger.facts), desk.planned
    assert desk.push().status == Status.IDLE
    assert (len(desk.ledger.facts), desk.planned) == (facts, planned)


def test_a_snapshot_that_changes_nothing_for_this_sync_still_moves_its_position() -> None:
    desk = Desk()
    desk.push({"k0": 1})
    assert desk.push({"k0": 1}).status == Status.SUCCEEDED
    assert desk.state().is_at(2, desk.spec.id)


def test_each_acknowledgement_carries_the_claim_of_the_next_wave() -> None:
    desk = Desk()
    desk.policy = replace(POLICY, waves=WaveSize(1, grow_below=-1))
    desk.push({f"k{n}": n for n in range(4)})
    waves = [fact for fact in desk.ledger.facts if isinstance(fact, WaveAcknowledged)]
    assert len(waves) == 4
    for before, after in pairwise(waves):
        assert [(claim.lo, claim.hi) for claim in before.claims] == [(after.lo, after.hi)]
    assert waves[-1].claims == ()


def test_a_long_wait_renews_the_lease() -> None:
    desk = Desk()
    desk.policy = replace(POLICY, lease=timedelta(seconds=20))
    desk.sink.script = {"k0": ["retryable"] * 9}
    assert desk.push({"k0": 1, "k1": 2}).status == Status.SUCCEEDED
    assert any(isinstance(fact, Heartbeat) for fact in desk.ledger.facts)


class Talkative(PlainSink):
    """Quotes its login in all that it says."""

    def deliver(self, batch: Batch) -> Delivery:
        answer = super().deliver(batch)
        results = tuple(replace(one, reason=f"{one.reason} by crm://push:{SECRET}@crm") for one in answer.results)
        stop = f"no more for {SECRET}" if self.stops else None
        return replace(answer, results=results, stop=stop)

    stops = False

    def finish(self, claim: str = "", *, complete: bool = False) -> None:
        if "k9" in self.destination.rows:
            raise DestinationError(Problem("memory", f"no place at {SECRET}", "a place", "make it"))


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("word", ["rejected", "retryable", "unknown_lost", "no_match", "fatal", "stop", "finish"])
def test_a_secret_that_a_sink_quotes_comes_neither_into_the_ledger_nor_into_the_result(word: str) -> None:
    register_secret(SECRET)
    desk = Desk(Talkative)
    rows = {f"k{n}": n for n in range(9)}
    desk.sink.script = {"k1": [word] * 99}
    if word in ("stop", "finish"):
        desk.sink.script = {"k1": ["rejected"]}
        desk.sink.stops, rows = word == "stop", rows | ({"k9": 9} if word == "finish" else {})
    with suppress(DestinationError):
        result = desk.push(rows)
        assert SECRET not in f"{result.message} {result.state}"
    facts = str(desk.ledger.facts)
    assert SECRET not in facts
    assert "***" in facts


# --- full loads


@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_a_full_load_is_one_claim_in_parts_that_fit_into_memory(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    desk.push({"k0": 1, "k1": 2})
    desk.sink.destination.rows["foreign"] = 9
    desk.full_loads, desk.policy = True, replace(POLICY, waves=WaveSize(1, grow_below=-1))
    with patch.object(sink, "deliver", autospec=True, side_effect=sink.deliver) as deliver:
        result = desk.push({"k1": 3, "k2": 4})
    assert (result.status, result.counts.delivered, deliver.call_count) == (Status.SUCCEEDED, PerOperation(insert=2), 2)
    assert kinds(desk)[3:] == ["RunStarted", "WaveAcknowledged", "RunFinished"]
    assert desk.sink.destination.rows == {"k1": 3, "k2": 4}
    assert desk.sink.destination.deleted == []


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_a_full_load_with_a_refused_row_changes_nothing_and_releases_its_claim(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    desk.push({"k0": 1, "k1": 2})
    desk.full_loads, desk.sink.script = True, {"k2": ["rejected"]}
    result = desk.push({"k1": 3, "k2": 4})
    assert (result.status, result.given_up) == (Status.FAILED, True)
    assert "the full load was given up" in result.message
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2}
    state = desk.state()
    assert (state.claims, state.undelivered) == ((), {})
    desk.full_loads = False
    assert desk.push().counts.delivered == PerOperation(1, 1, 1)


# --- who may run


def test_a_sync_is_busy_while_another_run_holds_its_lease_and_free_afterwards() -> None:
    desk = Desk()
    desk.push({"k0": 1})
    start = next(fact for fact in desk.ledger.facts if isinstance(fact, RunStarted))
    desk.ledger.append(replace(start, fence=2, lease_until=desk.clock.now() + timedelta(minutes=1)))
    with pytest.raises(SyncBusy):
        desk.push({"k0": 2})
    desk.clock.sleep(61)
    assert desk.push().status == Status.SUCCEEDED


@pytest.mark.guarantee("Leases and rivals")
def test_a_lease_that_only_a_wrong_clock_can_have_written_is_believed_and_the_error_names_the_clock() -> None:
    """Which of the two clocks is wrong, nobody knows: a machine whose clock is behind must not take over a run that lives."""
    for seconds, of_clock in ((60, False), (61, True), (365 * 86_400, True)):
        desk = Desk()
        desk.push({"k0": 1})
        start = next(fact for fact in desk.ledger.facts if isinstance(fact, RunStarted))
        until = desk.clock.now() + desk.policy.lease + timedelta(seconds=seconds)
        desk.ledger.append(replace(start, fence=2, lease_until=until))
        with pytest.raises(SyncBusy) as busy:
            desk.push({"k0": 2})
        assert ("one of the two clocks is wrong. Next: set the clock" in str(busy.value)) is of_clock
        desk.clock.sleep((until - desk.clock.now()).total_seconds())
        assert desk.push().status == Status.SUCCEEDED, "it goes on at that time"


@pytest.mark.guarantee("Leases and rivals")
def test_of_two_runs_that_start_at_once_one_is_busy_and_has_sent_nothing() -> None:
    world = World(PlainSink)
    world.capture({"k0": 6})
    world.push(Plan(at=("run.planned", 1), then="asleep"))
    winner = world.push(Plan())
    loser = world.wake(0)
    assert winner.result is not None
    assert winner.result.status == Status.SUCCEEDED
    assert isinstance(loser.error, SyncBusy)
    assert "batch.before" not in loser.reached


@pytest.mark.guarantee("Leases and rivals")
def test_a_run_that_lost_its_lease_says_so_and_acknowledges_nothing() -> None:
    world = World(PlainSink)
    world.capture({"k0": 6, "k1": 7})
    world.push(Plan(at=("batch.after", 1), then="asleep", batch_rows=1))
    world.push(Plan())
    late = world.wake(0)
    assert late.result is not None
    assert late.result.status == Status.SUPERSEDED
    assert [f.fence for f in world.ledger.facts if isinstance(f, WaveAcknowledged)] == [2]


@pytest.mark.guarantee("Guards")
def test_a_position_of_another_changelog_stops_the_push_before_anything_is_written() -> None:
    desk = Desk()
    desk.push({"k0": 1})
    facts = len(desk.ledger.facts)
    desk.changelog_id = "another"
    with pytest.raises(OtherChangelog, match="resync"):
        desk.push({"k0": 2})
    assert len(desk.ledger.facts) == facts


@pytest.mark.guarantee("Guards")
def test_a_destination_that_vanished_is_noticed_even_if_nothing_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr(PlainSink, "missing", lambda self, task: "no table people")
    assert desk.push({"k0": 1}).status == Status.SUCCEEDED
    with pytest.raises(DestinationError, match="resync"):
        desk.push()


# --- how a run ends


@pytest.mark.guarantee("Crashes and claims")
def test_a_wave_with_fewer_rows_than_planned_is_neither_sent_nor_acknowledged() -> None:
    class Cancelled(DictSource):
        def wave(self, lo: int, hi: int) -> pa.Table:
            return super().wave(lo, hi).slice(0, 0)

    desk = Desk()
    desk.source = Cancelled
    with pytest.raises(ReverseEtlError, match="1 as planned"):
        desk.push({"k0": 1})
    end = desk.ledger.facts[-1]
    assert isinstance(end, RunFinished)
    assert (end.status, end.counts.skipped, end.counts.balanced) == (Status.FAILED, PerOperation(insert=1), True)
    assert desk.state().first
    assert desk.state().claims == ()
    desk.source = DictSource
    assert desk.push().status == Status.SUCCEEDED


@pytest.mark.guarantee("Crashes and claims")
def test_a_plan_that_counts_rows_the_waves_do_not_hold_is_never_green(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr("dbt_reverse_etl.delivery.run._Run._count", lambda self, claim, sent: None)
    monkeypatch.setattr("dbt_reverse_etl.delivery.run._Run._not_counted", lambda self: self._counts)
    result = desk.push({"k0": 1})
    assert result.status == Status.FAILED
    assert "does not balance" in result.message


@pytest.mark.guarantee("Refusals and outages")
def test_a_destination_that_is_down_leaves_position_and_undelivered_rows_as_they_were() -> None:
    desk = Desk()
    desk.push({"k0": 1})
    desk.sink.script = {"k1": ["retryable"] * 1000}
    before = desk.state()
    result = desk.push({"k0": 1, "k1": 2})
    after = desk.state()
    assert result.status == Status.FAILED
    assert (after.positions, after.undelivered, after.claims) == (before.positions, before.undelivered, before.claims)
    assert result.counts.failed == PerOperation(insert=1)
    desk.sink.script = {}
    assert desk.push().status == Status.SUCCEEDED


@pytest.mark.guarantee("Crashes and claims")
def test_an_interrupted_run_ends_after_the_request_under_way_and_the_next_one_goes_on() -> None:
    desk = Desk()
    desk.sink.batch_rows = 1
    desk.interrupted = lambda: bool(desk.sink.destination.rows)
    result = desk.push({"k0": 1, "k1": 2})
    assert (result.status, result.counts.delivered.total, result.counts.skipped.total) == (Status.INTERRUPTED, 1, 1)
    row = desk.state().undelivered["k1"]
    assert (row.outcome, row.doubt, row.maybe) == ("retryable", False, False)
    desk.interrupted = never
    assert desk.push().counts.delivered == PerOperation(insert=1)


def test_a_query_that_an_interrupt_cancelled_is_no_failure() -> None:
    class Cancelled(DictSource):
        def wave(self, lo: int, hi: int) -> pa.Table:
            raise RuntimeError("cancelled")

    desk = Desk()
    desk.source, desk.interrupted = Cancelled, lambda: "RunStarted" in kinds(desk)
    assert desk.push({"k0": 1}).status == Status.INTERRUPTED


def test_a_wave_that_stopped_with_too_many_rows_to_list_keeps_its_claim_and_heals() -> None:
    desk = Desk()
    desk.policy = replace(POLICY, most_listed=2)
    desk.sink.batch_rows = 1
    desk.interrupted = lambda: bool(desk.sink.destination.rows)
    image = {f"k{n}": n for n in range(8)}
    assert desk.push(image).status == Status.INTERRUPTED
    assert (len(desk.state().claims), desk.state().undelivered) == (1, {})
    desk.interrupted = never
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows == image


def keys_put_by_a_push(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """It succeeds, for nothing is refused any more."""
    put: list[str] = []
    real = desk.sink.destination.put
    monkeypatch.setattr(desk.sink.destination, "put", lambda row: (put.append(row["key"]), real(row)))
    desk.sink.script = {}
    assert desk.push().status == Status.SUCCEEDED
    return sorted(put)


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("word", "again"), [("unknown_applied", []), ("unknown_lost", ["k0", "k1"])])
@pytest.mark.parametrize("seconds", [0, 300], ids=["no time", "no attempts"])
def test_a_wave_whose_commit_has_no_answer_until_the_run_gives_up_is_settled_by_the_record(
    seconds: int, word: str, again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(TransactionalSink)
    desk.policy = replace(POLICY, retries=Retries(seconds=seconds))
    desk.sink.script = {"k0": [word] + ["retryable"] * 20}
    result = desk.push({"k0": 1, "k1": 2})
    assert (result.status, result.counts.failed) == (Status.FAILED, PerOperation(insert=2))
    assert (len(desk.state().claims), desk.state().undelivered) == (1, {})
    assert keys_put_by_a_push(desk, monkeypatch) == again
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2}


@pytest.mark.parametrize(("word", "again"), [("unknown_applied", []), ("unknown_lost", ["k0"])])
def test_rows_of_unknown_end_are_left_to_the_record_also_where_others_of_their_wave_arrived(
    word: str, again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(TransactionalSink)
    desk.sink.batch_rows = 1
    desk.sink.script = {"k0": [word] + ["retryable"] * 20}
    result = desk.push({"k0": 1, "k1": 2})
    said = "retryable; the destination did not say what became of a wave"
    assert (result.status, result.message) == (Status.FAILED, said)
    assert result.counts.delivered == PerOperation(insert=1)
    assert keys_put_by_a_push(desk, monkeypatch) == again
    assert desk.sink.destination.rows == {"k0": 1, "k1": 2}


def test_where_a_record_does_not_know_buckets_rows_of_unknown_end_are_listed_if_others_of_their_wave_arrived() -> None:
    class OfClaims(TransactionalSink):
        settles_buckets = False

    desk = Desk(OfClaims)
    desk.sink.batch_rows = 1
    desk.sink.script = {"k0": ["unknown_lost"] * 20}
    assert desk.push({"k0": 1, "k1": 2}).status == Status.PARTIAL
    assert ([*desk.state().undelivered], desk.state().claims) == (["k0"], ())


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("sink", [PlainSink, TransactionalSink])
def test_a_foreign_exception_is_recorded_without_its_words_and_raised(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    secret = ValueError("alice@example.com")

    def fail(task: SinkTask) -> None:
        raise secret

    desk.sink.open = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="alice"):
        desk.push({"k0": 1})
    assert (desk.state().status, desk.state().message) == (Status.FAILED, "ValueError")
    assert "alice" not in repr(desk.ledger.facts)


# --- rejected rows


@pytest.mark.guarantee("Refusals and outages")
def test_a_rejected_row_waits_longer_each_time_and_is_parked_when_time_and_attempts_are_spent() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected"] * 99}
    desk.push({"k0": 1})
    waits = []
    while (row := desk.state().undelivered["k0"]).outcome != "parked":
        assert row.next_attempt_at is not None
        waits.append((row.next_attempt_at - desk.clock.now()) / timedelta(minutes=1))
        assert desk.push().status == Status.IDLE
        desk.clock.sleep((row.next_attempt_at - desk.clock.now()).total_seconds())
        assert desk.push().counts.rejected == PerOperation(insert=1)
    assert waits[:5] == [5, 10, 20, 40, 60]
    assert row.attempts > desk.policy.rejections.attempts
    assert desk.clock.now() - row.first_failed_at >= timedelta(days=1)
    desk.clock.sleep(10**7)
    assert desk.push().status == Status.IDLE


def test_a_waiting_row_is_skipped_and_stays_as_it_was_while_others_are_sent() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected"]}
    desk.push({"k0": 1})
    before = desk.state().undelivered["k0"]
    result = desk.push({"k0": 1, "k1": 2})
    assert (result.status, result.counts.skipped, result.counts.delivered) == (
        Status.PARTIAL,
        PerOperation(insert=1),
        PerOperation(insert=1),
    )
    assert desk.state().undelivered == {"k0": before}


@pytest.mark.guarantee("Refusals and outages")
def test_a_changed_row_does_not_wait_and_starts_anew() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected", "rejected"]}
    desk.push({"k0": 1})
    desk.clock.sleep(60)
    desk.push({"k0": 2})
    row = desk.state().undelivered["k0"]
    assert (row.attempts, row.first_failed_at) == (1, desk.clock.now())
    assert desk.push({"k0": 3}).counts.delivered == PerOperation(insert=1)
    assert desk.state().undelivered == {}


@pytest.mark.guarantee("Refusals and outages")
def test_a_row_that_was_rejected_and_then_deleted_is_not_sent_any_more() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected"]}
    desk.push({"k0": 1})
    assert desk.push({}).counts.planned.total == 0
    assert desk.state().undelivered == {}
    assert desk.sink.destination.deleted == []


def test_retry_now_sends_waiting_and_parked_rows() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected"]}
    desk.push({"k0": 1})
    desk.policy = replace(desk.policy, retry_now=True)
    assert desk.push().counts.delivered == PerOperation(insert=1)


def test_runs_that_leave_a_row_unknown_are_counted_apart_from_those_that_reject_it() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["unknown"] * 999}
    desk.push({"k0": 1})
    for _ in range(desk.policy.rejections.attempts + 1):
        desk.clock.sleep(86_400)
        desk.push()
    row = desk.state().undelivered["k0"]
    assert (row.outcome, row.attempts) == ("unknown", desk.policy.rejections.attempts + 2)
    desk.sink.script = {"k0": ["rejected"] * 2 + ["unknown"] * 999}
    desk.push()
    row = desk.state().undelivered["k0"]
    assert (row.outcome, row.attempts) == ("rejected", 1), "it is not parked for what nobody knew"
    desk.clock.sleep(3_600)
    desk.push()
    assert desk.state().undelivered["k0"].attempts == 2
    desk.clock.sleep(86_400)
    desk.push()
    row = desk.state().undelivered["k0"]
    assert (row.outcome, row.attempts) == ("unknown", 1)


@pytest.mark.guarantee("Refusals and outages")
def test_rows_that_were_unknown_still_break_the_sync_where_they_are_refused() -> None:
    desk = Desk()
    desk.policy = replace(desk.policy, rejections=replace(desk.policy.rejections, breaker_rows=10))
    image, desk.sink.batch_rows = {f"k{number}": number for number in range(100)}, 100
    desk.sink.script = {key: ["unknown"] * 999 for key in image}
    desk.push(image)
    assert sum(row.attempts for row in desk.state().undelivered.values()) == 100
    desk.sink.batch_rows = 10
    desk.sink.script = {key: ["rejected"] for key in image}
    result = desk.push()
    assert result.status == Status.FAILED
    assert 10 < result.counts.rejected.total < 50


@pytest.mark.guarantee("Refusals and outages")
def test_an_outage_burns_no_attempts() -> None:
    desk = Desk()
    desk.sink.script = {"k0": ["rejected"], "k1": ["rejected"] + ["retryable"] * 999}
    desk.push({"k0": 1, "k1": 2})
    desk.policy = replace(desk.policy, retry_now=True)
    desk.sink.batch_rows = 1
    desk.push()
    row = desk.state().undelivered["k1"]
    assert (row.outcome, row.attempts, row.next_attempt_at) == ("retryable", 1, None)
