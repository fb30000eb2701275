"""`on_unknown: park`: what the destination may or may not hold is never sent again by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.delivery.facts import Claim, Range, Undelivered
from dbt_reverse_etl.delivery.ports import OneRow, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import no_step
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch, Mode
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.memory_sinks import PlainSink
from tests.support.delivery.reference import DictSource, Spec, bucket
from tests.support.effort import scaled

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
KEYS = [f"k{number}" for number in range(6)]
PARKING = replace(POLICY.parking_doubt(), waves=WaveSize(2, grow_below=-1))
RETRY = replace(PARKING, retry_now=True)


class Crash(BaseException):
    """The process is gone."""


class CountingSink(PlainSink):
    """Knows what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def deliver(self, batch: Batch) -> Delivery:
        self.sent.update(batch.rows.column("key").to_pylist())
        return super().deliver(batch)


class ParkingDesk(Desk):
    def __init__(self) -> None:
        super().__init__(CountingSink)
        self.policy = PARKING

    @property
    def sent(self) -> Counter[str]:
        assert isinstance(self.sink, CountingSink)
        return self.sink.sent

    def retry(self) -> str:
        self.policy, before = RETRY, self.policy
        try:
            return self.push().status
        finally:
            self.policy = before

    def crash_at(self, point: str) -> bool:
        """Push, and die there; False if the push did not come by that point."""

        def step(name: str) -> None:
            if name == point:
                raise Crash

        self.step = step
        try:
            self.push()
        except Crash:
            self.clock.sleep(24 * 3600)  # the lease is over
            return True
        finally:
            self.step = no_step
        return False


def image(value: int, keys: list[str] = KEYS) -> dict[str, int]:
    return dict.fromkeys(keys, value)


def test_a_row_of_which_nobody_knows_is_sent_once_and_waits_whatever_its_value_is_until_retry() -> None:
    desk = ParkingDesk()
    desk.sink.script = {"k1": ["unknown_applied"]}
    assert desk.push(image(1)).status == Status.PARTIAL
    assert desk.push(image(2)).status == Status.PARTIAL
    assert desk.push(image(3, ["k0", "k2"])).status == Status.PARTIAL
    assert desk.sent["k1"] == 1
    [row] = desk.state().undelivered.values()
    assert (row.key, row.outcome, row.doubt) == ("k1", "unknown", True)
    assert desk.sink.destination.rows == {"k0": 3, "k2": 3, "k1": 1}

    assert desk.push(image(4)).status == Status.PARTIAL
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(4)
    assert not desk.state().undelivered


def test_a_row_that_is_refused_after_retry_is_still_in_doubt_and_waits_again() -> None:
    desk = ParkingDesk()
    desk.sink.script = {"k1": ["unknown_lost", "retryable", "retryable", "retryable", "retryable", "retryable"] * 3}
    desk.push(image(1))
    desk.retry()
    before = desk.sent["k1"]
    desk.sink.script = {}
    assert desk.push(image(2)).status == Status.PARTIAL
    assert desk.sent["k1"] == before
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(2)


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("point", ["batch.before", "batch.after", "wave.delivered"])
def test_rows_that_a_lost_run_may_have_sent_wait_and_the_others_go_on(point: str) -> None:
    desk = ParkingDesk()
    desk.push(image(1))
    desk.changelog.capture(image(2))
    assert desk.crash_at(point)
    before = Counter(desk.sent)
    assert desk.push(image(3)).status == Status.PARTIAL
    waiting = desk.state().undelivered
    assert 1 <= len(waiting) <= 2, "one wave"
    assert all(row.outcome == "unknown" and row.reason == "an earlier run may have sent it" for row in waiting.values())
    assert {key for key in KEYS if desk.sent[key] == before[key]} == {*waiting}
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(3)


def test_a_resync_that_was_asked_for_sends_every_row_again() -> None:
    desk = ParkingDesk()
    desk.push(image(1))
    desk.ask("resync")
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sent == dict.fromkeys(KEYS, 2)


def asked_for(desk: ParkingDesk) -> None:
    """Every row is to be sent again, although no request may have arrived."""
    if isinstance(desk, ChangingDesk):
        desk.spec = desk.after
    else:
        desk.ask("resync")


BOTH = pytest.mark.parametrize("by", ["resync", "a change of the sync"])


def desk_of(by: str) -> ParkingDesk:
    return ParkingDesk() if by == "resync" else ChangingDesk()


