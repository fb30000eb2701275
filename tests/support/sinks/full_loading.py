"""A full load of two rows into `people`, and how the server did it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.support.sinks.people import a_task, people

FULL = replace(next_run(a_task()), full_load=True)


def is_renamed(db: Any) -> bool:
    """Load two rows; whether by a rename."""
    before = db.storage()
    with opened(db.sink(), FULL) as sink:
        for number in (2, 3):
            assert deliver(sink, FULL, people(person(number, "new")), "whole", last=False) == [Outcome.DELIVERED]
        sink.swap("whole")
    assert db.rows("SELECT id, name FROM people ORDER BY id") == [(2, "new"), (3, "new")]
    return bool(db.storage() != before)
