"""Changelogs and ledgers that were dropped, taken back or exchanged: nothing of others is deleted, and nothing looks well that is not."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from dbt_reverse_etl.delivery.facts import BUCKETS, Range, RunStarted
from dbt_reverse_etl.delivery.lost import why_lost
from dbt_reverse_etl.delivery.ports import Job
from dbt_reverse_etl.delivery.position import fold
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.warehouse.ledger import decode, encode
from tests.support.delivery.lost_world import LostWorld, Recording, Watched
from tests.support.delivery.reference import SCHEMA
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
