"""`dbt run` killed with SIGKILL, as by a machine that runs out of memory: during a capture, and while Spark's executors send."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.dbt.shop import DBT, start, write_shop
from tests.support.delivery.scene import state_of, wait_for
from tests.support.servers.http import HttpServer, Received, Reply, http_server
from tests.support.spark_session import INTERPRETED, spark_settings

MODEL = """
select id, concat('name ', id, ' {{ var("step", 1) }}') as name
from range({{ 4 if var("step", 1) > 1 else 0 }}, {{ 45 if var("step", 1) > 1 else 40 }})
"""
STEP_2 = ("--vars", "{step: 2}")
FIRST = {f"/people/{n}": f"name {n} 1" for n in range(40)}
SECOND = {f"/people/{n}": f"name {n} 2" for n in range(4, 45)}

# dbt's commands one after the other; the last one dies with its JVM at the statement that holds a text.
COMMANDS = """
import json, os, signal, sys
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

*before, last = json.loads(sys.argv[1])
for command in before:
    assert dbtRunner().invoke(command).success
real = SparkSession.sql

def sql(self, text, *arguments, **more):
    if sys.argv[2:] and sys.argv[2] in text:
        os.killpg(0, signal.SIGKILL)
    return real(self, text, *arguments, **more)

SparkSession.sql = sql
assert dbtRunner().invoke(last).success
"""
THE_COMMIT = "txnVersion"
FROM_THE_EXECUTORS = """
from functools import partial
from dbt.cli.main import cli
from dbt_reverse_etl.app import invocation

invocation.Policy = partial(invocation.Policy, executors_from=1)
cli()
"""
HISTORY = "select _snapshot_id, _change, count(*) as n from {{ ref('people') }} group by all order by 1, 2"
HISTORY_ROW = r'"_snapshot_id": (\d+),\s+"_change": "(\w+)",\s+"n": (\d+)'
KINDS = "select snapshot_id, kind from {{ reverse_etl.snapshots(ref('people')) }} order by 1"
KINDS_ROW = r'"snapshot_id": (\d+),\s+"kind": "(\w+)"'


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


def commands(shop: Path, *given: tuple[str, ...], killed_at: str | None = None) -> str:
    """Output of dbt's commands in a process of their own."""
    run = start(shop, "-c", COMMANDS, json.dumps(given), *([killed_at] if killed_at else []), group=True)
    output = output_of(run)
    assert run.returncode == (-signal.SIGKILL if killed_at else 0), output
    return output


def operation(name: str, /, **arguments: Any) -> tuple[str, ...]:
    return "run-operation", name, "--args", json.dumps({"model": "people", **arguments})


def shown(query: str) -> tuple[str, ...]:
    return "show", "--inline", query, "--output", "json", "--limit", "50"


def output_of(run: subprocess.Popen[str]) -> str:
    return run.communicate(timeout=300)[0]


def workers_of(driver: int) -> list[int]:
    """Spark's Python workers, and the daemon that forks them."""
    found = []
    for one in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a worker that ended just now
            found += [one.pid] if "pyspark.daemon" in one.cmdline() else []
    return found


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_killed_capture_leaves_nothing_and_workers_of_a_killed_push_send_nothing_more(
    shop: Path, api: tuple[HttpServer, Api]
) -> None:
    keeps = api[1]
    output = commands(shop, ("run",), ("run", *STEP_2), killed_at=THE_COMMIT)
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

    output = commands(shop, ("run", *STEP_2), shown(HISTORY))
    assert keeps.rows == SECOND
    assert re.findall(HISTORY_ROW, output) == [
        ("1", "insert", "40"),
        ("1", "snapshot", "1"),
        ("2", "checkpoint", "41"),
        ("2", "delete", "4"),
        ("2", "insert", "5"),
        ("2", "snapshot", "1"),
        ("2", "update_postimage", "36"),
        ("2", "update_preimage", "36"),
    ], output


@pytest.mark.full  # tests/spark/changelog/test_history.py kills each operation, in its own process
@pytest.mark.guarantee("Capture")
def test_a_rollback_and_a_prune_that_are_killed_leave_nothing_and_are_done_by_the_next_call(
    shop: Path, api: tuple[HttpServer, Api]
) -> None:
    keeps = api[1]
    back, prune = operation("rollback", savepoint="good"), operation("prune", keep=1)
    commands(shop, ("run",), operation("savepoint", name="good"), ("run", *STEP_2), back, killed_at=THE_COMMIT)

    release = operation("release")
    commands(shop, ("run", *STEP_2), back, release, ("run", *STEP_2), prune, killed_at="merge into")
    assert keeps.rows == SECOND

    output = commands(shop, shown(KINDS), prune, shown(KINDS))
    pruned = [("2", "savepoint"), ("6", "capture")]
    kept = [("1", "capture"), *pruned[:1], ("3", "capture"), ("4", "rollback"), ("5", "release"), *pruned[1:]]
    assert re.findall(KINDS_ROW, output) == kept + pruned, output
