"""`dbt-reverse-etl reconcile`: what destinations hold, against what was delivered to them, and the repair."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call, counts, found_by
from tests.support.dbt.project import Project
from tests.support.servers.http import Reply, http_server
from tests.support.servers.postgres import Database, new_database

SOURCE = """
select id, concat('name ', id) as name, cast(id / 7 as decimal(12, 4)) as amount, id * 0.1d as score,
    timestamp'2024-01-01' + make_interval(0, 0, 0, 0, 0, id, 0.25) as at, date_add(date'2024-01-01', cast(id as int)) as day,
    if(id % 3 = 0, null, array(concat('t', id), null)) as tags, id % 2 = 0 as even, cast(concat('b', id) as binary) as raw
from range({rows})
"""
FIELDS = ["id", "name", "amount", "score", "at", "day", "tags", "even", "raw"]


@pytest.fixture
def database() -> Database:
    return new_database()


@pytest.fixture
def shop(project: Project, database: Database) -> Iterator[Project]:
    """Forty rows, those from 30 on filtered; 7 was delivered and then deleted in the model."""
    here = Path.cwd()
    with http_server(lambda _: Reply(204)) as server:
        project.destinations |= {
            "warehouse": {"type": "postgres", **database.settings(create_object=True)},
            "api": {"type": "http", "url": server.url},
        }
        database.run(f"grant create on schema public to {database.settings()['user']}")
        project.table("source", SOURCE.format(rows=40))
        project.changelog("people_changelog", f"select * from {project.schema}.source")
        mapping: dict[str, Any] = {
            "fields": {name: name for name in FIELDS} | {"name": "full name"},
            "where": "id < 30",
        }
        project.sync("to_sqlite", "people_changelog", mode="mirror", object="people", **mapping)
        project.sync(
            "to_postgres", "people_changelog", mode="upsert", object="people", destination="warehouse", **mapping
        )
        project.sync("to_api", "people_changelog", mode="upsert", object="people", destination="api", where="id < 3")
        assert project.run().success
        lite(project, "create table people_before as select * from people")
        project.spark.sql(f"delete from {project.schema}.source where id = 7")
        assert project.run().success
        yield project
    os.chdir(here)


def lite(shop: Project, *statements: str) -> None:
    with closing(sqlite3.connect(shop.folder / "crm.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_a_destination_that_somebody_changed_is_found_key_by_key_and_repaired_and_foreign_rows_stay(
    shop: Project, database: Database
) -> None:
    equal = found_by(shop)
    assert counts(equal["to_sqlite"]) == (29, 0, 0, 0, 0)
    assert counts(equal["to_postgres"]) == (30, 0, 0, 0, 0), "upsert promises no deletes"
    assert "cannot be read" in equal["to_api"]["message"]
    assert {report["exit_code"] for report in equal.values()} == {ExitCode.OK}

    lite(
        shop,
        "delete from people where id in (1, 2)",
        "update people set \"full name\" = 'somebody else' where id = 3",
        "update people set amount = 'no number' where id = 4",
        "update people set tags = '[\"t5\"]' where id = 5",
        "insert into people select * from people_before where id = 7",
        "insert into people (id, \"full name\") values (35, 'hidden'), (999, 'foreign')",
    )
    database.run(
        "delete from people where id = 1; update people set amount = amount + 0.0001 where id = 2;"
        "update people set at = at + interval '1 microsecond' where id = 3; insert into people (id) values (999)"
    )
    # A snapshot that was not pushed: what counts is what was delivered.
    shop.spark.sql(f"update {shop.schema}.source set name = 'new' where id = 10")
    os.environ["DBT_REVERSE_ETL_PUSH"] = "off"
    try:
        assert shop.run().success
    finally:
        del os.environ["DBT_REVERSE_ETL_PUSH"]

    broken = found_by(shop, "--sample", "20")
    assert counts(broken["to_sqlite"]) == (30, 2, 3, 1, 2)
    assert counts(broken["to_postgres"]) == (30, 1, 2, 0, 1)
    assert broken["to_sqlite"]["exit_code"] == broken["to_postgres"]["exit_code"] == ExitCode.FAILED
    shown = {(kind, key) for kind, key in broken["to_sqlite"]["sample"]}
    assert shown == {
        *(("missing", f'{{"id":{n}}}') for n in (1, 2)),
        *(("different", f'{{"id":{n}}}') for n in (3, 4, 5)),
        ("extra", '{"id":7}'),  # as it was delivered: a backup was brought back
        *(("foreign", f'{{"id":{n}}}') for n in (35, 999)),
    }
    text = call(shop, "reconcile", "--select", "to_sqlite")
    assert "RECONCILE to_sqlite -> crm.people" in text.output
    assert "[30 rows: 2 missing, 3 different, 1 extra, 2 foreign in" in text.output
    assert 'different {"id":3}' in text.output
    assert text.return_value == ExitCode.FAILED

    repaired = call(shop, "reconcile", "--repair")
    assert "SYNC to_sqlite -> crm.people" in repaired.output, repaired.output
    assert "[+2 ~4 -1 in" in repaired.output, "and the change that was not pushed"
    assert "[+1 ~3 -0 in" in repaired.output
    assert repaired.return_value == ExitCode.OK
    again = found_by(shop)
    assert counts(again["to_sqlite"]) == (31, 0, 0, 0, 2)
    assert counts(again["to_postgres"]) == (31, 0, 0, 0, 1)
    with closing(sqlite3.connect(shop.folder / "crm.db")) as connection:
        names = dict(connection.execute('select id, "full name" from people'))
    assert names == {n: f"name {n}" for n in range(30) if n != 7} | {10: "new", 35: "hidden", 999: "foreign"}
    assert not [row for row in shop.rows("show tables in {s}") if "reconcile" in row.tableName]

    shop.sync("to_sqlite", "people_changelog", mode="mirror", object="people", fields=["id", "name"])
    assert shop.dbt("parse").success
    edited = found_by(shop, "--select", "to_sqlite")["to_sqlite"]
    assert "expected a sync whose last push reached its end. Next: push it" in edited["message"]
    assert edited["exit_code"] == ExitCode.FAILED
