"""What a SIGKILL at half of its rows costs a push from Spark by the command: into a database beside it, and into an API that takes its time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.capture import COLUMNS, quick_settings
from tests.benchmarks.turns import report
from tests.support.dbt.shop import DBT, REVERSE_ETL, start, write_shop
from tests.support.servers.http import HttpServer, Reply, http_server
from tests.support.servers.postgres import Database, new_database

COLUMN_TYPES = {
    "id": "bigint primary key", "i": "int", "l": "bigint", "d": "float8", "m": "numeric(18, 2)", "s": "text", "e": "text", "c": "text", "t": "timestamptz", "b": "date",
}  # fmt: skip
TABLE = f"create table people ({', '.join(f'{name} {kind}' for name, kind in COLUMN_TYPES.items())})"
EACH, SLOW = 100, 0.1  # rows of a request, seconds until its answer
REQUESTS = {
    "batch": {"rows": EACH},
    "upsert": {"method": "POST", "path": "people"},
    "delete": {"method": "POST", "path": "people/delete"},  # of which there is none
}


@dataclass(frozen=True)
class Place:
    """A destination of one sync.

    Attributes:
        settings: as profiles.yml says them.
        arrived: rows, asked without slowing a push down.
        ids: of all rows, each once.
    """

    settings: dict[str, Any]
    arrived: Callable[[], int]
    ids: Callable[[], set[int]]


def crash(home: Path, rows: int) -> None:
    """Each process pays for a start of Spark, measured by a push that has nothing to send."""
    with ExitStack() as servers:
        kinds = {
            "Postgres": [_postgres() for _ in range(2)],
            f"an API of {SLOW * 1000:.0f} ms": [_http(servers.enter_context(http_server())) for _ in range(2)],
        }
        places = {
            f"{how}_{n}": pair[i] for n, pair in enumerate(kinds.values()) for i, how in enumerate(("whole", "killed"))
        }
        shop = home / "shop"
        write_shop(
            shop,
            f"select {COLUMNS} from range({rows})",
            quick_settings(home / "spark"),
            {name: place.settings for name, place in places.items()},
            {name: {"options": REQUESTS} for name, place in places.items() if place.settings["type"] == "http"},
        )
        for command in (["deps"], ["run"]):
            _ended(start(shop, *DBT, *command, DBT_REVERSE_ETL_PUSH="off"))
        for n, kind in enumerate(kinds):
            _into(f"{rows} rows into {kind}", shop, places, n, rows)


def _into(what: str, shop: Path, places: dict[str, Place], n: int, rows: int) -> None:
    whole = _seconds(shop, "push", f"whole_{n}")
    killed, arrived = _killed(shop, f"killed_{n}", places[f"killed_{n}"], rows // 2)
    resumed = _seconds(shop, "push", f"killed_{n}")
    nothing = _seconds(shop, "retry", f"killed_{n}")
    sent = places[f"killed_{n}"].arrived()

    for name in (f"whole_{n}", f"killed_{n}"):
        assert places[name].ids() == set(range(rows))
    report(f"seconds of a push of {what}, start of Spark included", whole, "")
    report(f"seconds of one that is killed at {arrived / rows:.0%}", killed, "")
    report("seconds of the push after it", resumed, "")
    report("seconds of a push of nothing: the start of Spark", nothing, "")
    report("rows that arrived in both, some of them twice / rows", sent / rows, "<= 1.1")
    report("killed and pushed again, but for one start / not killed", (killed + resumed - nothing) / whole, "<= 1.1")


def _postgres() -> Place:
    database = new_database()
    database.table(TABLE)
    return Place(
        {"type": "postgres", **database.settings()},
        lambda: _inserted(database),
        lambda: {key for (key,) in database.rows("select id from people")},
    )


def _inserted(database: Database) -> int:
    """By the server's own statistics: a count would slow the push down."""
    found = database.rows("select n_tup_ins from pg_stat_user_tables where relname = 'people'")
    return int(found[0][0]) if found else 0


def _http(server: HttpServer) -> Place:
    server.default = Reply(204, delay=SLOW)
    return Place(
        {"type": "http", "url": server.url},
        lambda: len(server.received) * EACH,
        lambda: {row["id"] for request in server.received for row in request.json},
    )


def _seconds(shop: Path, command: str, name: str) -> float:
    began = time.perf_counter()
    _ended(start(shop, *REVERSE_ETL, command, "--select", f"{name}_people"))
    return time.perf_counter() - began


def _killed(shop: Path, name: str, place: Place, rows: int) -> tuple[float, int]:
    """Seconds until so many rows had arrived, and how many they were in the end."""
    began = time.perf_counter()
    process = start(shop, *REVERSE_ETL, "push", "--select", f"{name}_people", group=True)
    try:
        while place.arrived() < rows:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    took = time.perf_counter() - began
    process.communicate()
    return took, place.arrived()


def _ended(process: subprocess.Popen[str]) -> None:
    output = process.communicate()[0]
    assert process.returncode == 0, output
