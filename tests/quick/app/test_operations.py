"""What `dbt run-operation` asks of a sync: resync, adopt, forget."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import Row

from dbt_reverse_etl.app.identity import id_of, requests_of
from dbt_reverse_etl.app.operations import as_carried_out, carry_out
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import OtherLedger, SyncBusy
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.progress import no_step
from dbt_reverse_etl.warehouse.ledger import _requests
from dbt_reverse_etl.warehouse.overview import Overview, Request
from tests.support.delivery.desk import Desk
from tests.support.delivery.histories import settle
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.pushers import pusher, sync
from tests.support.delivery.world import Killed, Plan, World

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SINKS = [PlainSink, TransactionalSink]


def delivered(sink: type[PlainSink]) -> Desk:
    """Two rows of ours at the destination, and one of somebody else."""
    desk = Desk(sink)
    desk.sink.destination.rows["k9"] = 99
    desk.push({"k0": 1, "k1": 2})
    return desk


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", SINKS)
def test_a_resync_sends_every_row_again_and_deletes_exactly_what_this_sync_delivered_and_is_gone(
    sink: type[PlainSink],
) -> None:
    desk = delivered(sink)
    desk.ask("resync")
    result = desk.push({"k0": 1, "k2": 3})
    assert result.status == Status.SUCCEEDED
    assert desk.sink.destination.rows == {"k0": 1, "k2": 3, "k9": 99}
    assert desk.sink.destination.deleted == ["k1"]
    assert result.counts.delivered.total == 3
    assert desk.push().status == Status.IDLE, "it was asked for once"


@pytest.mark.parametrize("sink", SINKS)
def test_a_resync_after_the_destination_was_emptied_makes_it_whole(sink: type[PlainSink]) -> None:
    desk = delivered(sink)
    destination = desk.sink.destination
    destination.rows.clear()
    destination.records.clear()
    destination.fence = 0
    desk.ask("resync")
    assert desk.push({"k0": 1, "k2": 3}).status == Status.SUCCEEDED
    assert destination.rows == {"k0": 1, "k2": 3}


@pytest.mark.parametrize("sink", SINKS)
def test_adopt_moves_the_position_and_sends_nothing(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    desk.changelog.capture({"k0": 1, "k1": 2})
    desk.sink.destination.rows.update({"k0": 1, "k1": 2})
    desk.ask("adopt")
    assert desk.push().status == Status.IDLE
    assert desk.push({"k0": 1}).counts.delivered == PerOperation(delete=1)
    assert desk.sink.destination.rows == {"k0": 1}


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", SINKS)
def test_what_was_captured_after_adopt_was_asked_for_is_sent(sink: type[PlainSink]) -> None:
    desk = Desk(sink)
    desk.changelog.capture({"k0": 1, "k1": 2})
    desk.sink.destination.rows.update({"k0": 1, "k1": 2})
    request = Request("asked", "sync", "adopt", desk.clock.now(), "uuid", desk.changelog.head)
    desk.changelog.capture({"k0": 1, "k1": 99, "k2": 3})
    state = desk.state().for_spec(desk.spec.id, "{}")
    planned = as_carried_out(request, state, desk._job(), None, desk.clock.now())
    carry_out(request, state, desk._job(), desk._ports(), desk.policy)
    assert desk.state().positions == planned.positions
    assert desk.push().counts.delivered == PerOperation(insert=1, update=1)
    assert desk.sink.destination.rows == {"k0": 1, "k1": 99, "k2": 3}


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", SINKS)
def test_forget_makes_the_next_push_a_first_load_that_deletes_nothing(sink: type[PlainSink]) -> None:
    desk = delivered(sink)
    desk.ask("forget")
    assert desk.push({"k0": 5}).counts.delivered == PerOperation(insert=1)
    assert desk.sink.destination.rows == {"k0": 5, "k1": 2, "k9": 99}


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("operation", ["resync", "adopt", "forget"])
def test_an_operation_waits_for_the_run_that_is_under_way_and_remembers_one_that_never_ended(
    sink: type[PlainSink], operation: str
) -> None:
    desk = delivered(sink)

    def die(name: str) -> None:
        if name == "wave.delivered":
            raise Killed

    desk.step = die
    with pytest.raises(Killed):
        desk.push({"k0": 5})
    desk.step = no_step
    with pytest.raises(SyncBusy, match="lease until"):
        desk.ask(operation)
    lease = desk.policy.lease.total_seconds()
    desk.clock.sleep(lease)
    desk.ask(operation)
    assert [run.fence for run in desk.state().abandoned] == [2], "it may wake up: prune must keep what it was sending"
    assert desk.push().status in (Status.SUCCEEDED, Status.IDLE)


@pytest.mark.guarantee("What is sent")
def test_a_resync_never_deletes_a_row_that_the_destination_refused_when_it_was_ours() -> None:
    desk = Desk()
    desk.sink.destination.rows["k1"] = 99
    desk.sink.script = {"k1": ["rejected"]}
    desk.push({"k0": 1, "k1": 2})
    desk.ask("resync")
    assert desk.push({"k0": 1}).status == Status.SUCCEEDED
    assert desk.sink.destination.rows == {"k0": 1, "k1": 99}


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("operation", ["resync", "reconcile"])
def test_a_doubt_that_comes_while_an_operation_begins_is_not_forgotten(operation: str) -> None:
    world = World(PlainSink)
    world.capture({"k0": 6})
    world.push(Plan())
    world.capture({"k0": 8, "k3": 6})
    world.push(Plan(at=("batch.before", 1), then="asleep"))
    world.capture({"k0": 12, "k3": None})
    world.push(Plan())
    # The first one was taken for dead: its rows come after the newer ones, and its doubt after the state was read.
    world.ask(operation, lambda: world.wake(0))
    assert world.destination.rows == {"k0": 4, "k3": 3}
    assert settle(world) == []


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sink", SINKS)
def test_waves_that_come_while_a_resync_begins_are_not_forgotten(sink: type[PlainSink]) -> None:
    world = World(sink)
    world.capture({"k0": 6})
    world.push(Plan())
    world.capture({"k1": 8, "k3": 6})
    world.push(Plan(at=("batch.before", 1), then="asleep", wave_rows=1))
    world.capture({"k1": None, "k3": None})
    world._alive.clear()
    world.ask("resync", lambda: world.wake(0))
    assert settle(world) == []
    assert world.destination.rows == {"k0": 3}


def restored(desk: Desk) -> None:
    """The ledger, without its last two runs; as Delta, it takes no fence twice."""
    taken = desk.state().fence
    desk.ledger.facts = [fact for fact in desk.ledger.facts if fact.fence < taken - 1]
    desk.clock.sleep(60)
    desk.ledger.restored = desk.clock.now()
    real = desk.ledger.start
    desk.ledger.start = lambda started: real(started) if started.fence > taken else None  # type: ignore[method-assign]


@pytest.mark.guarantee("Crashes and claims")
def test_in_a_ledger_that_was_restored_a_resync_goes_beyond_the_runs_that_are_gone() -> None:
    desk = delivered(PlainSink)
    for value in range(3, 6):
        desk.push({"k0": value})
    restored(desk)
    for _ in range(2):
        with pytest.raises(OtherLedger, match="it had a run 3 before"):
            desk.push({"k0": 9})
    desk.clock.sleep(60)
    desk.ask("resync")
    state = desk.state()
    assert state.fence > 4
    assert (state.known_from, state.positions[0].snapshot) == (state.fence, 0)
    assert state.leftovers
    assert desk.push().left, "k1 or any other row may have been left"


@pytest.mark.guarantee("Crashes and claims")
def test_a_request_that_a_restore_of_the_ledger_brings_back_is_not_carried_out_again() -> None:
    desk = delivered(PlainSink)
    for value in range(3, 6):
        desk.push({"k0": value})
    asked = desk.clock.now()
    restored(desk)
    before = list(desk.ledger.facts)
    request = Request("again", "sync", "adopt", asked)
    with pytest.raises(OtherLedger):
        carry_out(request, desk.state(), desk._job(), desk._ports(), desk.policy)
    assert desk.ledger.facts == before


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (["adopt old", "adopt old"], []),
        (["adopt old", "resync "], ["resync "]),
        (["adopt old", "adopt new"], ["adopt new"]),
        (["resync ", "adopt old"], ["resync "]),
    ],
)
def test_an_adopt_of_a_changelog_that_was_replaced_is_carried_out_for_no_other(
    asked: list[str], left: list[str]
) -> None:
    one = sync("people", "orders")
    words = [text.partition(" ") for text in asked]
    requests = [
        Request(str(number), "people", operation, NOW, changelog)
        for number, (operation, _, changelog) in enumerate(words)
    ]
    push = SyncPush(pusher(), one, Overview(requests={"people": requests}))
    assert [f"{request.operation} {request.changelog}" for request in push._requests("new")] == left
    assert bool(push._notes) is (asked[-1] == "adopt old")


def test_a_request_at_another_target_which_has_the_changelog_elsewhere_is_not_carried_out() -> None:
    one = sync("people", "orders")
    asked = [
        Request(where, "people", "forget", NOW, relation=where)
        for where in ("", "orders", '"Orders"', "`dev`.`orders`")
    ]
    push = SyncPush(pusher(), one, Overview(requests={"people": asked}))
    assert [request.id for request in push._requests("new")] == ["", "orders", '"Orders"'], "quoting has changed since"


def test_an_adopt_of_a_changelog_that_was_replaced_is_over_once_a_run_of_the_other_has_begun() -> None:
    one, others = sync("people", "orders"), pusher().resolved
    asked = [Request(which, "people", "adopt", NOW, which) for which in ("old", "new")]

    def left(changelog: str, at: datetime) -> list[str]:
        begun = RunStarted(id_of(one), 1, "r", at, 5, "s", {}, (), (), (), NOW, "o", changelog=changelog)
        overview = Overview(requests={"people": asked}, started={id_of(one): begun})
        return [request.id for request in requests_of(one, overview, others)]

    minute = timedelta(minutes=1)
    assert left("new", NOW + minute) == ["new"]
    assert left("new", NOW - minute) == ["old", "new"], "asked since"
    assert left("", NOW + minute) == ["old", "new"], "an older version kept no changelog"
    begun = RunStarted(id_of(one), 1, "r", NOW + minute, 5, "s", {}, (), (), (), NOW, "o", changelog="old")
    overview = Overview(requests={"people": asked}, started={id_of(one): begun})
    push = SyncPush(pusher(), one, overview)
    assert [request.id for request in push._requests("new")] == ["new"], "the clock of the run was ahead"


def test_what_was_asked_at_an_object_that_a_sync_has_no_more_is_said_until_its_next_run() -> None:
    one = sync("people", "orders")
    here = one.sync.settings.object
    asked = [Request(place, "people", "adopt", NOW, object=place) for place in ("", here, "before")]

    def notes(*begun: RunStarted) -> list[str]:
        overview = Overview(requests={"people": asked}, started={id_of(one): run for run in begun})
        push = SyncPush(pusher(), one, overview)
        assert [request.id for request in push._requests("new")] == ["", here]
        return push._notes

    assert notes() == [
        "adopt was asked for the object before, so nothing was done here: if it was meant for this sync, ask again"
    ]
    later = RunStarted(id_of(one), 1, "r", NOW + timedelta(minutes=1), 5, "s", {}, (), (), (), NOW, "o")
    assert notes(later) == []


def test_what_was_asked_at_another_destination_is_not_done_here_and_said() -> None:
    one = sync("people", "orders")
    where, what = one.sync.settings.destination, one.sync.settings.object
    asked = [Request(name, "people", "adopt", NOW, object=what, destination=name) for name in ("", where, "staging")]
    push = SyncPush(pusher(), one, Overview(requests={"people": asked}))
    assert [request.id for request in push._requests("new")] == ["", where]
    assert f"adopt was asked for the object {what} of staging, so nothing was done here" in push._notes[0]


def test_a_request_of_the_ledger_names_the_destination_if_one_was_written() -> None:
    said = {"operation": "resync", "object": "people"}
    bodies = [said, {**said, "destination": "crm"}]
    rows = [
        Row(fact="request", run_id=f"r{n}", carried_out=[], recorded_at=NOW, sync="people", body=json.dumps(body))
        for n, body in enumerate(bodies)
    ]
    assert [one.destination for one in _requests(rows)["people"]] == ["", "crm"]
