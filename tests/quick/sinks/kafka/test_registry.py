"""What a schema registry may answer, and the file of its CA. Over HTTP on this machine, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.avro import Avro
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.testing import PEOPLE


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that answers each request like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing to the terminal."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def avro(url: str, **more: Any) -> Avro:
    options = KafkaOptions(partitions=1, value_format="avro")
    task = SinkTask("5c", "people", 1, "people", Mode.MIRROR, ("id",), PEOPLE, options=options)
    return Avro(KafkaSettings(bootstrap_servers="127.0.0.1:9092", schema_registry_url=url, **more), task)


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>canary: log in</html>"),
        (200, b"\xff"),
        (200, b""),
        (204, b""),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'"canary"'),
        (200, b'{"id": "canary"}'),
        (200, b'{"id": null}'),
        (200, b'{"id": -1}'),
        (200, b'{"id": 4294967296}'),
        (302, b""),
        (404, b"canary"),
    ],
)
def test_what_is_no_schema_registry_is_named_before_the_first_message(status: int, body: bytes) -> None:
    with (
        answering(status, body) as url,
        pytest.raises(DestinationError, match=r"not a console.*check schema") as caught,
    ):
        avro(url).register()
    assert "canary" not in str(caught.value)
    assert url in str(caught.value)


FOREIGN = b"\0\0\0\0\7\2\1"


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>canary: log in</html>"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'"canary"'),
        (200, b""),
        (404, b"canary"),
    ],
)
def test_what_is_no_schema_registry_is_named_when_a_topic_is_read(status: int, body: bytes) -> None:
    with (
        answering(status, body) as url,
        pytest.raises(DestinationError, match=r"not a console.*check schema") as caught,
    ):
        avro(url).decode(FOREIGN)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"schema": "{}"}'),
        (200, b'{"schemaType": "PROTOBUF", "schema": "message A {}"}'),
        (200, b'{"schema": "{\\"type\\": \\"double\\"}"}'),
        (404, b'{"error_code": 40403, "message": "of another registry"}'),
    ],
)
def test_a_value_of_another_schema_is_none_of_ours(status: int, body: bytes) -> None:
    with answering(status, body) as url:
        assert avro(url).decode(FOREIGN) is None
        assert avro(url).decode(b"{}") is None


@pytest.mark.parametrize("value", [b"\0", b"\0\7", b"\0\0\0\7", b"\0\0\0\0\7"])
def test_a_value_too_short_for_a_schema_asks_no_registry(value: bytes) -> None:
    with answering(404, b'{"error_code": 40403, "message": "of another registry"}') as url:
        assert avro(url).decode(value) is None


def test_a_registry_that_fails_is_named_with_its_url() -> None:
    with (
        answering(501, b"canary") as url,
        pytest.raises(DestinationError, match=r"found status 501.*its log") as caught,
    ):
        avro(url).register()
    assert url in str(caught.value)


def test_a_schema_with_an_id_is_registered() -> None:
    with answering(200, b'{"id": 7}') as url:
        avro(url).register()


@pytest.mark.parametrize("content", [None, b"canary: no PEM", b""])
def test_a_ca_of_the_registry_that_cannot_be_read_is_named_by_its_setting(
    content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DestinationError, match=r"a PEM file.*correct schema_registry_ca_location") as caught:
        avro("https://registry.example.com", schema_registry_ca_location=str(file))
    assert "canary" not in str(caught.value)
