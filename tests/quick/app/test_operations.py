"""What `dbt run-operation` asks of a sync: resync, adopt, forget."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.fault_points import no_step
from dbt_reverse_etl.delivery.run import Status
from dbt_reverse_etl.errors import SyncBusy
from tests.support.delivery.desk import Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.world import Killed

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
