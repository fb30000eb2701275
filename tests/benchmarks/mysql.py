"""MySQL: changes (45 % inserts, 45 % updates, 10 % deletes) by us, and by the upsert that the server itself does, into the same server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pyarrow import csv

from dbt_reverse_etl.sinks.base import Batch, SinkTask
from tests.benchmarks.rows import Work
from tests.benchmarks.turns import fastest, report
from tests.support.servers.mysql import Database, new_database


def mysql(home: Path, rows: int, rounds: int) -> None:
    """Ours against LOAD DATA and statements of many rows, each into a staging table, then one upsert."""
    work = MysqlWork(rows)
    file, texts = work.file(home), work.texts()
    figures = fastest(
        rounds,
        {
            "load data": lambda: work.measure(lambda database: _by_hand(database, work, file)),
            "rows": lambda: work.measure(lambda database: _by_hand(database, work, texts)),
            "ours": lambda: work.measure(work.deliver),
        },
    )
    what = f"{rows} changes into MariaDB"
    report(
        f"{what} / LOAD DATA of a ready file, then the server's upsert",
        figures["ours"] / figures["load data"],
        "<= 2.0",
    )
    report(
        f"{what} / ready INSERTs of 5000 rows, then the server's upsert", figures["ours"] / figures["rows"], "<= 2.0"
    )


class MysqlWork(Work):
    """Done by MariaDB."""

    @cached_property
    def plain(self) -> pa.Table:
        """The changes as the server takes them in a file: a flag, then the columns."""
        deleted = pc.cast(pc.equal(self.after.column("_operation"), "delete"), pa.int8())
        columns = {name: _plain(self.after.column(name)) for name in self.task.schema.names}
        return pa.table({"deleted": deleted, **columns})

    def file(self, home: Path) -> str:
        """The statement that loads them from a ready file."""
        path = home / "changes.csv"
        csv.write_csv(self.plain, path, csv.WriteOptions(include_header=False))
        return (
            f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE st CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'"
        )

    def texts(self, at_once: int = 5000) -> list[str]:
        """The statements that load them, ready to be sent."""
        rows = [f"({', '.join(map(_literal, row.values()))})" for row in self.plain.to_pylist()]
        return [f"INSERT INTO st VALUES {','.join(rows[n : n + at_once])}" for n in range(0, len(rows), at_once)]

    @cached_property
    def expected(self) -> Any:
        """Contents after the changes, by hand."""
        texts = self.texts()
        with _dropped(self.prepared()) as database:
            _by_hand(database, self, texts)
            return self.contents(database)

    def contents(self, database: Database) -> Any:
        """Rows, and a sum of their hashes."""
        return database.rows(
            f"SELECT COUNT(*), SUM(CRC32(CONCAT_WS('|', {', '.join(self.task.schema.names)}))) FROM people"
        )

    def prepared(self) -> Database:
        """A database with the rows before the changes."""
        database = new_database()
        database.make(self.task)
        _deliver(database, self.task, self.before)
        return database

    def deliver(self, database: Database) -> None:
        """Ours."""
        _deliver(database, self.task, self.after)

    def measure(self, apply: Callable[[Database], None]) -> float:
        """Seconds of one way; checked against the expected contents."""
        expected = self.expected
        with _dropped(self.prepared()) as database:
            began = time.perf_counter()
            apply(database)
            took = time.perf_counter() - began
            assert self.contents(database) == expected
            return took


def _deliver(database: Database, task: SinkTask, table: pa.Table) -> None:
    sink = database.sink()
    sink.open(task)
    limit = sink.limits(task).rows
    for start in range(0, table.num_rows, limit):
        last = start + limit >= table.num_rows
        assert not sink.deliver(Batch(table.slice(start, limit), f"claim {last}", last=last)).results
    sink.close()


def _by_hand(database: Database, work: MysqlWork, load: str | list[str]) -> None:
    """A staging table, then one transaction: DELETE with a join, INSERT ... SELECT ... ON DUPLICATE KEY UPDATE."""
    names = work.task.schema.names
    assigned = ", ".join(f"{name} = VALUES({name})" for name in names[1:])
    connection = pymysql.connect(
        unix_socket=database.server.socket,
        user="root",
        database=database.name,
        charset="utf8mb4",
        local_infile=True,
        autocommit=True,
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE st AS SELECT 0 AS deleted, people.* FROM people LIMIT 0")
        for statement in [load] if isinstance(load, str) else load:
            cursor.execute(statement)
        cursor.execute("START TRANSACTION")
        cursor.execute("DELETE people FROM people JOIN st ON people.id = st.id WHERE st.deleted")
        cursor.execute(
            f"INSERT INTO people ({', '.join(names)}) SELECT {', '.join(names)} FROM st WHERE NOT deleted "
            f"ON DUPLICATE KEY UPDATE {assigned}"
        )
        cursor.execute("COMMIT")


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type):
        return pc.cast(column, pa.int8())
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column, "%Y-%m-%d %H:%M:%S")
    return pc.cast(column, pa.string()) if pa.types.is_date(column.type) else column


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else "NULL" if value is None else str(value)


@contextmanager
def _dropped(database: Database) -> Iterator[Database]:
    yield database
    database.run(f"DROP DATABASE {database.name}")
