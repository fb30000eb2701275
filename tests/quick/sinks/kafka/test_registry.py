"""What a schema registry may answer, and the file of its CA. Over HTTP on this machine, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.avro import Avro
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.testing import PEOPLE
from tests.support.servers.http import Reply, http_server


def avro(url: str, **more: Any) -> Avro:
    options = KafkaOptions(partitions=1, value_format="avro")
    task = SinkTask("5c", "people", 1, "people", Mode.MIRROR, ("id",), PEOPLE, options=options)
    return Avro(KafkaSettings(bootstrap_servers="127.0.0.1:9092", schema_registry_url=url, **more), task)


def refused(status: int, body: bytes, said: str, ask: Callable[[Avro], object]) -> None:
    """What a registry that answers like this is asked for ends with this error, which names its URL and shows no answer."""
    with http_server(Reply(status, body)) as server, pytest.raises(DestinationError, match=said) as caught:
        ask(avro(server.url))
    assert "canary" not in str(caught.value)
    assert server.url in str(caught.value)


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
    refused(status, body, r"not a console.*check schema", Avro.register)


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
    refused(status, body, r"not a console.*check schema", lambda codec: codec.decode(FOREIGN))


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
    with http_server(Reply(status, body)) as server:
        assert avro(server.url).decode(FOREIGN) is None
        assert avro(server.url).decode(b"{}") is None


@pytest.mark.parametrize("value", [b"\0", b"\0\7", b"\0\0\0\7", b"\0\0\0\0\7"])
def test_a_value_too_short_for_a_schema_asks_no_registry(value: bytes) -> None:
    with http_server(Reply(404, b'{"error_code": 40403, "message": "of another registry"}')) as server:
        assert avro(server.url).decode(value) is None


def test_a_registry_that_fails_is_named_with_its_url() -> None:
    refused(501, b"canary", r"found status 501.*its log", Avro.register)


def test_a_schema_with_an_id_is_registered() -> None:
    with http_server(Reply(200, b'{"id": 7}')) as server:
        avro(server.url).register()


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
