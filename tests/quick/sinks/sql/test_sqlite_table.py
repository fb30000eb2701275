"""The user's table under the SQLite sink: what fits, what does not, and what to do about it."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.sqlite.table import statements
from dbt_reverse_etl.testing import PEOPLE, deliver, opened, person
from tests.support.sinks.people import DELIVERED, a_task, people, sink_on, table

UNFIT = {
    "a missing field": ("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)", "score"),
    "no unique key": ("CREATE TABLE people (id INTEGER, name TEXT, score REAL)", "unique index"),
    "a key of two": ("CREATE TABLE people (id INTEGER, name TEXT, score REAL, PRIMARY KEY (id, name))", "unique index"),
    "a partial key": (
        "CREATE TABLE people (id INTEGER, name TEXT, score REAL); CREATE UNIQUE INDEX i ON people (id) WHERE score > 0",
        "unique index",
    ),
    "a column to fill": ("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL, x INT NOT NULL)", "x"),
    "numbers for text": ("CREATE TABLE people (id INTEGER PRIMARY KEY, name STRING, score REAL)", "name"),
    "text for numbers": ("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score TEXT)", "score"),
    "floats for keys": ("CREATE TABLE people (id REAL PRIMARY KEY, name TEXT, score REAL)", "id"),
    "a generated column": (
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL AS (id * 2))",
        "generated",
    ),
    "a view": ("CREATE VIEW people AS SELECT 1 AS id, 'a' AS name, 1.0 AS score", "view"),
    "a virtual table": ("CREATE VIRTUAL TABLE people USING fts5(id, name, score)", "virtual"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_table_that_does_not_fit_is_refused_and_its_own_advice_helps(
    case: str, path: Path, db: sqlite3.Connection
) -> None:
    ddl, named = UNFIT[case]
    db.executescript(ddl)
    with pytest.raises(DestinationError, match=re.escape(named)) as caught, opened(sink_on(path), a_task()):
        pass
    assert not db.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE '_dbt%'").fetchone()[0], "nothing is left"
    advice = re.search(r"run: (.*)", caught.value.problems[0].next_step)
    if advice:
        db.execute(advice[1])
        with opened(sink_on(path), a_task()) as sink:
            assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("SQLite")
def test_a_key_that_ignores_case_would_merge_rows_and_is_refused(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id TEXT PRIMARY KEY COLLATE NOCASE)")
    with (
        pytest.raises(DestinationError, match="BINARY"),
        opened(sink_on(path), a_task(pa.schema([("id", pa.string())]))),
    ):
        pass


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.UPDATE_ONLY])
def test_a_key_column_that_ignores_case_never_hits_another_row(mode: Mode, path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id TEXT COLLATE NOCASE, v TEXT)")
    db.execute("CREATE UNIQUE INDEX i ON people (id COLLATE BINARY)")
    db.execute("INSERT INTO people VALUES ('a', 'theirs')")
    task = a_task(pa.schema([("id", pa.string()), ("v", pa.string())]), mode=mode)
    operation = "delete" if mode is Mode.MIRROR else "update"
    with opened(sink_on(path), task) as sink:
        deliver(sink, task, [(operation, {"id": "A"})])
    assert table(db) == [("a", "theirs")]


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE people (ID INTEGER PRIMARY KEY, Name VARCHAR(9), SCORE DOUBLE, extra TEXT)",
        "CREATE TABLE people (id INT, name, score FLOAT, x TEXT NOT NULL DEFAULT '', UNIQUE (id))",
        "CREATE TABLE people (id BIGINT PRIMARY KEY, name CLOB, score NUMERIC) WITHOUT ROWID",
        "CREATE TABLE people (x INTEGER PRIMARY KEY, score REAL, name TEXT, id INTEGER UNIQUE)",
        "CREATE TABLE people (x INTEGER PRIMARY KEY NOT NULL, id INT UNIQUE, name TEXT, score REAL)",
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL) STRICT",
    ],
)
def test_a_users_own_table_is_taken_as_it_is(ddl: str, path: Path, db: sqlite3.Connection) -> None:
    db.execute(ddl)
    before = db.execute("SELECT sql FROM sqlite_master WHERE name = 'people'").fetchall()
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "Ada"), person(1, "Grace"), person(2))) == [DELIVERED] * 3
    assert db.execute("SELECT id, name, score FROM people").fetchall() == [(1, "Grace", 1.5), (2, "Ada", 1.5)]
    assert db.execute("SELECT sql FROM sqlite_master WHERE name = 'people'").fetchall() == before


def test_deletes_use_the_key_index(path: Path, db: sqlite3.Connection) -> None:
    for schema in (PEOPLE, pa.schema([("name", pa.string()), ("id", pa.int64())])):
        task = a_task(schema, object=f"by_{schema.names[0]}")
        with opened(sink_on(path), replace(task, sync_id=schema.names[0])):
            plan = db.execute(f"EXPLAIN QUERY PLAN {statements(task).delete}", (1,)).fetchall()
        assert "SEARCH" in str(plan), plan


@pytest.mark.parametrize(("mode", "create"), [(Mode.MIRROR, False), (Mode.UPDATE_ONLY, True)])
def test_a_missing_table_is_an_error_where_it_may_not_be_made(mode: Mode, create: bool, path: Path) -> None:
    with (
        pytest.raises(DestinationError, match="no table people"),
        opened(sink_on(path, create_object=create), a_task(mode=mode)),
    ):
        pass


@pytest.mark.parametrize("digits", [15, 16])
def test_a_number_column_takes_only_decimals_that_it_can_hold_exactly(
    digits: int, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, price DECIMAL(38, 2))")
    task = a_task(pa.schema([("id", pa.int64()), ("price", pa.decimal128(digits, 2))]))
    if digits > 15:
        with pytest.raises(DestinationError, match="price"), opened(sink_on(path), task):
            pass
        return
    price = Decimal("9" * (digits - 2) + ".99")
    with opened(sink_on(path), task) as sink:
        assert deliver(sink, task, people({"id": 1, "price": price})) == [DELIVERED]
    assert f"{table(db)[0][1]:.2f}" == str(price)
