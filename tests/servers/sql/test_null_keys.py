"""A unique index lets NULLs stand side by side, so that a row with one in its key would come in again with each repeat."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Sink
from dbt_reverse_etl.testing import batch_of, opened, outcomes
from tests.support.servers.postgres import new_database
from tests.support.sinks.people import a_task, people, sink_on

DDL = "CREATE TABLE people (a int, b text, v text, UNIQUE (a, b))"
TASK = a_task(pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.string())]), key=("a", "b"))
Read = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Sink, Read]:
    """A sink on a table of somebody else, and what the table holds."""
    if request.param == "sqlite":
        db = sqlite3.connect(tmp_path / "crm.db")
        db.execute(DDL)
        return sink_on(tmp_path / "crm.db"), lambda: db.execute("SELECT * FROM people").fetchall()
    database = new_database()
    database.table(DDL)
    return database.sink(), lambda: database.rows("SELECT * FROM people")


@pytest.mark.guarantee("Postgres")
def test_a_row_with_a_null_in_any_part_of_its_key_is_refused_alone(place: tuple[Sink, Read]) -> None:
    sink, read = place
    rows = people({"a": 1, "b": "x", "v": "1"}, {"a": 1, "b": None, "v": "2"}, {"a": None, "b": "x", "v": "3"})
    with opened(sink, TASK):
        for _ in range(2):
            delivery = sink.deliver(batch_of(TASK, rows))
            assert outcomes(delivery, 3) == [Outcome.DELIVERED, Outcome.REJECTED, Outcome.REJECTED]
            assert "NULL in a key field" in delivery.results[0].reason
        assert outcomes(sink.deliver(batch_of(TASK, [("delete", {"a": 1, "b": None})])), 1) == [Outcome.REJECTED]
    assert read() == [(1, "x", "1")]
