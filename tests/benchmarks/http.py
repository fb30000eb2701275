"""HTTP: requests of 100 rows against as many raw connections that send the same bytes, a budget, and another tool."""

from __future__ import annotations

import http.client as http_client
import json
import multiprocessing
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.plan import plan_of
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from tests.benchmarks.peers import DRT, is_there
from tests.benchmarks.rows import changes, task_of
from tests.benchmarks.turns import fastest, report
from tests.support.servers.http import http_server

ROWS, DRT_ROWS, EACH = 20_000, 2_000, 100
# Without pacing, which it has by default: ten requests a second. In batch mode it sends as many rows a request as we do; its default is one.
DRT_BATCHES = {"body_mode": "batch", "batch_template": "{{ rows | tojson_safe }}", "max_records_per_request": EACH}
OPTIONS = HttpOptions.model_validate({"batch": {"rows": EACH}, "upsert": {"method": "POST", "path": "people"}})


def http(home: Path, rounds: int) -> None:
    """At two latencies, with fewer and with more connections than one core can feed."""
    load = Load(ROWS)
    for milliseconds, connections in ((20, 4), (20, 8), (100, 8)):
        with _server(milliseconds) as url:
            _against_raw(f"HTTP at {milliseconds} ms", url, load, connections, rounds)
    with _server(20) as url:
        _budget(url, load)
    if is_there(DRT):
        for milliseconds in (20, 100):
            with _server(milliseconds) as url:
                _against_drt(f"HTTP at {milliseconds} ms", url, home)


@dataclass(frozen=True)
class Load:
    """So many rows, and the bodies of the requests that carry them."""

    rows: int

    @cached_property
    def table(self) -> pa.Table:
        return changes([("update", range(self.rows))], "new")

    @cached_property
    def task(self) -> SinkTask:
        return task_of(self.table, Mode.UPSERT, options=OPTIONS)

    @cached_property
    def bodies(self) -> list[bytes]:
        plan, problems = plan_of(self.task, OPTIONS)
        assert not problems
        parts = [self.table.slice(start, EACH) for start in range(0, self.rows, EACH)]
        return [plan.requests(plan.prepare(part))[0][0].body or b"" for part in parts]

    def seconds(self, url: str, **settings: float) -> tuple[float, float]:
        """Of the clock and of our CPU, until the engine has sent everything."""
        sink = HttpSink(HttpSettings.model_validate({"url": url, **settings}))
        sink.open(self.task)
        engine = Engine(sink, self.task, Policy(), Clock(), lambda: True)
        began, busy = time.perf_counter(), time.process_time()
        sent = engine.deliver_wave(WavePart("claim", self.table)).counts.delivered.total
        took = time.perf_counter() - began, time.process_time() - busy
        assert sent == self.rows
        return took


def _against_raw(what: str, url: str, load: Load, connections: int, rounds: int) -> None:
    ours: list[tuple[float, float]] = []

    def by_us() -> float:
        ours.append(load.seconds(url, concurrency=connections))
        return ours[-1][0]

    def raw() -> None:
        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(lambda n: _send(url, load.bodies[n::connections]), range(connections)))

    figures = fastest(rounds, {"raw": raw, "ours": by_us})
    took, busy = min(ours)
    what = f"{what}, {connections} connections"
    report(f"{what}: requests a second / raw connections", figures["raw"] / figures["ours"], ">= 0.9 below one core")
    report(f"{what}: cores that our process uses", busy / took, "")
    report(f"{what}: ms of our CPU for a request", busy / len(load.bodies) * 1000, "")


def _budget(url: str, load: Load) -> None:
    took, _ = load.seconds(url, requests_per_second=50)
    used = (len(load.bodies) - 1) / 50 / took
    report("share of a budget of 50 requests a second that is used", used, ">= 0.97")


def _against_drt(what: str, url: str, home: Path) -> None:
    with http_server() as server:
        _rows_a_second_of_drt(server.url, home, DRT_ROWS, DRT_BATCHES)
        sent = [row for request in server.received for row in request.json]
        assert (len(server.received), sent) == (DRT_ROWS // EACH, _few(DRT_ROWS))
    theirs = {
        "": max(_rows_a_second_of_drt(url, home, DRT_ROWS, DRT_BATCHES) for _ in range(2)),
        ", a row a request": _rows_a_second_of_drt(url, home, DRT_ROWS // 10, {}),
    }
    for connections in (8, 32):
        load = Load(ROWS // 8 * connections)
        took = min(load.seconds(url, concurrency=connections)[0] for _ in range(2))
        for way, each_second in theirs.items():
            report(
                f"{what}, {connections} connections: rows a second / {DRT.name}{way}",
                load.rows / took / each_second,
                ">= 30",
            )


def _few(rows: int) -> list[Any]:
    return [row for body in Load(rows).bodies for row in json.loads(body)]


def _rows_a_second_of_drt(url: str, home: Path, rows: int, mode: Mapping[str, Any]) -> float:
    """All rows in one call; it has one connection."""
    file = home / "rows.pickle"
    file.write_bytes(pickle.dumps((_few(rows), [])))
    return rows / DRT.seconds(
        rows=str(file),
        destination={
            "type": "rest_api",
            "url": f"{url}/people",
            "headers": {"Content-Type": "application/json"},
            **mode,
            "rate_limit": {"requests_per_second": 0},
        },
        sync={"mode": "upsert", "batch_size": rows, "on_error": "fail"},
    )


def _send(url: str, bodies: Sequence[bytes]) -> None:
    connection = http_client.HTTPConnection(url.removeprefix("http://"))
    for body in bodies:
        connection.request("POST", "/people", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
    connection.close()


@contextmanager
def _server(milliseconds: int) -> Iterator[str]:
    port: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=_serve, args=(port, milliseconds / 1000), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{port.get()}"
    process.kill()


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
