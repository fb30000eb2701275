"""What the Kafka sink makes of what a cluster answers. Without a broker."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka import topic as kafka_topic
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.sinks.kafka.topic import Cluster, Topic, configs_of
from dbt_reverse_etl.testing import next_run

LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "crm", "sasl_password": "canary-password-16180339"}
SCHEMA = pa.schema([("id", pa.int64())])


def a_task(mode: Mode = Mode.MIRROR, **options: Any) -> SinkTask:
    return SinkTask(
        "5c", "people", 1, "shop", mode, ("id",), SCHEMA, options=KafkaOptions(**{"partitions": 3, **options})
    )


def answered(value: object) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts of the brokers that a cluster names."""
    hosts = ["127.0.0.1"]

    def client(config: Mapping[str, Any]) -> SimpleNamespace:
        def poll(_: float) -> None:
            named = {host: {"nodename": f"{host}:9092", "nodeid": number} for number, host in enumerate(hosts)}
            first = {"first": {"nodename": "proxy.example.com:9092", "nodeid": -1}}
            config["stats_cb"](json.dumps({"brokers": first | named}))

        return SimpleNamespace(describe_cluster=lambda **_: answered(None), poll=poll)

    monkeypatch.setattr(kafka_topic, "AdminClient", client)
    return hosts


@pytest.mark.guarantee("Kafka", "Nothing leaves this machine without TLS because the first address is of this machine")
@pytest.mark.parametrize(("login", "protocol"), [({}, "plaintext"), (LOGIN, "sasl_plaintext")])
def test_brokers_elsewhere_behind_an_address_of_this_machine_are_refused_without_tls_unless_that_was_asked_for(
    nodes: list[str], login: dict[str, Any], protocol: str
) -> None:
    def reach(**more: Any) -> None:
        Cluster(KafkaSettings.model_validate({"bootstrap_servers": "localhost:9092", **login, **more})).reach()

    reach()
    nodes += ["::1", "localhost", "broker1.example.com"]
    with pytest.raises(DestinationError, match=rf"broker1.example.com: .* set security_protocol: .*or {protocol}, if"):
        reach()
    reach(security_protocol=protocol)
    reach(security_protocol=protocol.replace("plaintext", "ssl"))


class Bootstrap:
    """A broker that takes every login, and names one other broker."""

    APIS = ((0, 0, 2), (METADATA := 3, 0, 1), (HANDSHAKE := 17, 0, 1), (VERSIONS := 18, 0, 0), (LOG_IN := 36, 0, 0))

    def __init__(self, host: str, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        name = host.encode()
        node = struct.pack(f">ih{len(name)}sih", 1, len(name), name, port, -1)
        self._answers = {
            self.METADATA: struct.pack(">i", 1) + node + struct.pack(">ii", 1, 0),
            self.HANDSHAKE: struct.pack(">hih5s", 0, 1, 5, b"PLAIN"),
            self.LOG_IN: struct.pack(">hhi", 0, -1, 0),
        }
        self.asked: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            connection, _ = self._server.accept()
            stream = connection.makefile("rb")
            while size := stream.read(4):
                kind, version, number = struct.unpack(">hhi", stream.read(*struct.unpack(">i", size))[:8])
                self.asked.append(kind)
                apis = b"".join(struct.pack(">hhh", *api) for api in self.APIS)
                too_new = 35 if version else 0
                body = self._answers.get(kind, struct.pack(">hi", too_new, len(self.APIS)) + apis)
                connection.sendall(struct.pack(">ii", len(body) + 4, number) + body)


@pytest.mark.guarantee("Kafka", "No login leaves this machine without TLS before its brokers are refused")
def test_no_connection_is_made_to_a_broker_elsewhere_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(1.5)  # by then the client would have connected by itself
        monkeypatch.setattr(kafka_topic, "is_loopback", lambda host: host == "127.0.0.1")
        broker = Bootstrap("localhost", elsewhere.getsockname()[1])
        began = time.monotonic()
        cluster = Cluster(KafkaSettings.model_validate({"bootstrap_servers": broker.address, **LOGIN}))
        with pytest.raises(DestinationError, match="Kafka broker localhost: found an address away"):
            cluster.reach()
        assert time.monotonic() - began < kafka_topic.PATIENCE
        assert broker.asked[-2:] == [broker.LOG_IN, broker.METADATA]
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_a_client_that_is_given_statistics_ends_with_its_cluster_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Client(kafka_topic.AdminClient):  # type: ignore[misc]  # its stubs forget it
        def describe_cluster(self, **_: Any) -> Future[Any]:
            return answered(None)

    monkeypatch.setattr(kafka_topic, "AdminClient", Client)
    broker = Bootstrap("127.0.0.1", 1)
    cluster = Cluster(KafkaSettings.model_validate({"bootstrap_servers": broker.address, **LOGIN}))
    cluster.reach()
    client = weakref.ref(cluster._client)
    del cluster
    assert client() is None


@pytest.mark.guarantee("Kafka", "A topic that began to delete rows is refused in each run, and the way out repairs it")
def test_a_topic_that_began_to_delete_rows_is_refused_also_when_nothing_is_to_be_sent(
    nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "topic", lambda *_: Topic(3, "compact,delete", 1_048_588))
    sink = KafkaSink(KafkaSettings(bootstrap_servers="127.0.0.1:9092"))
    assert sink.missing(a_task()) is None, "nothing was delivered yet"
    with pytest.raises(DestinationError, match=r"compact, then dbt-reverse-etl reconcile --select people --repair"):
        sink.missing(next_run(a_task()))
    for meant in (a_task(compacted=False), a_task(Mode.CHANGELOG)):
        assert sink.missing(next_run(meant)) is None
    monkeypatch.setattr(Cluster, "topic", lambda *_: Topic(24, "compact", 1_048_588))
    assert sink.missing(next_run(a_task())) is None, "its rows are there"


def test_a_topic_that_is_made_for_events_loses_none_by_age_or_size() -> None:
    assert configs_of(a_task(Mode.CHANGELOG)) == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
