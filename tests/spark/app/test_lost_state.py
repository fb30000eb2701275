"""Ledgers and changelogs that are dropped, restored or exchanged: noticed at every destination, named, and mended by what the message says."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call, exit_code, found_by, read
from tests.support.dbt.project import Project, Result
from tests.support.servers.http import http_server
from tests.support.servers.people_api import PeopleApi
from tests.support.servers.postgres import Database, new_database

MIRRORS = ("to_sqlite", "to_postgres", "to_api")
SYNCS = (*MIRRORS, "kept_at_api")
LOST = ExitCode.OTHER_CHANGELOG


class Shop:
    """One model, mirrored to a file, a database and an API, and upserted to the API once more."""

    def __init__(self, project: Project, database: Database, api: PeopleApi, kept: PeopleApi) -> None:
        self.project, self.database, self.api, self.kept = project, database, api, kept
        self.model: dict[int, str] = {}

    def define(self, name: str) -> None:
        """The model, whose second column has this name, and its syncs."""
        self.project.changelog("people", f"select id, name as {name} from {self.project.schema}.source")
        given: dict[str, Any] = {"object": "people", "fields": {"id": "id", name: "name"}}
        self.project.sync("to_sqlite", "people", mode="mirror", **given)
        self.project.sync("to_postgres", "people", mode="mirror", destination="warehouse", **given)
        self.project.sync("to_api", "people", mode="mirror", destination="api", **given)
        self.project.sync("kept_at_api", "people", mode="upsert", destination="second_api", **given)

    def write(self, *gone: int, **come: str) -> None:
        """Rows leave the model, and others come: `_5="Eve"`."""
        self.model = {key: name for key, name in self.model.items() if key not in gone}
        self.model |= {int(key[1:]): name for key, name in come.items()}
        rows = ", ".join(f"({key}, '{name}')" for key, name in self.model.items())
        self.project.table("source", f"select * from values {rows} as t (id, name)")

    def run(self, *, well: bool = True) -> Result:
        result = self.project.run()
        assert result.success is well, result.text
        return result

    def refused(self, status: str, *, runs: int = 1) -> str:
        """Runs that send nothing; what they say."""
        before = self.held()
        for _ in range(runs):
            result = self.run(well=False)
            assert {result.sync(name) for name in SYNCS} == {f"ERROR {status}"}, result.text
        assert self.held() == before
        return result.text

    def ask(self, operation: str, *syncs: str) -> None:
        for sync in syncs:
            assert self.project.dbt("run-operation", operation, "--args", f"{{sync: {sync}}}").success

    def held(self) -> list[dict[int, str]]:
        there = dict(self.database.rows("select id, name from people"))
        return [dict(self.project.crm("select id, name from people")), there, dict(self.api.rows), dict(self.kept.rows)]

    def equal(self) -> None:
        """Every mirror equals the model."""
        assert self.held()[:3] == [self.model] * 3

    def lite(self, statement: str) -> None:
        with closing(sqlite3.connect(self.project.folder / "crm.db", isolation_level=None)) as connection:
            connection.execute(statement)

    def sql(self, statement: str) -> Any:
        return self.project.spark.sql(statement.replace("{s}", self.project.schema))

    def version(self, table: str) -> int:
        return int(self.sql(f"describe history {{s}}.{table} limit 1").collect()[0].version)

    def reconciled(self, *arguments: str) -> None:
        done = call(self.project, "reconcile", *arguments)
        assert (done.exception, done.return_value) == (None, ExitCode.OK), done.output

    def problems(self) -> list[str]:
        return [row["reason"] for row in read(call(self.project, "status", "--json"))]


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    here, database, api, kept = Path.cwd(), new_database(), PeopleApi(), PeopleApi()
    monkeypatch.setattr("sys.argv", ["dbt-reverse-etl"])
    with http_server(api) as server, http_server(kept) as second:
        project.destinations |= {
            "warehouse": {"type": "postgres", **database.settings(create_object=True)},
            "api": {"type": "http", "url": server.url},
            "second_api": {"type": "http", "url": second.url},
        }
        database.run(f"grant create on schema public to {database.settings()['user']}")
        made = Shop(project, database, api, kept)
        made.define("name")
        made.write(_1="Ann", _2="Bob", _3="Cem", _4="Dee")
        made.run()
        yield made
    os.chdir(here)


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
def test_a_ledger_that_is_dropped_or_exchanged_is_noticed_at_every_destination_until_somebody_has_looked(
    shop: Shop,
) -> None:
    shop.equal()
    shop.lite("insert into people values (99, 'somebody''s')")
    shop.write(2)
    shop.sql("alter table {s}.reverse_etl_ledger rename to {s}.kept_aside")
    asked = shop.project.dbt("run-operation", "adopt", "--args", "{sync: to_sqlite}")
    assert not asked.success
    assert "found no ledger" in asked.text
    assert "Next: DBT_REVERSE_ETL_PUSH=plan dbt run" in asked.text
    assert "another ledger" in shop.refused("other_ledger", runs=2), "whatever stops the first stops the second"
    assert exit_code(shop.project, "plan") == LOST
    assert all("resync" in problem for problem in shop.problems())
    compared = found_by(shop.project)
    assert (compared["to_sqlite"]["leftover"], compared["to_postgres"]["leftover"]) == (2, 1)
    assert {report["exit_code"] for report in compared.values()} == {LOST}
    assert exit_code(shop.project, "reconcile", "--repair") == LOST, "there is no position to repair from"

    shop.ask("resync", *SYNCS)
    sent = shop.run(well=False)
    assert {sent.sync(name) for name in SYNCS} == {"+3 ~0 -0"}
    assert shop.held() == [shop.model | {2: "Bob", 99: "somebody's"}] + [shop.model | {2: "Bob"}] * 3
    idle = shop.run(well=False)
    told = {line.split(":")[0].strip() for line in idle.lines if "--leftovers" in line}
    assert told == set(MIRRORS), "an upsert promises no deletes"
    assert "cannot be read" in found_by(shop.project)["to_api"]["message"]
    shop.reconciled("--select", "to_postgres", "--repair", "--leftovers", "delete")
    shop.lite("delete from people where id = 2")
    assert exit_code(shop.project, "reconcile", "--select", "to_sqlite", "--repair") == LOST, "99 is there"
    del shop.api.rows[2]
    for sync in ("to_sqlite", "to_api"):
        shop.reconciled("--select", sync, "--repair", "--leftovers", "keep")
    shop.lite("delete from people where id = 99")
    shop.run()
    shop.equal()
    assert shop.problems() == [""] * len(SYNCS)

    # The other ledger comes back: its positions are older than what this one has delivered since.
    shop.sql("alter table {s}.reverse_etl_ledger rename to {s}.newer")
    shop.sql("alter table {s}.kept_aside rename to {s}.reverse_etl_ledger")
    shop.write(_5="Eve")
    shop.refused("other_ledger")
    shop.sql("drop table {s}.reverse_etl_ledger")
    shop.sql("alter table {s}.newer rename to {s}.reverse_etl_ledger")
    shop.run()
    shop.equal()

    # Both are lost: a record at the destination alone tells it.
    shop.sql("drop table {s}.people")
    shop.sql("drop table {s}.reverse_etl_ledger")
    lost = shop.run(well=False)
    compared = found_by(shop.project)
    for sync in ("to_sqlite", "to_postgres"):
        assert (lost.sync(sync), compared[sync]["exit_code"]) == ("ERROR other_ledger", LOST), compared[sync]


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
def test_a_ledger_that_is_restored_is_noticed_at_every_destination_until_somebody_has_looked(shop: Shop) -> None:
    # A row that the older state does not know was delivered, and is gone now.
    older = shop.version("reverse_etl_ledger")
    shop.write(_6="Fay")
    shop.run()
    shop.sql(f"restore table {{s}}.reverse_etl_ledger to version as of {older}")
    shop.write(6)
    shop.refused("other_ledger")
    compared = found_by(shop.project)
    read = [compared["to_sqlite"], compared["to_postgres"]]
    assert [(one["exit_code"], one["leftover"], one["foreign"]) for one in read] == [(LOST, 1, 0)] * 2, (
        "the destination's record tells it"
    )
    shop.ask("resync", *SYNCS)
    shop.run(well=False)
    shop.reconciled("--select", "to_sqlite", "--repair", "--leftovers", "delete")
    shop.reconciled("--select", "to_postgres", "--repair", "--leftovers", "delete")
    del shop.api.rows[6]
    shop.reconciled("--repair", "--leftovers", "keep")
    shop.run()
    shop.equal()


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
def test_a_changelog_that_is_dropped_leaves_rows_of_which_the_sync_tells_until_they_are_gone(shop: Shop) -> None:
    shop.write(3)
    shop.sql("drop table {s}.people")
    shop.define("full_name")
    said = shop.refused("other_changelog")
    assert (
        "rows that are gone from the model may remain; dbt-reverse-etl reconcile --select to_sqlite shows them" in said
    )
    assert "a destination of type http cannot be read to find them" in said
    shop.ask("adopt", "kept_at_api")
    shop.ask("resync", *MIRRORS)
    assert shop.run(well=False).sync("kept_at_api") == "nothing to send"
    assert exit_code(shop.project, "reconcile", "--repair") == LOST
    assert all(3 in rows for rows in shop.held()), "nobody has said yet that the row is not somebody else's"
    assert exit_code(shop.project, "reconcile", "--repair", "--leftovers", "delete") == LOST, "the API cannot be read"
    assert [3 in rows for rows in shop.held()] == [False, False, True, True]
    del shop.api.rows[3]
    shop.reconciled("--select", "to_api", "--repair", "--leftovers", "keep")
    shop.run()
    shop.equal()


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
def test_a_changelog_that_was_restored_is_named_in_every_command_and_one_operation_leads_back(shop: Shop) -> None:
    older = shop.version("people")
    shop.write(1, _5="Eve")
    shop.run()
    shop.write(_6="Fay")
    shop.run()
    shop.sql(f"restore table {{s}}.people to version as of {older}")

    shop.write(_7="Gus")
    refused = shop.run(well=False)
    assert not refused.pushed(), "a capture failed, so nothing is pushed"
    assert "that took it back to snapshot 1, while snapshot 3 was captured before" in refused.text
    assert "undo_restore --args '{model: people}'" in refused.text
    assert "if their files are gone: dbt run-operation reset --args '{model: people}'" in refused.text
    status = read(call(shop.project, "status", "--json"))
    assert {(row["position"], row["head"], row["health"]) for row in status} == {(3, 1, "failing")}
    assert all("undo_restore" in row["reason"] for row in status)
    assert "undo_restore" in call(shop.project, "status").output
    plan = read(call(shop.project, "plan", "--json"))
    assert {(report["status"], report["exit_code"]) for report in plan} == {("restored_changelog", LOST)}
    assert {report["exit_code"] for report in found_by(shop.project).values()} == {LOST}
    report = call(shop.project, "report", "--json", "--out", str(shop.project.folder / "report.html"))
    assert all("undo_restore" in sync["reason"] for sync in read(report)["syncs"])

    undone = shop.project.dbt("run-operation", "undo_restore", "--args", "{model: people}")
    assert "snapshots 2 to 3 are back" in undone.text, undone.text
    shop.run()
    shop.equal()
    again = shop.project.dbt("run-operation", "undo_restore", "--args", "{model: people}")
    assert "nothing to do" in again.text

    shop.sql("truncate table {s}.people")
    emptied = shop.run(well=False)
    assert "that took it back to snapshot 0, while snapshot" in emptied.text
    undone = shop.project.dbt("run-operation", "undo_restore", "--args", "{model: people}")
    assert "are back" in undone.text, undone.text
    shop.run()
    shop.equal()

    # An older copy takes its place, in which the number of the snapshot that was delivered is taken again.
    shop.sql(f"create table {{s}}.copy using delta as select * from {{s}}.people version as of {older}")
    shop.sql("drop table {s}.people")
    shop.sql("alter table {s}.copy rename to {s}.people")
    for n in (8, 9, 10):
        shop.write(**{f"_{n}": "new"})
        moved = shop.run(well=False)
        assert {moved.sync(name) for name in SYNCS} == {"ERROR restored_changelog"}, moved.text
    shop.ask("resync", *SYNCS)
    shop.run(well=False)
    shop.reconciled("--repair", "--leftovers", "keep")
    shop.run()
    shop.equal()
