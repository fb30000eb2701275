"""What several files of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.http_server import HttpServer, http_server


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running
