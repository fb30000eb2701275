"""A real cluster: executors are processes of their own, one is killed and a machine is lost while they send."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.dbt.shop import start, write_shop
from tests.support.servers.http import HttpServer, Received, Reply, http_server
from tests.support.servers.spark import Cluster, python_without_the_package, standalone_cluster
from tests.support.spark_session import INTERPRETED, spark_settings

TOKEN = "token-of-the-crm-83c1f5"
WAVE = 250
MODEL = """
select id, concat('person ', id, if(id % 50 = 0, ' {{ var("step", 1) }}', ' 1')) as name
from range({{ 30 if var("step", 1) > 1 else 0 }}, {{ 1010 if var("step", 1) > 1 else 1000 }})
"""
FIRST = {f"/people/{n}": f"person {n} 1" for n in range(1000)}
SECOND = {f"/people/{n}": f"person {n} {1 if n % 50 else 2}" for n in range(30, 1010)}
RUNS = f"""
from functools import partial
from dbt.cli.main import dbtRunner
from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.delivery.waves import WaveSize

waves = WaveSize(rows={WAVE}, grow_below=-1)
invocation.Policy = partial(invocation.Policy, executors_from=1, executor_waves=waves)
for command in (["deps"], ["run", "--select", "people"], ["run", "--select", "people", "--vars", "{{step: 2}}"]):
    assert dbtRunner().invoke(command).success, command
"""

LIST = f"""
import json, sys
from dataclasses import replace
from pyspark.sql import SparkSession
from dbt_reverse_etl.warehouse import ledger
from tests.spark.delivery.test_ledger import UNDELIVERED, started

ledger._PART = {2**18}
session = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    session = session.config(name, value)
spark = session.getOrCreate()
kept = ledger.DeltaLedger(spark, "default.ledger")
kept.create()
rows = tuple(replace(UNDELIVERED, key=str(number)) for number in range(9000))
assert kept.start(replace(started(1, "first"), undelivered=rows)) is not None
print(len(kept.read("a1").undelivered), "rows are listed")
spark.stop()
"""


class Api:
    """Keeps rows, counts how often each came with each value, and does something once it holds so many rows."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.received: Counter[tuple[str, str | None]] = Counter()
        self.then: list[tuple[int, Callable[[], None]]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply(401)
        with self._lock:
            name = None if request.method == "DELETE" else request.json["name"]
            self.received[request.path, name] += 1
            if name is None:
                self.rows.pop(request.path, None)
            else:
                self.rows[request.path] = name
            due = self.then.pop(0)[1] if self.then and len(self.rows) >= self.then[0][0] else None
        if due:
            due()
        return Reply(204)


@pytest.fixture
def api() -> Iterator[tuple[HttpServer, Api]]:
    with http_server(keeps := Api()) as server:
        yield server, keeps


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path / "cluster") as found:
        yield found


def settings_of(cluster: Cluster, home: Path) -> dict[str, str]:
    (cluster.folder / "events").mkdir()
    return (
        spark_settings(home)
        | INTERPRETED
        | {
            "spark.master": cluster.url,
            "spark.driver.host": "127.0.0.1",
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.shuffle.io.retryWait": "500ms",  # a lost machine does not come back
            "spark.sql.adaptive.coalescePartitions.enabled": "false",  # a few rows would be one task
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (cluster.folder / "events").as_uri(),
        }
    )


def events(cluster: Cluster) -> Counter[str]:
    files = (cluster.folder / "events").rglob("events_*")
    return Counter(json.loads(line)["Event"] for file in files for line in file.read_text().splitlines())


@pytest.mark.guarantee("Crashes and claims")
def test_a_push_from_a_cluster_survives_a_killed_executor_and_a_lost_machine_and_leaks_nothing(
    tmp_path: Path, cluster: Cluster, api: tuple[HttpServer, Api]
) -> None:
    server, keeps = api
    keeps.then = [(WAVE * 3 // 2, cluster.kill_an_executor), (WAVE * 5 // 2, cluster.lose_a_machine)]
    token = {"type": "bearer", "token": "{{ env_var('CRM_TOKEN') }}"}
    crm = {"type": "http", "url": server.url, "auth": token, "concurrency": 4}
    home = tmp_path / "shop"
    write_shop(home, MODEL, settings_of(cluster, tmp_path / "spark"), {"crm": crm})
    python = python_without_the_package(tmp_path / "python")

    runs = start(home, "-c", RUNS, CRM_TOKEN=TOKEN, PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP="127.0.0.1")
    output = runs.communicate(timeout=280)[0]

    assert runs.returncode == 0, output
    assert "[+1000 ~0 -0 in" in output
    assert "[+10 ~19 -30 in" in output
    assert not keeps.then
    assert events(cluster)["SparkListenerExecutorRemoved"] >= 2
    assert keeps.rows == SECOND
    of_the_first = Counter({one: times for one, times in keeps.received.items() if one in FIRST.items()})
    assert of_the_first.keys() == FIRST.items()
    assert max(of_the_first.values()) <= 2
    assert 0 < of_the_first.total() - len(FIRST) <= 2 * WAVE, "their tasks were sending"
    assert {times for one, times in keeps.received.items() if one not in FIRST.items()} == {1}
    assert_no_leak(tmp_path, output)


@pytest.mark.guarantee("Crashes and claims")
def test_a_cluster_records_a_list_of_undelivered_rows_that_is_larger_than_a_message_of_spark(
    tmp_path: Path, cluster: Cluster
) -> None:
    settings = settings_of(cluster, tmp_path / "spark") | {"spark.rpc.message.maxSize": "1"}  # MiB
    path = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    run = start(tmp_path, "-c", LIST, json.dumps(settings), SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=path)
    output = run.communicate(timeout=280)[0]
    assert "9000 rows are listed" in output, output


def assert_no_leak(folder: Path, output: str) -> None:
    """No file holds the token, neither configuration nor plan; no log holds a row."""
    assert TOKEN not in output
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    logs = [
        path for path in files if path.suffix == ".log" or path.name in ("stdout", "stderr") or "events" in path.parts
    ]
    assert len(logs) >= 6, "the master, two workers, three executors"
    assert not [path for path in logs if b"person 77 1" in path.read_bytes()]
