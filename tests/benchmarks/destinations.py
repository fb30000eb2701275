"""Our sinks against the usual or the rawest way into the same destination."""

from __future__ import annotations

import http.client as http_client
import multiprocessing
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.delivery.clock import SystemClock
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.sinks.base import Batch, Mode, SinkTask
from dbt_reverse_etl.sinks.http import HttpSink
from dbt_reverse_etl.sinks.http_options import HttpOptions
from dbt_reverse_etl.sinks.http_plan import plan_of
from dbt_reverse_etl.sinks.http_settings import HttpSettings
from dbt_reverse_etl.sinks.postgres_values import staged
from dbt_reverse_etl.sinks.sqlite import SqliteSettings, SqliteSink
from tests.benchmarks.turns import fastest, report
from tests.unit.postgres_server import Database, new_database


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
    report("100 000 rows into SQLite / plain executemany of ready tuples", figures["ours"] / figures["plain"], "<= 2")


def people(ids: pa.Array, salt: str) -> dict[str, pa.Array]:
    """Ten columns of usual types for these ids."""
    text = pc.cast(ids, pa.string())
    return {
        "id": ids,
        **{f"s{n}": pc.binary_join_element_wise("text", salt, str(n), text, " ") for n in range(4)},
        "f": pc.multiply(pc.cast(ids, pa.float64()), 0.5),
        "n": pc.multiply(ids, 7),
        "t": pc.cast(pc.add(ids, 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
        "d": pc.cast(pc.cast(pc.bit_wise_and(ids, 16383), pa.int32()), pa.date32()),
        "b": pc.equal(pc.bit_wise_and(ids, 1), 0),
    }


def changes(operations: Sequence[tuple[str, range]], salt: str) -> pa.Table:
    """Rows as a batch has them, in no order."""
    parts = []
    for operation, ids in operations:
        words = {"_operation": pa.array([operation] * len(ids)), "_event_id": pa.array(["0" * 64] * len(ids))}
        parts.append(pa.table({**words, **people(pa.array(ids, pa.int64()), salt)}))
    table = pa.concat_tables(parts)
    mixed = pc.sort_indices(
        pa.table({"h": pc.bit_wise_and(pc.multiply(table.column("id"), 2_654_435_761), 2**31 - 1)}),
        [("h", "ascending")],
    )
    return table.take(mixed).combine_chunks()


def postgres(rows: int, rounds: int) -> None:
    """Changes (45 % inserts, 45 % updates, 10 % deletes) against binary COPY, DELETE USING and INSERT ON CONFLICT by hand."""
    before = changes([("insert", range(rows))], "old")
    some = rows * 45 // 100
    after = changes(
        [("update", range(some)), ("delete", range(some, rows * 55 // 100)), ("insert", range(rows, rows + some))],
        "new",
    )
    names = after.column_names[2:]
    task = SinkTask("ab", "bench", 1, "people", Mode.MIRROR, ("id",), after.select(names).schema)
    ready: SimpleQueue[Database] = SimpleQueue()

    def prepare() -> None:
        database = new_database()
        database.make(task)
        _deliver(database, task, before)
        database.run("VACUUM ANALYZE people")
        database.run("CHECKPOINT")
        ready.put(database)

    def ours() -> float:
        prepare()
        began = time.perf_counter()
        _deliver(ready.get(), task, after)
        return time.perf_counter() - began

    def raw() -> float:
        prepare()
        database, stream = ready.get(), list(staged(after, names, task.key).stream)
        began = time.perf_counter()
        _by_hand(database, names, stream)
        return time.perf_counter() - began

    figures = fastest(min(rounds, 2), {"raw": raw, "ours": ours})
    report(
        f"{rows} changes into Postgres / binary COPY and ON CONFLICT by hand",
        figures["ours"] / figures["raw"],
        "<= 1.3",
    )


def _deliver(database: Database, task: SinkTask, table: pa.Table) -> None:
    sink = database.sink()
    sink.open(task)
    limit = sink.limits(task).rows
    for start in range(0, table.num_rows, limit):
        last = start + limit >= table.num_rows
        assert not sink.deliver(Batch(table.slice(start, limit), f"claim {last}", last=last)).results
    sink.close()


def _by_hand(database: Database, names: Sequence[str], stream: Sequence[bytes]) -> None:
    assignments = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    with database.owner() as connection:
        connection.execute("BEGIN")
        connection.execute(
            b"CREATE TEMP TABLE st ON COMMIT DROP AS SELECT 0 AS row, false AS deleted, * FROM people LIMIT 0"
        )
        with connection.cursor().copy(b"COPY st FROM STDIN (FORMAT binary)") as copy:
            for piece in stream:
                copy.write(piece)
        connection.execute(b"DELETE FROM people USING st WHERE st.deleted AND people.id = st.id")
        insert = f"INSERT INTO people SELECT {', '.join(names)} FROM st WHERE NOT deleted ORDER BY id "
        connection.execute(f"{insert} ON CONFLICT (id) DO UPDATE SET {assignments}".encode())
        connection.execute("COMMIT")


def http(rounds: int) -> None:
    """200 requests of 100 rows over eight connections, against as many raw connections that send the same bytes."""
    table = changes([("update", range(20_000))], "new")
    options = HttpOptions.model_validate({"batch": {"rows": 100}, "upsert": {"method": "POST", "path": "people"}})
    task = SinkTask(
        "ab", "bench", 1, "people", Mode.UPSERT, ("id",), table.select(table.column_names[2:]).schema, options=options
    )
    plan, problems = plan_of(task, options)
    assert not problems
    bodies = [plan.requests(table.slice(start, 100))[0][0].body or b"" for start in range(0, table.num_rows, 100)]
    for milliseconds in (20, 100):
        port: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
        server = multiprocessing.Process(target=_serve, args=(port, milliseconds / 1000), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{port.get()}"

        def ours(url: str = url) -> None:
            _engine(url, task).deliver_wave("claim", table)

        def raw(url: str = url) -> None:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: _send(url, bodies[n::8]), range(8)))

        figures = fastest(rounds, {"raw": raw, "ours": ours})
        report(f"requests a second at {milliseconds} ms / raw connections", figures["raw"] / figures["ours"], ">= 0.9")
        if milliseconds == 20:
            began = time.perf_counter()
            result = _engine(url, task, requests_per_second=50).deliver_wave("claim", table)
            took = time.perf_counter() - began
            report(
                "share of a budget of 50 requests a second that is used", (result.requests - 1) / 50 / took, ">= 0.97"
            )
        server.kill()


def _engine(url: str, task: SinkTask, **settings: float) -> Engine:
    sink = HttpSink(HttpSettings.model_validate({"url": url, "concurrency": 8, **settings}))
    sink.open(task)
    return Engine(sink, task, Policy(), SystemClock(), lambda: True)


def _send(url: str, bodies: Sequence[bytes]) -> None:
    connection = http_client.HTTPConnection(url.removeprefix("http://"))
    for body in bodies:
        connection.request("POST", "/people", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
    connection.close()


def _serve(port: multiprocessing.SimpleQueue[int], delay: float) -> None:
    """The cheapest server that reads a request, waits and answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port.put(listener.getsockname()[1])
    while True:
        threading.Thread(target=_answer, args=(listener.accept()[0], delay), daemon=True).start()


def _answer(connection: socket.socket, delay: float) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("rb")
    while reader.readline():
        length = 0
        while (line := reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        reader.read(length)
        time.sleep(delay)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
