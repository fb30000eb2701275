"""Another run of the same sync, while one invocation after the other comes to it: in memory, with the real push."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dbt_reverse_etl.app import sync_push
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Claim,
    ClaimsSettled,
    Fact,
    Heartbeat,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.ports import Job, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.warehouse.overview import Overview, Request
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.pushers import at, pusher, sync, without_spark
from tests.support.delivery.world import MemoryLedger

A = sync("a", "orders")
SYNC = id_of(A)
SPECS = at(A, 5).states[SYNC].specs
SPEC = next(iter(SPECS))
LEASE, CLOCK = timedelta(minutes=15), FakeClock()
NOW = CLOCK.now()
SOON, LATER = NOW + LEASE, NOW + timedelta(hours=3)


class Ledger(MemoryLedger):
    meanwhile: Sequence[Fact] = ()  # what another run records before the next one starts

    def start(self, started: RunStarted, before: State | None = None) -> State | None:
        self.append(*self.meanwhile)
        return super().start(started)


def began(positions: Sequence[Range], *facts: Fact, owner: str = "elsewhere:1") -> tuple[Overview, Ledger]:
    """A run of another machine, or of `owner`, began now; what an overview read at once, and the ledger with what it recorded since."""
    head = max(place.snapshot for place in positions)
    stated: dict[str, Any] = {"undelivered": (), "lease_until": SOON, "owner": owner, "sync": "a"}
    run = RunStarted(SYNC, 1, "r", NOW, head, SPEC, SPECS, tuple(positions), (), changelog="uuid", **stated)
    ledger = Ledger()
    ledger.append(run)
    overview = Overview({SYNC: ledger.read(SYNC)}, started={SYNC: run})
    ledger.append(*facts)
    return overview, ledger


def killed() -> Heartbeat:
    return Heartbeat(SYNC, 1, NOW, SOON)


def renewed() -> Heartbeat:
    return Heartbeat(SYNC, 1, SOON, LATER)


def ended(status: str = Status.SUCCEEDED) -> RunFinished:
    return RunFinished(SYNC, 1, 9, SOON, status, NO_COUNTS, NO_ROWS, "")


class NoRows:
    """A source without pending rows."""

    def planned(self) -> Histogram:
        return Histogram((NO_ROWS,))

    def close(self) -> None:
        """It holds nothing."""


def after_an_hour(ledger: Ledger, **heads: int) -> Pusher:
    clock, memory = FakeClock(), dict[str, Any](ledger=ledger)
    clock.sleep(3600)
    warehouse = replace(pusher(**heads), clock=clock, **memory)
    warehouse._heads["orders", 5] = warehouse._heads["orders", None]
    return warehouse


@pytest.fixture(autouse=True)
def _without_spark_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(SqliteSink, "missing", lambda *_: None)


MIXED = [Range(0, 9, 6, SPEC), Range(9, BUCKETS, 4, SPEC)]
ALL_AT_5 = [Range(0, BUCKETS, 5, SPEC)]


@pytest.mark.guarantee("Leases and rivals")
def test_a_run_that_renewed_its_lease_since_a_long_invocation_began_is_not_taken_for_dead() -> None:
    overview, ledger = began(ALL_AT_5, renewed())
    before = list(ledger.facts)
    report = after_an_hour(ledger, orders=5).push(A, overview)
    assert (report.status, report.exit_code) == ("busy", ExitCode.BUSY), report.message
    assert ledger.facts == before, "nothing was claimed"


@pytest.mark.guarantee("Leases and rivals")
def test_of_two_pushes_of_a_sync_in_threads_of_one_process_one_runs_and_the_other_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SqliteSink, "open", lambda *_: None)
    monkeypatch.setattr(SyncPush, "_source", lambda *_: NoRows())
    monkeypatch.setattr(SyncPush, "_remote", None)
    found = list[str]()

    def push(owner: str) -> str:
        overview, ledger = began(ALL_AT_5, owner=owner)
        return replace(after_an_hour(ledger, orders=5), clock=CLOCK).push(A, overview).status

    def meanwhile(job: Job, *_: object) -> None:
        monkeypatch.setattr(sync_push, "run", run)
        found.extend([job.owner, push(job.owner)])

    monkeypatch.setattr(sync_push, "run", meanwhile)
    after_an_hour(Ledger(), orders=5).push(A, at(A, 5))
    assert found[1] == "busy"
    assert push(found[0]) != "busy", "it has ended without a last word, as by an error"


def test_a_run_that_has_ended_since_a_long_invocation_began_leaves_nothing_to_send() -> None:
    overview, ledger = began(ALL_AT_5, renewed(), ended())
    before = list(ledger.facts)
    report = after_an_hour(ledger, orders=5).push(A, overview)
    assert (report.status, report.exit_code) == (Status.IDLE, ExitCode.OK), report.message
    assert ledger.facts == before


def test_of_a_sync_whose_newest_run_had_ended_the_ledger_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ledger = began(ALL_AT_5, ended())
    overview, asked = Overview({SYNC: ledger.read(SYNC)}), list[str]()
    read = ledger.read
    monkeypatch.setattr(ledger, "read", lambda *about: asked.append(*about[:1]) or read(*about))
    report = after_an_hour(ledger, orders=5).push(A, overview)
    assert (report.status, asked) == (Status.IDLE, []), report.message


def test_a_request_that_a_rival_has_carried_out_since_a_long_invocation_began_is_not_carried_out_twice() -> None:
    overview, ledger = began(ALL_AT_5, ended())
    run = overview.started[SYNC]
    ledger.append(replace(run, fence=2, run_id="request"), replace(ended("resync"), fence=2))
    overview = replace(overview, requests={"a": [Request("request", "a", "resync", NOW)]})
    before = list(ledger.facts)
    report = after_an_hour(ledger, orders=5).push(A, overview)
    assert (report.status, report.exit_code) == ("busy", ExitCode.BUSY), report.message
    assert ledger.facts == before


OPEN_AT_6 = ClaimsSettled(SYNC, 1, 1, NOW, (), (), (Claim("c", 0, BUCKETS, 6, SPEC),), SPECS)
REJECTED = Undelivered("k", 1, None, 1, False, False, 1, "update", "rejected", "too long", 1, NOW, None)
LISTED = WaveAcknowledged(SYNC, 1, 1, NOW, 0, 9, 6, SPEC, NO_COUNTS, (REJECTED,), ("c",), (), SOON)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("positions", "since", "status", "code"),
    [
        (MIXED, [killed()], Status.SUPERSEDED, ExitCode.FAILED),
        (MIXED, [ended(Status.FAILED)], Status.SUPERSEDED, ExitCode.FAILED),
        (MIXED, [ended()], Status.SUPERSEDED, ExitCode.FAILED),  # `test --key` ends well, and sends one row
        ([Range(0, BUCKETS, 4, SPEC)], [OPEN_AT_6, killed()], Status.SUPERSEDED, ExitCode.FAILED),
        ([Range(0, BUCKETS, 4, SPEC)], [OPEN_AT_6, ended(Status.FAILED)], Status.SUPERSEDED, ExitCode.FAILED),
        (ALL_AT_5, [OPEN_AT_6, ended(Status.FAILED)], Status.IDLE, ExitCode.FAILED),
        (MIXED, [renewed()], "busy", ExitCode.BUSY),
        ([Range(0, BUCKETS, 6, SPEC)], [renewed()], "busy", ExitCode.BUSY),
        ([Range(0, BUCKETS, 6, SPEC)], [ended()], Status.IDLE, ExitCode.OK),
        ([Range(0, 9, 6, SPEC), Range(9, BUCKETS, 5, SPEC)], [ended()], Status.IDLE, ExitCode.OK),
        ([Range(0, BUCKETS, 6, SPEC)], [LISTED, ended(Status.PARTIAL)], Status.IDLE, ExitCode.FAILED),
    ],
)
def test_a_push_that_a_later_run_has_overtaken_is_green_only_if_that_one_has_delivered_its_rows(
    positions: Sequence[Range], since: Sequence[Fact], status: str, code: ExitCode
) -> None:
    overview, ledger = began(positions, *since)
    before = list(ledger.facts)
    report = after_an_hour(ledger, orders=6).push(A, overview)
    assert (report.status, report.exit_code) == (status, code), report.message
    assert ("has delivered more" in report.message) is (status == Status.IDLE)
    assert ledger.facts == before


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize("recorded", [LISTED, replace(LISTED, undelivered=(), hi=BUCKETS), OPEN_AT_6])
def test_a_run_of_an_older_snapshot_sends_nothing_beside_what_another_one_recorded_when_it_began(
    recorded: Fact, monkeypatch: pytest.MonkeyPatch
) -> None:
    overview, ledger = began([Range(0, BUCKETS, 4, SPEC)], killed())
    ledger.meanwhile = [replace(recorded, fence=1)]
    monkeypatch.setattr(SyncPush, "_source", lambda *_: NoRows())
    report = after_an_hour(ledger, orders=6).push(A, overview)
    assert (report.status, report.exit_code) == (Status.FAILED, ExitCode.FAILED)
    assert "another run sent rows of a newer snapshot meanwhile" in report.message
    state = ledger.read(SYNC)
    assert (state.fence, state.finished, state.reached) == (2, True, 6)
    assert all(place.snapshot != 5 for place in (*state.positions, *state.claims))


@pytest.mark.guarantee("Leases and rivals")
@pytest.mark.parametrize("mode", ["upsert", "update_only"])
@pytest.mark.parametrize(
    ("mine", "snapshot", "changelog", "head", "is_left"),
    [
        (4, 6, "uuid", 6, True), (5, 6, "uuid", 6, True), (4, 5, "uuid", 6, False), (4, 6, "old", 6, False),
        (4, 8, "uuid", 6, False),
    ],
)  # fmt: skip
def test_a_mirror_deletes_nothing_at_a_snapshot_before_that_of_another_sync_of_its_object(
    mine: int, snapshot: int, changelog: str, head: int, mode: str, *, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mine` at 5: all of it was delivered, through another filter. A neighbour beyond the head: the changelog was restored."""
    mirror, beside = sync("m", "orders", mode="mirror"), sync("u", "orders", mode=mode)
    settings = beside.sync.settings.model_copy(update={"object": "m"})
    beside = beside._replace(sync=replace(beside.sync, settings=settings))
    states = {**at(mirror, mine, where="id > 3").states, **at(beside, snapshot, changelog).states}
    warehouse = after_an_hour(Ledger(), orders=6)
    warehouse.resolved, reached = [mirror, beside], list[int]()
    monkeypatch.setattr(warehouse.ledger, "read", lambda name, _=None: states[name])
    monkeypatch.setattr(sync_push, "run", lambda job, *_: reached.append(job.head))
    monkeypatch.setattr(SyncPush, "_spec", lambda one, *_, **__: replace(one._earlier[0], where=None))
    monkeypatch.setattr(sync_push, "read_head", lambda *_: warehouse._heads["orders", head])
    report = warehouse.push(mirror, Overview(states))
    assert reached == ([] if is_left else [5])
    if is_left:
        assert (report.status, report.exit_code) == (Status.SUPERSEDED, ExitCode.FAILED)
        assert (
            report.message == "another sync of this object was pushed at a newer snapshot: the next push sends the rest"
        )


def test_events_of_a_crashed_run_are_sent_again_at_its_snapshot_and_those_of_one_before_the_position_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = sync("e", "orders", mode="changelog")
    heads = list[int]()
    monkeypatch.setattr(sync_push, "run", lambda job, *_: heads.append(job.head))
    for position, claims, wanted in ((3, [4], 4), (2, [3, 4], 4), (4, [3], 5), (3, [], 5), (4, [5], 5)):
        state = at(events, position).states[id_of(events)]
        spec = next(iter(state.specs))
        found = tuple(Claim(f"c{one}", 0, BUCKETS, one, spec) for one in claims)
        overview = Overview({id_of(events): replace(state, claims=found)})
        warehouse = after_an_hour(Ledger(), orders=5)
        warehouse._heads["orders", 4] = warehouse._heads["orders", 5]
        warehouse.push(events, overview)
        assert heads.pop() == wanted, (position, claims)
        assert not heads