@BOTH
@pytest.mark.guarantee("Refusals and outages")
def test_rows_that_a_resync_or_a_change_of_the_sync_could_not_deliver_are_not_parked(by: str) -> None:
    desk = desk_of(by)
    desk.push(image(1))
    asked_for(desk)
    desk.sink.script = {"k3": ["fatal"]}
    assert desk.push().status == Status.FAILED
    left = desk.state().undelivered
    assert "k3" in left
    assert all(row.doubt and not row.may_have_arrived for row in left.values())
    assert desk.push(image(2)).status == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(2)


@BOTH
def test_a_corrected_row_of_a_resync_or_a_change_of_the_sync_is_sent_at_once(by: str) -> None:
    desk = desk_of(by)
    desk.push(image(1))
    asked_for(desk)
    desk.sink.script = {"k1": ["rejected"]}
    assert desk.push().status == Status.PARTIAL
    before = desk.sent["k1"]
    assert desk.push().status == Status.IDLE, "it waits for its time"
    assert desk.push(image(2)).status == Status.SUCCEEDED
    assert desk.sent["k1"] == before + 1


def test_a_row_that_an_update_only_resync_did_not_find_is_looked_for_again() -> None:
    desk = ParkingDesk()
    desk.mode = Mode.UPDATE_ONLY
    desk.push(image(1))
    desk.ask("resync")
    desk.sink.script = {"k1": ["no_match"]}
    desk.push()
    before = desk.sent["k1"]
    desk.clock.sleep(6 * 3600)
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sent["k1"] == before + 1


def test_rows_beside_one_that_is_sent_alone_go_with_the_next_push_unless_a_request_may_have_arrived() -> None:
    keys = ["k0", "k8", "k16"]  # of one bucket
    desk = ParkingDesk()
    desk.sink.script = {"k8": ["unknown_lost"]}
    desk.push(image(1, keys))
    desk.ask("resync")
    desk.sink.script = {"k8": ["unknown_lost"]}
    only = replace(desk._job(), only=OneRow("k0", bucket("k0")))
    assert run(only, desk._ports(), desk.policy).counts.skipped.total == 2
    assert {key: row.outcome for key, row in desk.state().undelivered.items()} == {"k8": "unknown", "k16": "retryable"}
    before = Counter(desk.sent)
    assert desk.push().status == Status.PARTIAL
    assert desk.sent - before == Counter(["k16"])


@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.MIRROR])
def test_rows_that_the_destination_lacked_are_made_at_once_when_update_only_ends(mode: Mode) -> None:
    desk = ChangingDesk()
    desk.mode = Mode.UPDATE_ONLY
    desk.sink.script = {"k1": ["no_match"], "k2": ["no_match"]}
    assert desk.push(image(1)).counts.no_match.total == 2
    desk.mode, desk.spec = mode, desk.after
    desk.sink.script = {"k2": ["fatal"]}
    result = desk.push()
    assert (result.status, result.counts.no_match.total) == (Status.FAILED, 0)
    assert not [row for row in desk.state().undelivered.values() if row.outcome == "no_match"]
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(1)
    assert not desk.state().undelivered


def test_a_ledger_of_an_earlier_build_parks_each_row_in_doubt() -> None:
    row = Undelivered("k", 1, None, 1, True, True, 1, "insert", "unknown", "why", 1, NOW, None)
    assert row.waits(NOW, park_doubt=True)
    assert not replace(row, in_flight=False).waits(NOW, park_doubt=True)


def test_a_run_that_brought_nothing_over_names_its_own_answer_and_not_that_of_rows_which_wait() -> None:
    class Failing(CountingSink):
        answer, outcome = "no answer in time", Outcome.UNKNOWN

        def deliver(self, batch: Batch) -> Delivery:
            return Delivery.of_all(batch.rows.num_rows, self.outcome, self.answer)

    desk = ParkingDesk()
    desk.sink, desk.policy = Failing(), POLICY.parking_doubt()
    desk.push({"k0": 1})
    desk.sink.answer, desk.sink.outcome = "no connection", Outcome.RETRYABLE
    result = desk.push({"k0": 1, "k1": 1})
    assert (result.status, desk.state().undelivered["k0"].reason) == (Status.FAILED, "no answer in time")
    assert result.message == "no connection; the destination did not take a single row"


