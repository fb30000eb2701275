"""SQLite against a plain upsert of ready tuples in one transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa

from dbt_reverse_etl.sinks.base import Batch, Mode, SinkTask
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.settings import SqliteSettings
from tests.benchmarks.turns import fastest, report


def sqlite(home: Path, rounds: int) -> None:
    """100 000 changed rows into SQLite against a plain upsert of ready tuples in one transaction."""
    rows = 100_000
    table = pa.table(
        {
            "_operation": pa.array(["update"] * rows),
            "_event_id": pa.array([f"{n:064x}" for n in range(rows)]),
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([f"name {n}" for n in range(rows)]),
            "amount": pa.array([n * 1.5 for n in range(rows)]),
            "city": pa.array([f"city {n % 100}" for n in range(rows)]),
        }
    )
    ready = list(zip(*(table.column(name).to_pylist() for name in table.column_names[2:]), strict=True))
    schema = pa.schema([table.schema.field(name) for name in table.column_names[2:]])
    numbers = iter(range(1000))

    def plain() -> None:
        connection = sqlite3.connect(home / f"plain_{next(numbers)}.db")
        connection.execute("create table t (id integer primary key, name text, amount real, city text)")
        with connection:
            connection.executemany(
                "insert into t values (?, ?, ?, ?) on conflict (id) do update set name = excluded.name, amount = excluded.amount, city = excluded.city",
                ready,
            )
        connection.close()

    def ours() -> None:
        sink = SqliteSink(SqliteSettings(path=str(home / f"ours_{next(numbers)}.db")))
        task = SinkTask("ab", "bench", 1, "t", Mode.MIRROR, ("id",), schema)
        sink.open(task)
        limit = sink.limits(task).rows
        for start in range(0, rows, limit):
            assert not sink.deliver(Batch(table.slice(start, limit), "claim", last=start + limit >= rows)).results
        sink.finish()
        sink.close()

    figures = fastest(max(rounds, 5), {"plain": plain, "ours": ours})
    report("100 000 rows into SQLite / plain executemany of ready tuples", figures["ours"] / figures["plain"], "<= 1.3")
