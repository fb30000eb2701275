"""Each database as a fixture: empty, with the rights that its page gives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import mysql, postgres
from tests.support.servers.proxy import Proxy, proxy_before
from tests.support.sinks.databases import KINDS, FileDatabase, Losing, losing
from tests.support.sinks.people import a_task


@pytest.fixture(params=KINDS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One of all databases, or of those that a test names."""
    if request.param in ("postgres", "mysql"):
        return (postgres if request.param == "postgres" else mysql).new_database()
    return FileDatabase(request.param, tmp_path)


@pytest.fixture
def people_db(db: Any) -> Any:
    """The same with the table `people`."""
    db.make(a_task())
    return db


@pytest.fixture
def place(people_db: Any) -> Iterator[Losing]:
    """The same, and its COMMIT may lose its answer."""
    with losing(people_db) as place:
        yield place


@pytest.fixture
def proxy(people_db: Any) -> Iterator[Proxy]:
    """Before the server."""
    with proxy_before(people_db.socket_file) as proxy:
        yield proxy


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
