"""What several files of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import mysql_server
from tests.unit.http_server import HttpServer, http_server
from tests.unit.postgres_server import Database, new_database
from tests.unit.proxy import Proxy, proxy_before
from tests.unit.serve_world import World
from tests.unit.sqlite_world import a_task


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


@pytest.fixture
def people_db() -> Database:
    """A database with the table `people`."""
    database = new_database()
    database.make(a_task())
    return database


@pytest.fixture
def proxy(people_db: Database) -> Iterator[Proxy]:
    with proxy_before(f"{people_db.socket}/.s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
def mysql_db() -> mysql_server.Database:
    """A database of MariaDB with the table `people`."""
    database = mysql_server.new_database()
    database.make(a_task())
    return database


@pytest.fixture
def mysql_proxy(mysql_db: mysql_server.Database) -> Iterator[Proxy]:
    with proxy_before(mysql_db.server.socket) as proxy:
        yield proxy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A project whose dbt jobs run in a dbt Cloud of our own."""
    made = World(tmp_path / "shop")
    yield made
    made.close()
