"""Every kind of destination, and a scene in which a first push is done and a second one is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.delivery.scene import (
    FIRST,
    SECOND,
    FilesPlace,
    HttpPlace,
    MysqlPlace,
    Place,
    PostgresPlace,
    Scene,
    SqlitePlace,
)
from tests.support.servers.http import http_server


@pytest.fixture(params=["sqlite", "postgres", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
    elif request.param == "postgres":
        yield PostgresPlace()
    elif request.param == "mysql":
        yield MysqlPlace()
    elif request.param == "files":
        yield FilesPlace(tmp_path)
    else:
        with http_server() as server:
            yield HttpPlace(server)


@pytest.fixture
def scene(place: Place, tmp_path: Path) -> Scene:
    scene = Scene(place, tmp_path)
    scene.capture(FIRST)
    assert scene.push() == 0
    assert place.rows() == FIRST
    scene.capture(SECOND)
    return scene
