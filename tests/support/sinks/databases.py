"""The four databases of the SQL sinks under one interface, and how a COMMIT of each loses its answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.checks import create_table
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.dialects.duckdb import DuckdbSink
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.sink import SqlSink
from dbt_reverse_etl.testing import Row, batch_of, opened
from tests.support.delivery.clock import FakeClock
from tests.support.servers.proxy import proxy_before
from tests.support.sinks.people import a_task

KINDS = ("postgres", "mysql", "sqlite", "duckdb")
SERVERS, FILES = KINDS[:2], KINDS[2:]
# Types by the same word; text compares by its bytes.
TYPES = {
    "postgres": {"text": "text", "double": "double precision"},
    "mysql": {"text": "varchar(40)", "double": "double"},
    "sqlite": {"text": "TEXT", "double": "REAL"},
    "duckdb": {"text": "VARCHAR", "double": "DOUBLE"},
}


class Database(Protocol):
    """One database; its objects belong to somebody else than the user of the sink."""

    kind: str

    def sink(self, **more: Any) -> SqlSink:
        """A sink on it."""

    def run(self, text: str) -> None:
        """Statements of the owner, one in a line."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of the owner gives."""

    def make(self, task: SinkTask) -> None:
        """The task's table."""

    def table(self, ddl: str, name: str = "people") -> None:
        """A table of the owner, with the rights on it."""


class FileDatabase:
    """A file of SQLite or DuckDB, and another program that uses it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.file = kind, folder / f"crm #1.{kind}"

    @property
    def settings(self) -> dict[str, Any]:
        """What profiles.yml would say."""
        return {"path": str(self.file)}

    def sink(self, **more: Any) -> SqlSink:
        made = SqliteSink if self.kind == "sqlite" else DuckdbSink
        return made(made.settings_model.model_validate({**self.settings, **more}))

    def run(self, text: str) -> None:
        self.rows(text)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        with self.owner() as connection:
            for statement in filter(str.strip, query.split("\n")):
                found = connection.execute(statement).fetchall()
        return found

    @contextmanager
    def owner(self) -> Iterator[Any]:
        """A connection of the other program, in autocommit mode."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
                yield connection
        else:
            with duckdb.connect(str(self.file)) as connection:
                yield connection

    def make(self, task: SinkTask) -> None:
        dialect = self.sink()._dialect
        name = dialect.object_name(task.object)
        assert name
        self.run(create_table(dialect, name, task))

    def table(self, ddl: str, name: str = "people") -> None:
        self.run(ddl)


def people_of(db: Database, *more: str) -> str:
    """The DDL of somebody's table `people`, with these constraints or columns."""
    types = TYPES[db.kind]
    columns = (f"id bigint PRIMARY KEY, name {types['text']}, score {types['double']}", *more)
    end = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if db.kind == "mysql" else ""
    return f"CREATE TABLE people ({', '.join(columns)}){end}"


def refused(db: Database, changes: Sequence[tuple[str, Row]], **task: Any) -> dict[int, str]:
    """Open, and deliver one batch, as a run does where the database refuses it as one; row -> reason."""
    the_task = a_task(**task)
    with opened(db.sink(), the_task) as sink:
        if db.kind != "duckdb":
            return {result.index: result.reason for result in sink.deliver(batch_of(the_task, changes)).results}
        engine = Engine(sink, the_task, Policy(), FakeClock(), lambda: True, random=lambda: 1.0)
        rows = batch_of(the_task, changes).rows
        keys = pa.array(map(str, range(len(rows))))
        table = rows.append_column("_key", keys).append_column("_before_hash", pa.nulls(len(rows), pa.int64()))
        failures = engine.deliver_wave(WavePart("claim-1", table)).failures
        return {row: failure.reason for row, failure in failures.items()}


class Losing:
    """A database whose next COMMIT gets no answer, and which cannot be asked until it is back."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def sink(self) -> SqlSink:
        """A sink whose COMMIT can be lost."""
        raise NotImplementedError

    def lose(self, sink: SqlSink, *, after: bool) -> None:
        """The next COMMIT is carried out (`after`) or not."""
        raise NotImplementedError

    def is_back(self) -> None:
        """Fails if no COMMIT was lost."""
        raise NotImplementedError


class LosingServer(Losing):
    """Behind a proxy."""

    def __init__(self, db: Any, proxy: Any) -> None:
        super().__init__(db)
        self._proxy = proxy

    def sink(self) -> SqlSink:
        made: SqlSink = self.db.behind(self._proxy.port)
        return made

    def lose(self, sink: SqlSink, *, after: bool) -> None:
        self._proxy.cut_at(self.db.COMMIT, after=after)
        self._proxy.down = True

    def is_back(self) -> None:
        assert self._proxy.cuts == 1
        self._proxy.down = False


class LosingFile(Losing):
    """On a disk that fails."""

    _lost = False

    def sink(self) -> SqlSink:
        made: SqlSink = self.db.sink()
        return made

    def lose(self, sink: SqlSink, *, after: bool) -> None:
        dialect: Dialect = sink._dialect
        run = dialect.run

        def failing(connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
            if statement != "COMMIT" or self._lost:
                return run(connection, statement, values)
            self._lost = True
            run(connection, "COMMIT" if after else "ROLLBACK")
            raise dialect.failure_type("disk I/O error")

        dialect.run = failing  # type: ignore[method-assign]

    def is_back(self) -> None:
        assert self._lost


@contextmanager
def losing(db: Any) -> Iterator[Losing]:
    """The same database, as one that loses a COMMIT."""
    if db.kind in FILES:
        yield LosingFile(db)
        return
    with proxy_before(db.socket_file) as proxy:
        yield LosingServer(db, proxy)
