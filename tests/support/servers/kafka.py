"""A broker for one pytest process, and its topics as a client reads them that has nothing in common with the sink's."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import trustme
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from dbt_reverse_etl.sinks.base import Batch, Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.testing import PEOPLE, Change, Row, batch_of
from tests.support import ROOT
from tests.support.servers.kafka_broker import PASSWORD, USER, VIEWER, KafkaBroker

PREFIX = "people"  # of the topics on which the user has rights
DOCS = ROOT / "docs" / "kafka.md"
CA = trustme.CA()
_MORE = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
    "broker.heartbeat.interval.ms=500",
    "broker.session.timeout.ms=3000",  # so long a killed broker's successor waits
]
_numbers = itertools.count()


@dataclass(frozen=True)
class Read:
    """One message of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@cache
def broker() -> KafkaBroker:
    """Start the broker; it ends with this process. Its user has the documented rights and no others, its viewer may look only."""
    home = tempfile.TemporaryDirectory(prefix="kafka-")
    atexit.register(home.cleanup)
    started = KafkaBroker(Path(home.name), _MORE, _certificate())
    atexit.register(started.kill)
    rights = [*((USER, right) for right in _rights()), (VIEWER, "DESCRIBE"), (VIEWER, "DESCRIBE_CONFIGS")]
    grants = [
        AclBinding(ResourceType.TOPIC, PREFIX, ResourcePatternType.PREFIXED, f"User:{user}", "*", AclOperation[right], AclPermissionType.ALLOW)
        for user, right in rights
    ]  # fmt: skip
    owner = _owner(started)  # what is asked ends with the client
    for granted in owner.create_acls(grants).values():
        granted.result(20)
    return started


def _rights() -> list[str]:
    """Those of the documented command, and the one to make topics, in the spelling of the client."""
    documented = re.findall(r"--operation (\w+)", DOCS.read_text())
    assert len(documented) == 4
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", right).upper() for right in (*documented, "Create")]


def _certificate() -> str:
    """The broker's key, in the only form that Kafka reads, and its certificate."""
    issued = CA.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (plain + b"".join(blob.bytes() for blob in issued.cert_chain_pems)).decode()


def _owner(started: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": started.servers, "log_level": 0})


def settings(**more: Any) -> dict[str, Any]:
    """What profiles.yml would say, with a login."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD}
    return {"bootstrap_servers": broker().sasl_servers, **login, "create_object": True, "timeout": 30, **more}


def sink(**more: Any) -> KafkaSink:
    """A sink that logs in."""
    return KafkaSink(KafkaSettings.model_validate(settings(**more)))


def a_topic() -> str:
    """A name that no other test has."""
    return f"{PREFIX}-{next(_numbers)}"


def a_task(**changes: Any) -> SinkTask:
    """A task on a topic of its own, which is not there yet."""
    values: dict[str, Any] = {"sync_id": "5c", "sync": "people", "fence": 1, "object": a_topic(), "mode": Mode.MIRROR}
    return SinkTask(**(values | {"key": ("id",), "schema": PEOPLE, "options": KafkaOptions(partitions=3)} | changes))


def a_batch(task: SinkTask, changes: Sequence[Change], before: Sequence[Row | None] = ()) -> Batch:
    """A batch with the columns that the sink asks for."""
    return batch_of(task, changes, extra=sink().extra_columns(task), before=before)


def make_topic(name: str, partitions: int = 3, **configs: str) -> None:
    """A topic that somebody else made; `cleanup_policy` for cleanup.policy."""
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    owner = _owner(broker())
    owner.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(20)


def grant(name: str, *rights: str) -> None:
    """Let the login do this with a topic, as `WRITE`."""
    owner = _owner(broker())
    for right in rights:
        to = (f"User:{USER}", "*", AclOperation[right], AclPermissionType.ALLOW)
        for granted in owner.create_acls(
            [AclBinding(ResourceType.TOPIC, name, ResourcePatternType.LITERAL, *to)]
        ).values():
            granted.result(20)


def alter_topic(name: str, config: str, value: str) -> None:
    """Somebody else changes a topic."""
    entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    owner = _owner(broker())
    for altered in owner.incremental_alter_configs([resource]).values():
        altered.result(20)


def add_partitions(name: str, total: int) -> None:
    """Somebody else makes a topic wider."""
    owner = _owner(broker())
    owner.create_partitions([NewPartitions(name, total)])[name].result(20)


def topic_config(name: str, config: str) -> str:
    """How a topic is configured."""
    owner = _owner(broker())
    (found,) = owner.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
    return str(found.result(20)[config].value)


def delete_topic(name: str) -> None:
    """Somebody else removes a topic."""
    owner = _owner(broker())
    owner.delete_topics([name])[name].result(20)


def produce(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Somebody else writes a message: to where the keys of the sink stand."""
    producer = Producer({"bootstrap.servers": broker().servers, "partitioner": "murmur2_random", "log_level": 0})
    errors: list[object] = []
    producer.produce(topic, value, key, on_delivery=lambda error, _: errors.append(error))
    assert (producer.flush(20), errors) == (0, [None])


def read(topic: str) -> list[Read]:
    """Every message of a topic, in the order of its partitions."""
    return asyncio.run(_read(topic))


async def _read(topic: str) -> list[Read]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker().servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        ends, found = await consumer.end_offsets(places), list[Read]()
        while any([await consumer.position(place) < ends[place] for place in places]):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                found += [Read(m.partition, m.offset, m.key, m.value, tuple(m.headers)) for m in messages]
        return sorted(found, key=lambda message: (message.partition, message.offset))
    finally:
        await consumer.stop()


def table(messages: Sequence[Read]) -> dict[bytes, Any]:
    """What a consumer makes of a topic: the last value of each key, without those whose last one is a tombstone."""
    rows: dict[bytes, Any] = {}
    for message in messages:
        assert message.key is not None
        rows.pop(message.key, None)
        if message.value is not None:
            rows[message.key] = orjson.loads(message.value)
    return rows
