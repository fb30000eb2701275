"""A broker whose topics and messages are written by the clients that Spark's Kafka source brings."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.servers.kafka_broker import PASSWORD, USER, KafkaBroker

__all__ = ["PASSWORD", "USER", "Broker", "Message"]

Message = tuple[int, str | None, str | None]  # partition, key, value


class Broker(KafkaBroker):
    """One broker, and clients in Spark's JVM."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        super().__init__(home)
        self._jvm = spark._jvm
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

    def remove(self, name: str) -> None:
        """Remove a topic; it is gone when this returns."""
        self._admin.deleteTopics([name]).all().get()
        while name in set(self._admin.listTopics().names().get()):
            time.sleep(0.1)

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
        super().stop()

    def _java(self, values: dict[str, str]) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in values.items():
            properties.put(name, value)
        return properties

    def _array(self, kind: Any) -> Any:
        return SparkSession.active().sparkContext._gateway.new_array(kind, 1)
