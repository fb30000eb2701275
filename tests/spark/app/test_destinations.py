"""One changelog into a destination of every type that can be read: first load, changes, full loads, reconcile and repair."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call, counts, found_by
from tests.support.dbt.project import Project
from tests.support.servers import kafka, mysql, postgres

SOURCE = """
select id, concat('name ', id) as name, cast(id / 7 as decimal(12, 4)) as amount, date_add(date'2024-01-01', cast(id as int)) as day,
    if(id % 3 = 0, null, id % 2 = 0) as even
from range(400)
"""
OWNED = ("to_lake", "to_files")  # what they hold may be replaced as a whole
CHANGED = ("to_postgres", "to_mysql", "to_sqlite", "to_duckdb", "to_topic")


class Shop:
    """The project, its servers, and what its destinations should hold."""

    def __init__(self, project: Project) -> None:
        self.project, self.topic = project, kafka.a_topic()
        self.postgres, self.mysql = postgres.new_database(), mysql.new_database()
        for database in (self.postgres, self.mysql):
            database.may_create()
        folder = project.folder
        project.spark.sql(f"create schema {project.schema}_lake")
        project.destinations |= {
            "postgres": {"type": "postgres", **self.postgres.settings(create_object=True)},
            "mysql": {"type": "mysql", **self.mysql.settings(create_object=True)},
            "lake": {"type": "delta", "schema": f"{project.schema}_lake"},
            "files": {"type": "files", "path": str(folder / "files")},
            "duckdb": {"type": "duckdb", "path": str(folder / "people.duckdb")},
            "topic": {"type": "kafka", **kafka.settings()},
        }
        project.table("source", SOURCE)
        project.changelog("people_changelog", f"select * from {project.schema}.source")
        for name in (*OWNED, *CHANGED):
            destination = name.removeprefix("to_").replace("sqlite", "crm")
            more: dict[str, Any] = {"owns_object": True} if name in OWNED else {}
            more |= {"object": self.topic, "options": {"partitions": 2}} if name == "to_topic" else {"object": "people"}
            project.sync(name, "people_changelog", mode="mirror", destination=destination, **more)

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.project.spark.sql(statement.replace("source", f"{self.project.schema}.source"))

    def push(self) -> dict[str, str]:
        result = self.project.run()
        assert result.success, result.text
        return {name: result.sync(name) for name in (*OWNED, *CHANGED)}

    def differs(self) -> dict[str, tuple[int, ...]]:
        """What reconcile tells of each destination that does not hold just the rows of the model."""
        rows = self.project.rows("select count(*) from {s}.source")[0][0]
        found = found_by(self.project)
        assert found.keys() == {*OWNED, *CHANGED}
        assert not [report["message"] for report in found.values() if report["message"]]
        return {name: counts(report) for name, report in found.items() if counts(report) != (rows, 0, 0, 0, 0)}

    def databases(self) -> list[list[tuple[Any, ...]]]:
        """The rows of the servers, asked by others than the sinks."""
        query = "select id, name, amount, day, even from people order by id"
        lake = self.project.rows(query.replace("people", f"{self.project.schema}_lake.people"))
        mysql = [(*row[:-1], row[-1] and bool(row[-1])) for row in self.mysql.rows(query)]
        mysql = [(*row[:-1], None if row[-1] is None else bool(row[-1])) for row in mysql]
        return [self.postgres.rows(query), mysql, [tuple(row) for row in lake]]

    def model(self) -> list[tuple[Any, ...]]:
        return [
            tuple(row) for row in self.project.rows("select id, name, amount, day, even from {s}.source order by id")
        ]


@pytest.fixture
def shop(project: Project) -> Iterator[Shop]:
    here = Path.cwd()
    yield Shop(project)
    os.chdir(here)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_every_destination_holds_the_model_after_first_loads_changes_and_full_loads_and_after_a_repair(
    shop: Shop,
) -> None:
    assert set(shop.push().values()) == {"+400 ~0 -0"}
    assert shop.databases() == [shop.model()] * 3

    shop.change(
        "update source set name = 'new' where id in (7, 8, 9)",
        "delete from source where id = 3",
        "insert into source values (900, null, -0.0001, date'1999-12-31', true)",
    )
    assert set(shop.push().values()) == {"+1 ~3 -1"}
    assert shop.differs() == {}
    assert shop.databases() == [shop.model()] * 3

    shop.change(
        "update source set amount = amount + 1 where id < 300", "delete from source where id between 300 and 309"
    )
    sent = shop.push()
    assert {sent[name] for name in OWNED} == {"+390 ~0 -0"}, "all rows in place of what was there"
    assert {sent[name] for name in CHANGED} == {"+0 ~299 -10"}
    assert shop.databases() == [shop.model()] * 3

    somebody_changes_destinations(shop)
    assert shop.differs() == {
        "to_postgres": (390, 1, 1, 0, 1),
        "to_mysql": (389, 1, 0, 0, 0),
        "to_topic": (390, 1, 1, 0, 1),
    }
    assert call(shop.project, "reconcile", "--repair").return_value == ExitCode.OK
    assert shop.differs() == {"to_postgres": (391, 0, 0, 0, 1), "to_topic": (391, 0, 0, 0, 1)}, "what is foreign stays"


def somebody_changes_destinations(shop: Shop) -> None:
    shop.postgres.run(
        "delete from people where id = 20; update people set name = 'else' where id = 21; insert into people (id) values (5000)"
    )
    shop.mysql.run("delete from people where id = 22")
    producer = Producer({"bootstrap.servers": kafka.broker().servers, "partitioner": "murmur2_random"})
    foreign = b'{"id":5000,"name":null,"amount":null,"day":null,"even":null}'
    other = b'{"id":24,"name":"else","amount":"4.4286","day":"2024-01-25","even":null}'
    for key, value in ((b'{"id":23}', None), (b'{"id":24}', other), (b'{"id":5000}', foreign)):
        producer.produce(shop.topic, key=key, value=value)
    assert producer.flush(20) == 0
