"""Destinations that are tried while Spark is at work: what is told of one that does not answer, and that nobody waits for it."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.app.reach import try_early
from dbt_reverse_etl.config.destinations import Destination
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from tests.support.servers.http import HttpServer, free_port

CANARY = "canary-61803398"


def http(name: str, port: int) -> Destination:
    auth = {"type": "bearer", "token": CANARY}
    settings = HttpSink.settings_model.model_validate({"url": f"http://127.0.0.1:{port}", "auth": auth})
    return Destination(name, "http", HttpSink, settings, Guards())


def sqlite(name: str, path: Path) -> Destination:
    return Destination(
        name, "sqlite", SqliteSink, SqliteSink.settings_model.model_validate({"path": str(path)}), Guards()
    )


def told(*destinations: Destination, within: float = 10) -> list[str]:
    warnings: list[str] = []
    for thread in try_early(destinations, warnings.append):
        thread.join(within)
    return sorted(warnings)


@pytest.mark.guarantee(
    "dbt and its commands", "A destination that cannot be reached is told while Spark is still at work"
)
def test_each_destination_that_does_not_answer_is_told_once_with_its_place_and_no_secret(tmp_path: Path) -> None:
    port = free_port()
    with closing(HttpServer()) as server:
        well = http("well", server.port), sqlite("here", tmp_path / "crm.db")
        found = told(*well, http("down", port), http("down", port), sqlite("gone", tmp_path / "no" / "crm.db"))
        assert not server.received, "it is reached, and nothing is asked of it"
    assert [text.partition(" cannot")[0] for text in found] == [
        "dbt-reverse-etl: destination down",
        "dbt-reverse-etl: destination gone",
    ]
    assert f"127.0.0.1:{port}" in found[0]
    assert CANARY not in " ".join(found)


def test_nobody_waits_for_a_destination_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Any) -> None:
        time.sleep(30)

    monkeypatch.setattr(HttpSink, "check", silent)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        began = time.monotonic()
        (thread,) = try_early([http("slow", listening.getsockname()[1])], pytest.fail)
        assert time.monotonic() - began < 5
        assert thread.daemon, "the process may end before it answers"
