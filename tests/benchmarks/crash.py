"""What a SIGKILL at half of its rows costs a push from Spark by the command."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.benchmarks.capture import COLUMNS, quick_settings
from tests.benchmarks.turns import report
from tests.faults.shop import DBT, REVERSE_ETL, start, write_shop
from tests.unit.postgres_server import Database, new_database

COLUMN_TYPES = {
    "id": "bigint primary key", "i": "int", "l": "bigint", "d": "float8", "m": "numeric(18, 2)", "s": "text", "e": "text", "c": "text", "t": "timestamptz", "b": "date",
}  # fmt: skip
TABLE = f"create table people ({', '.join(f'{name} {kind}' for name, kind in COLUMN_TYPES.items())})"


def crash(home: Path, rows: int) -> None:
    """Each process pays for a start of Spark, measured by a push that has nothing to send."""
    places = {name: new_database() for name in ("whole", "killed")}
    for database in places.values():
        database.table(TABLE)
    shop = home / "shop"
    destinations = {name: {"type": "postgres", **database.settings()} for name, database in places.items()}
    write_shop(shop, f"select {COLUMNS} from range({rows})", quick_settings(home / "spark"), destinations)
    for command in (["deps"], ["run"]):
        _ended(start(shop, *DBT, *command, DBT_REVERSE_ETL_PUSH="off"))

    whole = _seconds(shop, "push", "whole")
    killed, arrived = _killed(shop, places["killed"], rows // 2)
    resumed = _seconds(shop, "push", "killed")
    nothing = _seconds(shop, "retry", "killed")

    for name in ("whole", "killed"):
        assert places[name].rows("select count(*), sum(id) from people") == [(rows, rows * (rows - 1) // 2)]
    report(f"seconds of a push of {rows} rows into Postgres, start of Spark included", whole, "")
    report(f"seconds of one that is killed at {arrived / rows:.0%}", killed, "")
    report("seconds of the push after it", resumed, "")
    report("seconds of a push of nothing: the start of Spark", nothing, "")
    report("killed and pushed again, but for one start / not killed", (killed + resumed - nothing) / whole, "<= 1.1")


def _seconds(shop: Path, command: str, name: str) -> float:
    began = time.perf_counter()
    _ended(start(shop, *REVERSE_ETL, command, "--select", f"{name}_people"))
    return time.perf_counter() - began


def _killed(shop: Path, database: Database, rows: int) -> tuple[float, int]:
    """Seconds until so many rows had arrived, and how many they were in the end."""
    began = time.perf_counter()
    process = start(shop, *REVERSE_ETL, "push", "--select", "killed_people", group=True)
    try:
        while _arrived(database) < rows:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    took = time.perf_counter() - began
    process.communicate()
    return took, int(database.rows("select count(*) from people")[0][0])


def _arrived(database: Database) -> int:
    """By the server's own statistics: a count would slow the push down."""
    found = database.rows("select n_tup_ins from pg_stat_user_tables where relname = 'people'")
    return int(found[0][0]) if found else 0


def _ended(process: subprocess.Popen[str]) -> None:
    output = process.communicate()[0]
    assert process.returncode == 0, output
