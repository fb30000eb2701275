"""A real Kafka broker on this machine: Kafka's own jars, one node, topics and messages by the clients that Spark's Kafka source brings."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.maven import jars, java

USER, PASSWORD = "reader", "canary-password-27182818"
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Message = tuple[int, str | None, str | None]  # partition, key, value


class Broker:
    """One broker; clients come in plain, or with a password (SASL)."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self._jvm = spark._jvm
        plain, sasl, controller = free_ports(3)
        self.servers, self.sasl_servers = f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}"
        self._settings = home / "server.properties"
        self._settings.write_text(_settings(home, plain, sasl, controller))
        self._log = home / "log"
        self._run = [java(), *JVM, "-cp", ":".join(jars("org.apache.kafka", "kafka_2.13", "4.1.0"))]
        subprocess.run(
            [*self._run, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(self._settings)],
            check=True, capture_output=True,
        )  # fmt: skip
        with self._log.open("w") as log:
            self._process = subprocess.Popen([*self._run, "kafka.Kafka", str(self._settings)], stdout=log, stderr=log)
        self._wait(plain)
        clients = {"bootstrap.servers": self.servers}
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(self._java(clients))
        text = "org.apache.kafka.common.serialization.StringSerializer"
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            self._java(clients | {"key.serializer": text, "value.serializer": text})
        )

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic, or give it more partitions."""
        admin = self._jvm.org.apache.kafka.clients.admin
        if name in set(self._admin.listTopics().names().get()):
            grown = self._jvm.java.util.HashMap({})
            grown.put(name, admin.NewPartitions.increaseTo(partitions))
            self._admin.createPartitions(grown).all().get()
        else:
            made = self._jvm.java.util.ArrayList()
            made.add(admin.NewTopic(name, partitions, 1))
            self._admin.createTopics(made).all().get()

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        """Write messages; they are there when this returns."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        for partition, key, value in messages:
            self._producer.send(record(topic, partition, key, value))
        self._producer.flush()

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Remove the messages before an offset, as retention does."""
        jvm = self._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        records = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete", True, loader)
        # By reflection: Py4J does not see the static one of two methods with the same name.
        types, arguments = self._array(jvm.java.lang.Class), self._array(jvm.java.lang.Object)
        types[0], arguments[0] = jvm.java.lang.Long.TYPE, jvm.java.lang.Long(before)
        wanted = jvm.java.util.HashMap({})
        place = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        wanted.put(place, records.getMethod("beforeOffset", types).invoke(None, arguments))
        self._admin.deleteRecords(wanted).all().get()

    def stop(self) -> None:
        """End the clients and the broker."""
        self._producer.close()
        self._admin.close()
        self._process.terminate()
        self._process.wait(30)

    def _java(self, values: dict[str, str]) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in values.items():
            properties.put(name, value)
        return properties

    def _array(self, kind: Any) -> Any:
        return SparkSession.active().sparkContext._gateway.new_array(kind, 1)

    def _wait(self, port: int) -> None:
        until = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the broker did not start:\n{self._log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def _settings(home: Path, plain: int, sasl: int, controller: int) -> str:
    return "\n".join(
        [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            "controller.listener.names=CONTROLLER",
            f"listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name=PLAINTEXT",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config="
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            f"log.dirs={home / 'data'}",
            "offsets.topic.replication.factor=1",
            "auto.create.topics.enable=false",
        ]
    )
