"""Large pushes leave from the executors: the same rows arrive, one action a wave, and a lost worker loses nothing."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.waves import ONE_WAVE, WaveSize
from dbt_reverse_etl.warehouse import executors
from dbt_reverse_etl.warehouse.executors import Executors
from tests.support.dbt.project import Project
from tests.support.servers.http import Received, Reply, http_server
from tests.support.servers.postgres import new_database
from tests.support.servers.spark import python_without_the_package
from tests.support.spark_session import MASTER

BATCHES = {
    "batch": {"rows": 50, "wrap": "array"},
    "upsert": {"method": "POST", "path": "/upsert"},
    "delete": {"method": "POST", "path": "/delete"},
}
SOURCE = "select id, concat('name ', id) as name, id * 1.5d as amount from range({rows})"
SIGV4 = {
    "type": "python",
    "class": "requests_aws4auth.AWS4Auth",
    "args": ["me", "canary-aws", "eu-west-1", "execute-api"],
}
FEW, MANY, WIDTH = 5_000, 45_000, 5120  # rows, and bytes of each


class Api:
    """Applies batches and counts how often each row came."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.received: Counter[tuple[int, str | None]] = Counter()
        self.before_answer: Callable[[int], None] = lambda number: None
        self.most_at_once = self._at_once = 0
        self.schemes: set[str] = set()  # of authentication
        self._lock = threading.Lock()
        self._requests = 0

    def __call__(self, request: Received) -> Reply:
        with self._lock:
            self._requests += 1
            number = self._requests
            self.schemes.add(request.headers.get("authorization", "").partition(" ")[0])
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            for row in request.json:
                name = None if request.path == "/delete" else row["name"]
                self.received[row["id"], name] += 1
                if name is None:
                    del self.rows[row["id"]]
                else:
                    self.rows[row["id"]] = name
        self.before_answer(number)
        with self._lock:
            self._at_once -= 1
        return Reply(204)


@pytest.fixture
def shop(project: Project) -> Project:
    """2 000 people and a changelog of them."""
    project.table("source", SOURCE.format(rows=2000))
    project.changelog("people", f"select * from {project.schema}.source")
    return project


@pytest.fixture
def api(shop: Project) -> Iterator[Api]:
    """An API to which the people are synced, in batches."""
    with http_server(keeps := Api()) as server:
        shop.destinations = {"crm": {"type": "http", "url": server.url}}
        shop.sync("crm_people", "people", mode="mirror", options=BATCHES)
        yield keeps


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every push leaves from the executors, in waves of 500 rows; the number of jobs of Spark in each wave."""
    found: list[int] = []
    real = Executors.send
    policy = partial(Policy, executors_from=1, executor_waves=WaveSize(rows=500, grow_below=-1))
    monkeypatch.setattr(invocation, "Policy", policy)

    def counted(self: Executors, *arguments: Any) -> Any:
        scheduler = self._spark.sparkContext._jsc.sc().dagScheduler()
        before = scheduler.numTotalJobs()
        sent = real(self, *arguments)
        found.append(scheduler.numTotalJobs() - before)
        return sent

    monkeypatch.setattr(Executors, "send", counted)
    return found


def people(project: Project) -> dict[int, str]:
    return {row.id: row.name for row in project.rows("select id, name from {s}.source")}


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.full), 2])
def parts(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[int]:
    """In so many parts Spark exchanges rows."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.set(name, before)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_an_api_gets_every_row_once_from_the_executors_one_action_a_wave_and_as_many_requests_at_once_as_it_takes(
    shop: Project, api: Api, waves: list[int], monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    share, shared = executors._share, set[int]()
    monkeypatch.setattr(executors, "_share", lambda limits, tasks: shared.add(tasks) or share(limits, tasks))
    shop.destinations["crm"] |= {"concurrency": 2, "auth": SIGV4}
    api.before_answer = lambda number: time.sleep(0.1)
    first = shop.run()
    assert first.success, first.text
    assert first.sync("crm_people") == "+2000 ~0 -0"
    assert api.rows == people(shop)
    assert {*api.received.values()} == {1}
    assert len(waves) >= 4
    # The first run names the ledger in the changelog, and Spark computes the rows that it keeps anew.
    assert {*waves[1:]} == {1}
    assert api.most_at_once == 2
    assert api.schemes == {"AWS4-HMAC-SHA256"}, "an auth class of another package signs in the tasks too"

    api.most_at_once = 0
    waves.clear()
    shop.table("source", SOURCE.format(rows=1900) + " where id % 10 <> 0")
    assert shop.run().sync("crm_people") == "+0 ~0 -290"
    assert api.rows == people(shop)
    assert {*api.received.values()} == {1}
    assert {*waves} == {1}
    assert api.most_at_once == 2
    assert shared == {parts}


