"""`dbt run` killed with SIGKILL, as by a machine that runs out of memory: during a capture, and while Spark's executors send."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import INTERPRETED, spark_settings
from tests.faults.scene import state_of, wait_for
from tests.faults.shop import DBT, start, write_shop
from tests.unit.http_server import HttpServer, Received, Reply, http_server

MODEL = """
select id, concat('name ', id, ' {{ var("step", 1) }}') as name
from range({{ 4 if var("step", 1) > 1 else 0 }}, {{ 45 if var("step", 1) > 1 else 40 }})
"""
STEP_2 = ("--vars", "{step: 2}")
FIRST = {f"/people/{n}": f"name {n} 1" for n in range(40)}
SECOND = {f"/people/{n}": f"name {n} 2" for n in range(4, 45)}

# A first run, and a second one that dies with its JVM at the statement that would commit its snapshot.
KILLED_AT_THE_COMMIT = """
import os, signal
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

assert dbtRunner().invoke(["run"]).success
real = SparkSession.sql

def sql(self, text, *arguments, **more):
    if "txnVersion" in text:
        os.killpg(0, signal.SIGKILL)
    return real(self, text, *arguments, **more)

SparkSession.sql = sql
dbtRunner().invoke(["run", "--vars", "{step: 2}"])
"""
FROM_THE_EXECUTORS = """
from functools import partial
from dbt.cli.main import cli
from dbt_reverse_etl import invocation

invocation.Policy = partial(invocation.Policy, executors_from=1)
cli()
"""
AND_THE_HISTORY = """
from dbt.cli.main import dbtRunner

assert dbtRunner().invoke(["run", "--vars", "{step: 2}"]).success
query = "select _snapshot_id, _change, count(*) as n from {{ ref('people') }} group by all order by 1, 2"
dbtRunner().invoke(["show", "--inline", query, "--output", "json", "--limit", "50"])
"""


class Api:
    """Keeps rows, and holds back every answer from the tenth request after `hold` on."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.times: list[float] = []
        self.left = float("inf")
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        with self._lock:
            self.times.append(time.monotonic())
            self.left -= 1
            if request.method == "DELETE":
                self.rows.pop(request.path, None)
            else:
                self.rows[request.path] = request.json["name"]
        if self.left <= 0:
            self.go_on.wait(60)
        return Reply(204)


@pytest.fixture
def api() -> Iterator[tuple[HttpServer, Api]]:
    keeps = Api()
    with http_server(keeps) as server:
        yield server, keeps


@pytest.fixture
def shop(tmp_path: Path, api: tuple[HttpServer, Api]) -> Path:
    home = tmp_path / "shop"
    crm = {"type": "http", "url": api[0].url, "concurrency": 2}
    write_shop(home, MODEL, spark_settings(tmp_path / "spark") | INTERPRETED, {"crm": crm})
    assert start(home, *DBT, "deps").wait(120) == 0
    return home


def output_of(run: subprocess.Popen[str]) -> str:
    return run.communicate(timeout=300)[0]


def workers_of(driver: int) -> list[int]:
    """Spark's Python workers, and the daemon that forks them."""
    found = []
    for one in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a worker that ended just now
            found += [one.pid] if "pyspark.daemon" in one.cmdline() else []
    return found


def test_a_killed_capture_leaves_nothing_and_workers_of_a_killed_push_send_nothing_more(
    shop: Path, api: tuple[HttpServer, Api]
) -> None:
    keeps = api[1]
    capture = start(shop, "-c", KILLED_AT_THE_COMMIT, group=True)
    output = output_of(capture)
    assert capture.returncode == -signal.SIGKILL, output
    assert keeps.rows == FIRST, output

    # The next run captures the same changes, and dies while its executors send them.
    keeps.left = 10
    push = start(shop, "-c", FROM_THE_EXECUTORS, "run", *STEP_2, group=True)
    wait_for(lambda: keeps.left <= 0 or push.poll() is not None, 300)
    assert push.poll() is None, output_of(push)
    workers = workers_of(push.pid)
    assert {os.getpgid(worker) for worker in workers} not in (set(), {push.pid}), "a group of their own"
    os.killpg(push.pid, signal.SIGKILL)
    assert push.wait(60) == -signal.SIGKILL
    wait_for(lambda: {state_of(worker) for worker in workers} <= {"X", "Z"}, 10)
    sent = len(keeps.times)
    keeps.go_on.set()
    time.sleep(1)
    assert len(keeps.times) == sent
    assert keeps.rows != SECOND

    last = start(shop, "-c", AND_THE_HISTORY)
    output = output_of(last)
    assert last.returncode == 0, output
    assert keeps.rows == SECOND
    history = re.findall(r'"_snapshot_id": (\d+),\s+"_change": "(\w+)",\s+"n": (\d+)', output)
    assert history == [
        ("1", "insert", "40"),
        ("1", "snapshot", "1"),
        ("2", "checkpoint", "41"),
        ("2", "delete", "4"),
        ("2", "insert", "5"),
        ("2", "snapshot", "1"),
        ("2", "update_postimage", "36"),
        ("2", "update_preimage", "36"),
    ], output
