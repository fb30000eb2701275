"""A COMMIT without an answer, in every transactional database: the batch is applied once, and what another session does meanwhile stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from dbt_reverse_etl.delivery.engine import Engine, WaveResult
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.sinks.base import Sink, SinkTask
from dbt_reverse_etl.sinks.sql.database import CLAIMS
from dbt_reverse_etl.testing import FakeClock, batch_of, next_run, opened, person
from tests.support.servers.proxy import Proxy, proxy_before
from tests.support.sinks.people import a_task, people, sink_on
from tests.support.sinks.sqlalchemy import duckdb_sink, postgres_sink

TASK = a_task()


class Place(Protocol):
    """A destination whose next COMMIT gets no answer, and which cannot be asked until it is back."""

    def sink(self) -> Sink: ...

    def lose(self, sink: Sink, *, after: bool) -> None:
        """The next COMMIT is carried out (`after`) or not."""

    def is_back(self) -> None: ...

    def run(self, statement: str) -> list[Any]:
        """In another session."""


class Server:
    """Behind a proxy."""

    def __init__(self, db: Any, proxy: Proxy, make: Callable[[], Sink]) -> None:
        self._db, self._proxy, self.sink = db, proxy, make

    def lose(self, sink: Sink, *, after: bool) -> None:
        # The sink of SQLAlchemy sends the word alone, as Postgres' protocol ends it.
        self._proxy.cut_at("COMMIT\0" if sink.type == "sqlalchemy" else self._db.COMMIT, after=after)
        self._proxy.down = True

    def is_back(self) -> None:
        assert self._proxy.cuts == 1
        self._proxy.down = False

    def run(self, statement: str) -> list[Any]:
        if statement.startswith("SELECT"):
            found: list[Any] = self._db.rows(statement)
            return found
        self._db.run(statement)
        return []


class DuckdbFile:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "crm.duckdb"
        self._down = False

    def sink(self) -> Sink:
        return duckdb_sink(self._file)

    def lose(self, sink: Any, *, after: bool) -> None:
        connection, engine = sink._connected(), sink._made_engine()
        carry_out = connection.commit if after else connection.rollback

        def commit() -> None:
            carry_out()
            self._down = True
            raise OperationalError("COMMIT", None, OSError("disk"), connection_invalidated=True)

        def refuse(*_: object) -> None:
            if self._down:
                raise OperationalError("connect", None, OSError("disk"), connection_invalidated=True)

        connection.commit = commit
        sa.event.listen(engine, "do_connect", refuse)

    def is_back(self) -> None:
        assert self._down
        self._down = False

    def run(self, statement: str) -> list[Any]:
        with sa.create_engine(f"duckdb:///{self._file}").begin() as other:
            found = other.exec_driver_sql(statement)
            return [tuple(row) for row in found.fetchall()] if statement.startswith("SELECT") else []


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self._file, self._lost = folder / "crm.sqlite", False

    def sink(self) -> Sink:
        return sink_on(self._file)

    def lose(self, sink: Any, *, after: bool) -> None:
        place = self

        class CommitFails(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if sql != "COMMIT" or place._lost:
                    return super().execute(sql, *parameters)
                place._lost = True
                super().execute("COMMIT" if after else "ROLLBACK")
                raise sqlite3.OperationalError("disk I/O error")

        sink._drop_connection()
        sink._connection = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=False, factory=CommitFails
        )

    def is_back(self) -> None:
        assert self._lost

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._file, isolation_level=None)) as other:
            return other.execute(statement).fetchall()


@pytest.fixture(params=["postgres", "mysql", "sqlalchemy on postgres", "sqlalchemy on duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqliteFile(tmp_path)
        return
    if request.param == "sqlalchemy on duckdb":
        yield DuckdbFile(tmp_path)
        return
    db = request.getfixturevalue("mysql_db" if request.param == "mysql" else "people_db")
    with proxy_before(db.socket_file) as proxy:
        if request.param == "sqlalchemy on postgres":
            yield Server(db, proxy, lambda: postgres_sink(db, host="127.0.0.1", port=proxy.port))
        else:
            yield Server(db, proxy, lambda: db.behind(proxy.port))


class Meanwhile(FakeClock):
    """While the engine waits for its first repeat, something happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens: Callable[[], None] | None = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        happens, self._happens = self._happens, None
        if happens:
            happens()


@contextmanager
def a_run(place: Place, task: SinkTask, rows: int) -> Iterator[Sink]:
    """Into a table that has these people from the runs before."""
    with opened(place.sink(), task) as sink:
        assert not sink.deliver(
            batch_of(task, people(*(person(number, "old") for number in range(rows))), "before")
        ).results
        yield sink


def sent(sink: Sink, clock: FakeClock, retries: Retries) -> WaveResult:
    rows = batch_of(TASK, [("update", person(1, "new")), ("insert", person(7, "new"))]).rows
    engine = Engine(sink, TASK, Policy(retries=retries), clock, lambda: True, random=lambda: 1.0)
    return engine.deliver_wave("claim-1", rows)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])
def test_a_batch_whose_commit_had_no_answer_is_applied_once_in_the_same_run(place: Place, after: bool) -> None:
    def happens() -> None:
        place.is_back()
        place.run("UPDATE people SET name = 'somebody else' WHERE id = 1")

    with a_run(place, TASK, 3) as sink:
        place.lose(sink, after=after)
        result = sent(sink, Meanwhile(happens), Retries())
        assert (result.failures, result.requests, result.counts.delivered.total) == ({}, 2, 2)
    names = dict(place.run("SELECT id, name FROM people"))
    assert names == {0: "old", 1: "somebody else" if after else "new", 2: "old", 7: "new"}
    assert len(place.run(f"SELECT claim FROM {CLAIMS} WHERE claim = 'claim-1'")) == 1


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])
def test_a_batch_whose_commit_had_no_answer_in_a_run_is_settled_by_the_next_one(place: Place, after: bool) -> None:
    with a_run(place, TASK, 3) as sink:
        place.lose(sink, after=after)
        result = sent(sink, FakeClock(), Retries(seconds=0))
        assert result.any_unknown
    place.is_back()
    with opened(place.sink(), next_run(TASK)) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True if after else None}
    assert len(place.run("SELECT id FROM people WHERE id = 7")) == int(after)
