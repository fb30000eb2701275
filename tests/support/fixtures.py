"""Servers as fixtures; a conftest.py imports those that its tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serve.world import World
from tests.support.servers import mysql
from tests.support.servers.postgres import Database, new_database
from tests.support.servers.proxy import Proxy, proxy_before
from tests.support.sinks.people import a_task


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
def mysql_db() -> mysql.Database:
    """A database of MariaDB with the table `people`."""
    database = mysql.new_database()
    database.make(a_task())
    return database


@pytest.fixture
def mysql_proxy(mysql_db: mysql.Database) -> Iterator[Proxy]:
    with proxy_before(mysql_db.server.socket) as proxy:
        yield proxy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A project whose dbt jobs run in a dbt Cloud of our own."""
    made = World(tmp_path / "shop")
    yield made
    made.close()
