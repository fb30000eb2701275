"""Postgres: changes (45 % inserts, 45 % updates, 10 % deletes) by us, by hand, and by other tools, into the same server."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.delivery.waves import batches
from dbt_reverse_etl.sinks.base import Batch, SinkTask
from tests.benchmarks.peers import DLT, DRT, is_there
from tests.benchmarks.rows import Work, payload
from tests.benchmarks.turns import fastest, report
from tests.support.servers.postgres import Database, new_database, server

DRT_ROWS = 20_000
TYPES = ("int4", "bool", "int8", "text", "text", "text", "text", "float8", "int8", "timestamptz", "date", "bool")


def postgres(home: Path, rows: int, rounds: int) -> None:
    """Ours against the hand-written ways and dlt with all rows, and against drt with fewer."""
    work = PostgresWork(rows)
    candidates = {
        "raw": lambda: work.measure(lambda database: by_hand(database, work.ready)),
        "encoded": lambda: work.measure(lambda database: by_hand(database, work.after)),
        "ours": lambda: work.measure(work.deliver),
    }
    if is_there(DLT):
        files = work.files(home)
        candidates["unique key"] = lambda: work.by_dlt(files, unique=True)
        candidates["no key"] = lambda: work.by_dlt(files, unique=False)
    figures = fastest(min(rounds, 2), candidates)
    ours, what = figures["ours"], f"{rows} changes into Postgres"
    report(f"{what} / binary COPY of ready bytes by hand", ours / figures["raw"], "<= 1.3")
    report(f"{what} / binary COPY with write_row by hand", ours / figures["encoded"], "<= 1.3")
    for table in [name for name in ("unique key", "no key") if name in figures]:
        report(f"{DLT.name}, the same changes into a table with {table} / ours", figures[table] / ours, ">= 1.2")
    if is_there(DRT):
        few = PostgresWork(DRT_ROWS)
        file = few.pickled(home)
        drt = DRT_ROWS / min(few.by_drt(file) for _ in range(2))
        report(f"{what}: rows a second / {DRT.name} with {DRT_ROWS}", rows / ours / drt, ">= 20")


class PostgresWork(Work):
    """Done by Postgres."""

    @cached_property
    def ready(self) -> list[bytes | memoryview]:
        """The changes as bytes of a COPY stream."""
        with _dropped(new_database()) as database, closing(database.sink()) as sink:
            database.make(self.task)
            sink.open(self.task)
            return list(sink._writer.changes(self.after).data)

    @property
    def names(self) -> list[str]:
        return list(self.task.schema.names)

    @cached_property
    def expected(self) -> Any:
        """Contents after the changes, as one plain statement for each kind of change leaves them."""
        with _dropped(self.prepared()) as database:
            with database.owner() as connection:
                connection.execute(b"CREATE TEMP TABLE st AS SELECT 0 AS row, false AS deleted, * FROM people LIMIT 0")
                _copy(connection, self.after)
                connection.execute(b"DELETE FROM people USING st WHERE people.id = st.id")
                connection.execute(
                    f"INSERT INTO people SELECT {', '.join(self.names)} FROM st WHERE NOT deleted".encode()
                )
            return self.contents(database, "people")

    def contents(self, database: Database, table: str) -> Any:
        """Rows, and a sum of their hashes."""
        row = f"row({', '.join(self.names)})::text"
        return database.rows(f"SELECT count(*), sum(hashtextextended({row}, 0)) FROM {table}")

    def prepared(self) -> Database:
        """A database with the rows before the changes."""
        database = new_database()
        database.make(self.task)
        _deliver(database, self.task, self.before)
        database.run("VACUUM ANALYZE people")
        database.run("CHECKPOINT")
        return database

    def deliver(self, database: Database) -> None:
        """Ours."""
        _deliver(database, self.task, self.after)

    def measure(
        self, apply: Callable[[Database], float | None], table: str = "people", *, empty: bool = False
    ) -> float:
        """Seconds of one way, which may tell them itself; checked against the expected contents."""
        expected = self.expected
        with _dropped(new_database() if empty else self.prepared()) as database:
            began = time.perf_counter()
            told = apply(database)
            took = time.perf_counter() - began if told is None else told
            assert self.contents(database, table) == expected
            return took

    def files(self, home: Path) -> dict[str, str]:
        """Both tables for dlt."""
        found = {}
        for name, table in (("before", self.before), ("after", self.after)):
            deleted = pc.equal(table.column("_operation"), "delete")
            found[name] = str(home / f"{name}.arrow")
            with pa.OSFile(found[name], "wb") as file, pa.ipc.new_file(file, _flagged(table, deleted).schema) as writer:
                writer.write_table(_flagged(table, deleted))
        return found

    def by_dlt(self, files: dict[str, str], *, unique: bool) -> float:
        """It makes the table itself, with columns of its own beside ours."""

        def apply(database: Database) -> float:
            url = f"postgresql://postgres:none@localhost/{database.name}?host={quote(database.socket, safe='')}"
            return DLT.seconds(**files, url=url, unique=unique, format="parquet")

        return self.measure(apply, "crm.people", empty=True)

    def pickled(self, home: Path) -> str:
        """The changes for drt: rows to write, keys to delete."""
        deleted = pc.equal(self.after.column("_operation"), "delete")
        written, gone = payload(self.after.filter(pc.invert(deleted))), self.after.filter(deleted).select(["id"])
        file = home / "changes.pickle"
        file.write_bytes(pickle.dumps((written.to_pylist(), gone.to_pylist())))
        return str(file)

    def by_drt(self, file: str) -> float:
        """Its snapshot diff is given as ready as ours, its batch holds everything, and no row has a savepoint."""

        def apply(database: Database) -> float:
            place = {"host": database.socket, "dbname": database.name, "user": "postgres", "password": "none"}
            return DRT.seconds(
                rows=file,
                destination={"type": "postgres", "table": "public.people", "upsert_key": ["id"], **place},
                sync={
                    "mode": "mirror",
                    "incremental_strategy": "diff",
                    "diff": {},
                    "mirror": {"strategy": "diff"},
                    "batch_size": self.rows,
                    "on_error": "fail",
                },
            )

        return self.measure(apply)


@contextmanager
def _dropped(database: Database) -> Iterator[Database]:
    yield database
    with psycopg.connect(host=server(), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {database.name} WITH (FORCE)".encode())


def _deliver(database: Database, task: SinkTask, table: pa.Table) -> None:
    sink = database.sink()
    sink.open(task)
    for part in batches(table, sink.limits(task)):
        last = part.stop == table.num_rows
        assert not sink.deliver(Batch(table.slice(part.start, len(part)), f"claim {last}", last=last)).results
    sink.close()


def by_hand(database: Database, rows: pa.Table | list[bytes | memoryview]) -> None:
    """One transaction: COPY into a temporary table, DELETE USING, INSERT ON CONFLICT."""
    with database.owner() as connection:
        connection.execute(b"BEGIN")
        connection.execute(
            b"CREATE TEMP TABLE st ON COMMIT DROP AS SELECT 0 AS row, false AS deleted, * FROM people LIMIT 0"
        )
        _copy(connection, rows)
        connection.execute(b"DELETE FROM people USING st WHERE st.deleted AND people.id = st.id")
        names = [column.name for column in connection.execute(b"SELECT * FROM people LIMIT 0").description or ()]
        insert = f"INSERT INTO people SELECT {', '.join(names)} FROM st WHERE NOT deleted ORDER BY id "
        assignments = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        connection.execute(f"{insert} ON CONFLICT (id) DO UPDATE SET {assignments}".encode())
        connection.execute(b"COMMIT")


def _copy(connection: psycopg.Connection[Any], rows: pa.Table | list[bytes | memoryview]) -> None:
    """Ready bytes as they are; Arrow rows through psycopg's own writer."""
    with connection.cursor().copy(b"COPY st FROM STDIN (FORMAT binary)") as copy:
        if isinstance(rows, list):
            for piece in rows:
                copy.write(piece)
            return
        copy.set_types(TYPES)
        for batch in rows.to_batches(max_chunksize=50_000):
            deleted = pc.equal(batch.column("_operation"), "delete").to_pylist()
            columns = [column.to_pylist() for column in payload(batch).columns]
            for row in zip(range(batch.num_rows), deleted, *columns, strict=True):
                copy.write_row(row)


def _flagged(table: pa.Table, deleted: pa.Array) -> pa.Table:
    return payload(table).append_column("deleted", deleted)
