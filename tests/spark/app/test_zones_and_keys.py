"""One project under several session time zones, with keys of several parts and every kind of destination: two runs, many questions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project, Result
from tests.support.servers.http import HttpServer, Reply, http_server
from tests.support.servers.postgres import Database, new_database

pytestmark = pytest.mark.full

ZONES = ("America/New_York", "Asia/Kolkata")
# Around the hours that New York skips and repeats, before 1970, and the first and last years that any destination takes.
INSTANTS = {
    1: datetime(2024, 3, 10, 6, 59, 59, 999999, timezone.utc),
    2: datetime(2024, 3, 10, 7, 0, tzinfo=timezone.utc),
    3: datetime(2024, 11, 3, 5, 30, tzinfo=timezone.utc),
    4: datetime(2024, 11, 3, 6, 30, tzinfo=timezone.utc),
    5: datetime(1969, 12, 31, 23, 59, 59, 1, timezone.utc),
    6: datetime(1883, 11, 18, 17, 0, tzinfo=timezone.utc),
    7: datetime(2, 1, 1, tzinfo=timezone.utc),
    8: datetime(9998, 12, 31, 23, 59, 59, 999999, timezone.utc),
}
SKIPPED_HOUR = datetime(2024, 3, 10, 2, 30)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(moment: datetime) -> int:
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds


MOMENTS = """
select id, timestamp_micros(us) as at, timestamp_ntz'2024-03-10 02:30:00' as local, array(timestamp_micros(us)) as nested
from values {} as t (id, us)
""".format(", ".join(f"({number}, {micros(moment)}L)" for number, moment in INSTANTS.items()))
# A mode that sends only some operations -> that of the second run.
PARTIAL = {"insert_only": "upsert", "update_only": "mirror"}
BAD_KEYS = "select * from values ('a', 1, 'x'), ('a', null, 'y'), (null, 1, 'z'), ('b', 2, 'w') as t (a, b, name)"


@dataclass
class Shop:
    """What two runs, each under a time zone of its own, left behind."""

    project: Project
    database: Database
    server: HttpServer
    runs: list[Result]
    posted: int  # requests of the first run

    def sqlite(self, query: str) -> list[Any]:
        with sqlite3.connect(self.project.folder / "crm.db") as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    project = Project(tmp_path_factory.mktemp("zones") / "shop", spark, "zones_and_keys")
    database, zone = new_database(), spark.conf.get("spark.sql.session.timeZone")
    columns = "id int, at timestamptz, local timestamp, nested timestamptz[], primary key (id, at)"
    database.table(f"create table moments ({columns})", "moments")
    project.changelog("moments", MOMENTS, key=["id", "at"])
    project.changelog("whole_keys", BAD_KEYS, key=["a", "b"])
    project.changelog("kept_keys", BAD_KEYS, key=["a", "b"], settings={"on_bad_key": "quarantine"})
    project.changelog("greetings", "select id, concat('hello ', id) as text from range(6)")
    with http_server(Reply(204)) as server:
        project.destinations = {
            "crm": {"type": "sqlite", "path": str(project.folder / "crm.db")},
            "pg": {"type": "postgres", **database.settings()},
            "api": {"type": "http", "url": server.url},
        }
        for destination in ("crm", "pg", "api"):
            project.sync(f"{destination}_moments", "moments", destination=destination, object="moments")
        project.sync("crm_kept", "kept_keys", object="kept")
        for mode in PARTIAL:
            project.sync(f"api_{mode}", "greetings", destination="api", **greetings(mode, mode))
        try:
            spark.conf.set("spark.sql.session.timeZone", ZONES[0])
            runs, posted = [project.run()], len(server.received)
            for mode, later in PARTIAL.items():
                project.sync(f"api_{mode}", "greetings", destination="api", **greetings(mode, later))
            spark.conf.set("spark.sql.session.timeZone", ZONES[1])
            runs.append(project.run())
        finally:
            spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
        yield Shop(project, database, server, runs, posted)


def greetings(name: str, mode: str) -> dict[str, Any]:
    requests = {"insert_only": "insert", "update_only": "update"}
    options = {requests.get(mode, "upsert"): {"method": "PUT", "path": f"{name}/{{id}}"}}
    if mode == "mirror":
        options["delete"] = {"method": "DELETE", "path": f"{name}/{{id}}"}
    return {"object": name, "mode": mode, "on_unknown": "park", "options": options}


@pytest.mark.guarantee("Every destination")
def test_the_same_instants_arrive_whatever_the_session_time_zone_is(shop: Shop) -> None:
    first = shop.runs[0]
    assert {first.sync(f"{name}_moments") for name in ("crm", "pg", "api")} == {f"+{len(INSTANTS)} ~0 -0"}
    rows = shop.database.rows("select id, at at time zone 'UTC', local, nested[1] at time zone 'UTC' from moments")
    plain = {number: moment.replace(tzinfo=None) for number, moment in INSTANTS.items()}
    assert {row[0]: row[1:] for row in rows} == {n: (moment, SKIPPED_HOUR, moment) for n, moment in plain.items()}

    found = {row[0]: row[1:3] for row in shop.sqlite("select id, at, local from moments")}
    texts = {number: moment.isoformat(" ", "microseconds") for number, moment in plain.items()}
    assert found == {number: (text, "2024-03-10 02:30:00.000000") for number, text in texts.items()}

    sent = [request.json for request in shop.server.received if request.path.startswith("/moments/")]
    written = {number: text.replace(" ", "T") + "Z" for number, text in texts.items()}
    expected = {n: (text, "2024-03-10T02:30:00.000000", [text]) for n, text in written.items()}
    assert {row["id"]: (row["at"], row["local"], row["nested"]) for row in sent} == expected


@pytest.mark.guarantee("Capture")
def test_another_session_time_zone_is_no_change_of_any_row(shop: Shop) -> None:
    second = shop.runs[1]
    assert second.messages["moments"] == "+0 ~0 -0, snapshot 1"
    again = [request.path for request in shop.server.received[shop.posted :]]
    assert not [path for path in again if path.startswith("/moments/")]


@pytest.mark.guarantee("Capture")
def test_a_null_in_one_part_of_a_composite_key_fails_the_model_with_counts(shop: Shop) -> None:
    for run in shop.runs:
        assert run.statuses["whole_keys"] == "error"
        assert "found 2 rows with a NULL key" in run.messages["whole_keys"]
    table = f"{shop.project.schema}.whole_keys"
    assert shop.project.rows(f"select count(*) as n from {table}")[0].n == 0


@pytest.mark.guarantee("Capture")
def test_rows_with_a_null_in_one_part_of_a_composite_key_are_quarantined_alone(shop: Shop) -> None:
    assert shop.runs[0].messages["kept_keys"] == "+2 ~0 -0, snapshot 1 (2 keys quarantined)"
    assert shop.runs[1].messages["kept_keys"].startswith("+0 ~0 -0, snapshot 1")
    [listed] = shop.project.rows("select _header.quarantined as q from {s}.kept_keys where _change = 'snapshot'")
    expected = [({"a": None, "b": 1}, "null_key", 1), ({"a": "a", "b": None}, "null_key", 1)]
    found = [(json.loads(row.key), row.reason, row.row_count) for row in listed.q]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert sorted(shop.sqlite("select a, b, name from kept")) == [("a", 1, "x"), ("b", 2, "w")]


@pytest.mark.guarantee("Refusals and outages")
def test_a_change_from_a_mode_that_sent_only_some_operations_sends_every_row_again_without_retry(shop: Shop) -> None:
    assert shop.runs[0].sync("api_insert_only") == "+6 ~0 -0"
    paths = [request.path for request in shop.server.received[shop.posted :]]
    for mode in PARTIAL:
        assert shop.runs[1].sync(f"api_{mode}") == "+0 ~6 -0"
        assert sorted(path for path in paths if mode in path) == [f"/{mode}/{n}" for n in range(6)]
