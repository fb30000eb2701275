"""A real SQLite file, and another program that uses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crm #1?.sqlite"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that uses the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
