"""What only plans or checks writes nothing anywhere; told by the destinations themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dbt_reverse_etl.cli import cli
from tests.support.dbt.project import Project, Result
from tests.support.servers.http import HttpServer, Reply, http_server
from tests.support.servers.postgres import Database, new_database

SYNCS = {"to_api": "api", "to_database": "database", "to_file": "file", "to_exports": "exports"}
CHECK = ("GET", "/health")
RUN = ("run", "--exclude", "package:reverse_etl")


@dataclass
class World:
    """Four destinations, and what each shows of having been written to."""

    project: Project
    api: HttpServer
    database: Database

    @property
    def home(self) -> Path:
        return self.project.folder.parent / "destinations"

    def seen(self) -> dict[str, Any]:
        """Requests that are no check, numbers of transactions that wrote, contents of files with their times."""
        return {
            "requests": [r.path for r in self.api.received if (r.method, r.path) != CHECK],
            # Each transaction that writes takes a number, even for a temporary table or a row lock.
            "transactions": self.database.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"),
            "rows": self.database.rows("SELECT * FROM people ORDER BY 1"),
            "files": {
                str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
                for path in [self.home, *self.home.rglob("*")]
            },
        }

    def ledger(self) -> list[Any]:
        return self.project.rows("select * from {s}.reverse_etl_ledger order by all")

    def source(self, *rows: str) -> None:
        self.project.table("source", f"select * from values {', '.join(rows)} as t (id, name)")

    def run(self, *command: str) -> Result:
        return self.project.dbt(*command)

    def call(self, *command: str) -> str:
        place = ["--project-dir", str(self.project.folder), "--profiles-dir", str(self.project.folder)]
        result = CliRunner().invoke(cli, [*command, *place], standalone_mode=False)
        assert result.exception is None, result.exception
        return result.output


@pytest.fixture
def world(project: Project) -> Iterator[World]:
    database, here = new_database(), Path.cwd()
    database.run("ALTER SYSTEM SET autovacuum = off")  # it would take numbers, too
    database.rows("SELECT pg_reload_conf()")
    database.table("CREATE TABLE people (id int PRIMARY KEY, name text)")
    with http_server(lambda request: Reply(422 if request.path.endswith("/2") else 200)) as api:
        found = World(project, api, database)
        found.home.mkdir(parents=True)
        project.destinations = {
            "api": {"type": "http", "url": api.url, "check": {"path": CHECK[1]}},
            "database": {"type": "postgres", **database.settings()},
            "file": {"type": "sqlite", "path": str(found.home / "crm.db")},
            "exports": {"type": "files", "path": str(found.home / "exports")},
        }
        found.source("(1, 'Ann')", "(2, 'Bob')", "(3, 'Cem')")
        project.changelog("people_changelog", f"select id, name from {project.schema}.source")
        for name, destination in SYNCS.items():
            project.sync(name, "people_changelog", mode="mirror", destination=destination, object="people")
        yield found
    os.chdir(here)


FIRST = dict.fromkeys(SYNCS, "+3 ~0 -0")
LATER = {**dict.fromkeys(SYNCS, "+1 ~1 -1"), "to_api": "+2 ~1 -1"}  # with the row that it refused


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_plan_check_and_runs_that_only_plan_write_nothing_to_any_destination(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_is_written(commands: dict[tuple[str, ...], dict[str, str]]) -> None:
        before = world.seen()
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "plan")
        for command, planned in commands.items():
            ended = world.run(*command)
            assert ended.success, ended.text
            assert not ended.pushed(), ended.text
            assert {name: ended.sync(name) for name in planned} == planned
            assert world.seen() == before, command
        monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
        ledger = world.ledger()
        planned = [line.split()[0] for line in world.call("plan").splitlines() if line]
        assert planned[1 : 1 + len(SYNCS)] == sorted(SYNCS)
        assert world.call("check").count(": reached") == len(SYNCS)
        assert world.seen() == before
        assert world.ledger() == ledger, "no position moves either"

    nothing_is_written({RUN: FIRST})  # before the first push: nothing is made, either
    assert [(r.method, r.path) for r in world.api.received] == [CHECK], "the one request that a check may send"

    before = world.seen()
    assert not world.run(*RUN).success, "the API refuses one row"
    after = world.seen()
    assert [name for name in before if before[name] == after[name]] == [], "a write is seen"

    world.source("(1, 'Anna')", "(2, 'Bob')", "(4, 'Dan')")
    nothing_is_written({RUN: LATER, ("retry",): {"to_api": LATER["to_api"]}})