def test_a_destination_that_leaves_every_row_in_doubt_stops_the_sync_instead_of_parking_all_of_it() -> None:
    class Hanging(CountingSink):
        def deliver(self, batch: Batch) -> Delivery:
            self.sent.update(batch.rows.column("key").to_pylist())
            return Delivery.of_all(batch.rows.num_rows, Outcome.UNKNOWN, "no answer in time")

    desk = ParkingDesk()
    desk.sink, desk.policy = Hanging(), POLICY.parking_doubt()
    result = desk.push({f"k{number}": number for number in range(1000)})
    assert result.status == Status.FAILED
    assert "rejected or unknown, 0 delivered" in result.message
    assert desk.sent.total() <= 60
    assert {*desk.sent.values()} == {1}


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("sent_rows", [1, 2])
def test_a_lost_lease_parks_what_was_sent_and_nothing_else(sent_rows: int) -> None:
    desk = ParkingDesk()
    desk.sink.batch_rows = 1
    desk.push(image(1))
    desk.changelog.capture(image(2))
    left = iter(range(sent_rows, 0, -1))

    def step(name: str) -> None:
        if name == "batch.after" and next(left, None) == 1:
            desk.clock.sleep(PARKING.lease.total_seconds())

    desk.step = step
    assert desk.push().status == Status.SUPERSEDED
    desk.step = no_step
    desk.clock.sleep(PARKING.lease.total_seconds())
    before = Counter(desk.sent)
    sent = {key for key in KEYS if before[key] == 2}
    assert len(sent) == sent_rows
    assert desk.push(image(3)).status == Status.PARTIAL
    assert {*desk.state().undelivered} == sent
    assert {key for key in KEYS if desk.sent[key] > before[key]} == {*KEYS} - sent
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(3)


class ChangingDesk(ParkingDesk):
    """A sync whose mode was another one up to a push, as `SyncPush` plans it."""

    before, after = Spec(), Spec(hide=10**6)

    def _unsure(self) -> list[Range]:
        return [place for place in self.state().positions if place.snapshot and place.spec != self.spec.id]

    def _source_for(self, state: State) -> DictSource:
        claims = [Claim("mode", one.lo, one.hi, one.snapshot, one.spec, True, ordered=True) for one in self._unsure()]
        state = replace(state, claims=state.claims + tuple(claims))
        specs = {spec.id: spec for spec in (self.before, self.after)}
        return DictSource(self.changelog, state, self.changelog.head, self.spec, specs)


@pytest.mark.guarantee("Refusals and outages")
def test_after_a_change_of_mode_from_insert_only_every_row_is_sent_but_those_that_a_request_left_in_doubt() -> None:
    desk = ChangingDesk()
    desk.sink.script = {"k1": ["unknown_applied"]}
    desk.push(image(1))
    desk.spec = desk.after
    assert desk.push().status == Status.PARTIAL
    assert desk.sent == {**dict.fromkeys(KEYS, 2), "k1": 1}
    assert [row.key for row in desk.state().undelivered.values()] == ["k1"]
    assert desk.push(image(2)).status == Status.PARTIAL
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(2)


@pytest.mark.parametrize("changed_before", [True, False])
def test_a_change_of_mode_sends_no_row_that_a_lost_run_may_have_sent(changed_before: bool) -> None:
    desk = ChangingDesk()
    desk.push(image(1))
    desk.changelog.capture(image(2))
    if changed_before:
        desk.spec = desk.after
    assert desk.crash_at("batch.after")
    desk.spec = desk.after
    before = Counter(desk.sent)
    assert desk.push(image(3)).status == Status.PARTIAL
    waiting = {*desk.state().undelivered}
    assert 1 <= len(waiting) <= 2, "one wave"
    assert {key for key in KEYS if desk.sent[key] == before[key]} == waiting
    assert desk.retry() == Status.SUCCEEDED
    assert desk.sink.destination.rows == image(3)


@pytest.mark.guarantee("Refusals and outages")
@settings(deadline=None, max_examples=scaled(150))
@given(
    pushes=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(KEYS), st.integers(1, 4)),
            st.dictionaries(
                st.sampled_from(KEYS), st.sampled_from(["rejected", "retryable", "unknown_applied", "unknown_lost"])
            ),
            st.sampled_from([None, None, "batch.after", "wave.delivered", "wave.acknowledged"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_over_any_history_no_row_goes_out_again_after_a_request_with_unknown_end(
    pushes: list[tuple[dict[str, int], dict[str, str], str | None]],
) -> None:
    desk = ParkingDesk()
    in_doubt: set[str] = set()
    for rows, faults, crash in pushes:
        desk.changelog.capture(rows)
        desk.sink.script = {key: [fault] for key, fault in faults.items()}
        before = Counter(desk.sent)
        if crash is None:
            desk.push()
        else:
            desk.crash_at(crash)
        now_sent = {key for key in KEYS if desk.sent[key] > before[key]}
        assert not now_sent & in_doubt
        desk.push()
        listed = {key for key, row in desk.state().undelivered.items() if row.doubt}
        unknown = {key for key in now_sent if faults.get(key, "").startswith("unknown")}
        assert unknown <= listed
        in_doubt = listed
    desk.sink.script = {}
    desk.retry()
    assert desk.sink.destination.rows == desk.changelog.images[-1]
    assert not desk.state().undelivered