@pytest.mark.full
@pytest.mark.guarantee("Postgres")
def test_tasks_share_one_claim_of_a_transactional_destination(shop: Project, waves: list[int]) -> None:
    database = new_database()
    database.table("create table people (id bigint primary key, name text, amount double precision check (id <> 77))")
    shop.destinations = {"crm": {"type": "postgres", **database.settings()}}
    shop.sync("crm_people", "people", mode="mirror", object="people")
    first = shop.run()
    assert not first.success
    assert first.sync("crm_people").startswith("+1999 ~0 -0")
    expected = {key: name for key, name in people(shop).items() if key != 77}
    assert dict(database.rows("select id, name from people")) == expected
    assert shop.dbt("run", "--select", "reverse_etl_undelivered").success
    [row] = shop.rows("select row_key, operation, outcome, reason from {s}.reverse_etl_undelivered")
    assert (row.operation, row.outcome, "check" in row.reason.lower()) == ("insert", "rejected", True)
    assert "77" in row.row_key
    assert len(waves) >= 4


@pytest.mark.guarantee("Crashes and claims")
def test_a_killed_worker_loses_nothing_and_the_next_push_settles_what_it_sent(
    shop: Project, api: Api, waves: list[int]
) -> None:
    api.before_answer = lambda number: kill_workers() if number == 15 else None
    first = shop.run()
    # Where Spark repeats a task by itself, what its first attempt sent goes out again in the same run.
    assert first.success is ("," in MASTER)
    assert (len(api.rows) == 2000) is first.success

    api.before_answer = lambda number: None
    second = shop.run()
    assert second.success, second.text
    assert api.rows == people(shop)
    assert len([row for row, times in api.received.items() if times > 1]) <= 2 * 500, "two waves"
    assert max(api.received.values()) == 2


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_executors_that_lack_a_package_are_said_to_and_the_next_push_goes_on(
    shop: Project, api: Api, waves: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_without_the_package(tmp_path / "python", but="orjson")
    with monkeypatch.context() as other:
        other.setenv("PYSPARK_PYTHON", str(python))
        other.setattr(shop.spark.sparkContext, "pythonExec", str(python))
        failed = shop.run()
    assert not failed.success
    assert re.search("executors whose Python has no module (dbt_reverse_etl|orjson)", failed.text)
    assert not api.rows

    again = shop.run()
    assert again.success, again.text
    assert api.rows == people(shop)


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
def test_where_spark_starts_slow_tasks_a_second_time_the_driver_sends(
    shop: Project, api: Api, waves: list[int]
) -> None:
    settings = {
        "spark.sql.legacy.setCommandRejectsSparkCoreConfs": "false",
        "spark.speculation": " True",
    }  # as a profile gives it
    try:
        for name, value in settings.items():
            shop.spark.conf.set(name, value)
        assert shop.run().sync("crm_people") == "+2000 ~0 -0"
    finally:
        for name in reversed(settings):
            shop.spark.conf.unset(name)
    assert waves == []
    assert api.rows == people(shop)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_the_memory_of_the_driver_does_not_grow_with_the_rows(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocation, "Policy", partial(Policy, executors_from=1, executor_waves=ONE_WAVE))
    database = new_database()
    database.table("create table people (id bigint primary key, name text)")
    project.destinations = {"crm": {"type": "postgres", **database.settings()}}
    project.changelog("people", f"select * from {project.schema}.source")
    project.sync("crm_people", "people", mode="mirror", object="people")

    def peak_of(people: int, step: int) -> int:
        project.table(
            "source", f"select id, repeat(sha2('{step} ' || id, 256), {WIDTH // 64}) as name from range({people})"
        )
        with results_of_at_most(project.spark, "16m"):
            reset_peak()
            pushed = project.run()
        assert pushed.success, pushed.text
        assert database.rows("select count(*), min(length(name)) from people") == [(people, WIDTH)]
        return peak()

    few, many = peak_of(FEW, 1), peak_of(MANY, 2)
    rows = project.spark.table(f"{project.schema}.source")
    reset_peak()
    in_memory = rows.toArrow().nbytes
    assert many < few + in_memory // 5
    assert peak() > few + in_memory // 2, "it would be seen"


@contextmanager
def results_of_at_most(spark: SparkSession, size: str) -> Iterator[None]:
    """No query brings more than this to the driver, whose JVM is that of the executor here."""
    conf, name = spark.sparkContext._jsc.sc().conf(), "spark.driver.maxResultSize"
    conf.set(name, size)
    try:
        yield
    finally:
        conf.remove(name)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most memory of this process since it was reset, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def kill_workers() -> None:
    """SIGKILL every Python worker of Spark; the daemon that forks them stays."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in one.cmdline() and "pyspark.daemon" in psutil.Process(one.ppid()).cmdline():
                one.kill()
