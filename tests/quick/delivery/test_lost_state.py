"""Changelogs and ledgers that were dropped, taken back or exchanged: nothing of others is deleted, and nothing looks well that is not."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import datetime, timezone

import pytest

from dbt_reverse_etl.app.operations import deliver_again
from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.delivery.facts import BUCKETS, Range, RunStarted, Undelivered
from dbt_reverse_etl.delivery.lost import why_lost
from dbt_reverse_etl.delivery.ports import Job, Status
from dbt_reverse_etl.delivery.position import fold
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.warehouse.ledger import decode, encode
from tests.support.delivery.desk import Desk
from tests.support.delivery.lost_world import LostWorld, Recording, Watched
from tests.support.delivery.memory_sinks import Destination
from tests.support.delivery.reference import SCHEMA, bucket
from tests.support.effort import until

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
ALL = {"other_changelog", "restored_changelog", "other_ledger"}


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sink", [Watched, Recording])
def test_over_any_losses_no_row_of_others_is_deleted_and_no_run_looks_well_while_the_destination_differs(
    sink: type[Watched],
) -> None:
    seen: set[str] = set()
    for seed in until(1000, lambda: seen == ALL):
        world = LostWorld(seed, sink)
        world.play(25)
        assert world.problems == [], f"seed {seed}"
        assert world.sink.wrong == [], f"seed {seed}"
        seen.update(world.seen)
    assert seen == ALL, "every loss was met"


def test_a_ledger_of_the_version_before_names_no_ledger_and_goes_on() -> None:
    started = RunStarted(
        "s", 1, "run", NOW, 1, "spec", {}, (Range(0, BUCKETS, 1, "spec"),), (), (), NOW, "here", "sync", "changelog 1"
    )
    word, body = encode(started)
    new = {"mark", "known_from", "leftovers", "captures"}
    before = decode(word, json.dumps({name: value for name, value in json.loads(body).items() if name not in new}))
    assert before == started
    task = SinkTask("s", "sync", 0, "object", Mode.MIRROR, ("key",), SCHEMA)
    for mark in ("", "of a newer version"):
        job = Job("run2", "changelog 1", 2, "spec", "{}", task, "here", mark=mark, captures={1: "a", 2: "b"})
        assert why_lost(job, fold([before]), Watched()) is None


def test_a_position_of_a_changelog_that_was_taken_back_names_undo_restore_and_what_to_do_where_it_cannot() -> None:
    started = RunStarted(
        "s", 1, "run", NOW, 3, "spec", {}, (Range(0, BUCKETS, 3, "spec"),), (), (), NOW, "here", "sync", "changelog 1"
    )
    task = SinkTask("s", "sync", 0, "object", Mode.UPSERT, ("key",), SCHEMA)
    job = Job("run2", "changelog 1", 1, "spec", "{}", task, "here", model="people")
    said = str(why_lost(job, fold([started]), Watched()))
    operations = [said.index(f"dbt run-operation {name}") for name in ("undo_restore", "reset", "resync")]
    assert operations == sorted(operations), said


def put_back(desk: Desk, backup: Destination) -> None:
    desk.sink.destination = deepcopy(backup)


def backed_up() -> tuple[Desk, Destination]:
    """Three runs have written to a destination; its backup was made after the second."""
    desk = Desk(Recording)
    desk.push({"k0": 1, "k1": 1})
    desk.push({"k0": 2, "k1": 1, "k2": 1})
    backup = deepcopy(desk.sink.destination)
    desk.push({"k0": 3, "k2": 1})
    put_back(desk, backup)
    return desk, backup


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("image", [None, {"k0": 4}], ids=["nothing is pending", "something is pending"])
def test_a_destination_that_was_put_back_is_named_before_anything_is_sent(image: dict[str, int] | None) -> None:
    desk, backup = backed_up()
    facts = len(desk.ledger.facts)
    for _ in range(2):
        with pytest.raises(DestinationError, match=r"put back: its record is of run 2, and run 3 .*--repair.*resync"):
            desk.push(image)
    assert (desk.sink.destination.rows, len(desk.ledger.facts)) == (backup.rows, facts)


def test_a_repair_brings_a_destination_that_was_put_back_to_the_model() -> None:
    desk, _ = backed_up()
    different = Undelivered("k0", bucket("k0"), 3, 3, False, True, 3, "update", "unknown", "", 0, NOW, None, "repair")
    extra = Undelivered("k1", bucket("k1"), None, None, True, True, 3, "delete", "unknown", "", 0, NOW, None, "repair")
    deliver_again([different, extra], desk.state(), desk._job(), desk._ports(), "")
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows == {"k0": 3, "k2": 1}
    assert desk.push({"k0": 4}).status == Status.SUCCEEDED, "and is as any other since"


def test_a_resync_is_a_way_out_for_a_destination_that_was_put_back() -> None:
    desk, _ = backed_up()
    desk.ask("resync")
    assert desk.push().status == Status.SUCCEEDED
    assert desk.sink.destination.rows["k0"] == 3


def test_a_record_of_an_older_run_is_no_loss_where_the_newest_one_delivered_nothing() -> None:
    desk = Desk(Recording)
    desk.push({"k0": 1})
    backup = deepcopy(desk.sink.destination)
    desk.sink.script = {"k1": ["rejected"]}
    assert desk.push({"k0": 1, "k1": 1}).counts.delivered.total == 0
    put_back(desk, backup)
    assert desk.push({"k0": 2, "k1": 1}).counts.delivered.total == 1
    assert desk.sink.destination.rows == {"k0": 2}
