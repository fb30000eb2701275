"""Who may read /report, /healthz and /metrics of a `serve` on loopback: no web page whose name was led to this machine."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.webhooks import Receiver

NOBODY: Any = None
WORKER: Any = SimpleNamespace(metrics=SimpleNamespace(page=lambda: b"numbers"))


def status(path: str, host: str | None, listen: str) -> int:
    job = {"job_id": 1, "target": "prod"}
    settings = ServeSettings.model_validate({"account_id": 1, "token": "t", "jobs": [job], "listen": listen})
    headers = [] if host is None else [(b"host", host.encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Receiver(settings, WORKER, lambda: True, NOBODY).app()(scope, NOBODY, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("listen", ["127.0.0.1:8580", "localhost:8580", "[::1]:8580"])
@pytest.mark.parametrize("path", ["/report", "/healthz", "/metrics"])
@pytest.mark.parametrize("host", ["evil.example.com:8580", "localhost.example.com", "127.0.0.1.example.com", "[", ":1"])
def test_a_page_that_led_its_name_to_this_machine_reads_nothing(path: str, host: str, listen: str) -> None:
    assert status(path, host, listen) == 421


@pytest.mark.parametrize("host", ["localhost:8580", "127.0.0.1:8580", "LOCALHOST", "[::1]:8580", "10.0.0.1", None])
def test_localhost_and_addresses_read(host: str | None) -> None:
    assert status("/metrics", host, "127.0.0.1:8580") == 200


def test_beyond_loopback_any_name_reads() -> None:
    assert status("/metrics", "serve.reverse-etl.svc:8580", "0.0.0.0:8580") == 200
