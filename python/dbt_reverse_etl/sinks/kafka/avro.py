"""Values as Avro with a schema registry, through the serializers of the Kafka client. Imported only where a sync asks for it: it takes seconds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.avro_types import avro_schema, from_avro, to_avro
from dbt_reverse_etl.sinks.kafka.envelope import envelope
from dbt_reverse_etl.sinks.kafka.reading import Format
from dbt_reverse_etl.sinks.kafka.registry import STRATEGY, Registry, encoded
from dbt_reverse_etl.sinks.kafka.settings import KafkaSettings
from dbt_reverse_etl.values.arrow import exact
from dbt_reverse_etl.values.encoding import Encoded

with warnings.catch_warnings(record=True):  # what the client's own dependencies say to each other
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import SerializationError


class Avro:
    """Writes and reads the values of one sync's topic."""

    def __init__(self, settings: KafkaSettings, task: SinkTask) -> None:
        fields = exact(task.schema)
        self._schema = envelope(fields) if task.mode is Mode.CHANGELOG else fields
        self._text = json.dumps(avro_schema(self._schema, "Envelope" if task.mode is Mode.CHANGELOG else "Value"))
        self._registry = Registry(settings, task)
        self._write = AvroSerializer(self._registry.client, self._text, conf=STRATEGY)
        self._read = AvroDeserializer(self._registry.client, conf=STRATEGY)

    def register(self) -> None:
        """Make the schema known, before the first message. Raises DestinationError."""
        self._registry.register(Schema(self._text, "AVRO"))

    def encode(self, rows: pa.Table) -> Encoded:
        """The columns of the schema as messages."""
        return encoded(rows, self._schema, self._written)

    def _written(self, rows: pa.Table) -> Iterator[bytes | None]:
        for value in rows.to_pylist():
            shaped = {field.name: to_avro(value[field.name], field.type) for field in self._schema}
            yield self._write(shaped, self._registry.context)

    def decode(self, value: bytes) -> dict[str, Any] | None:
        """The fields of a value; None: it is not one of a schema of this registry. Raises DestinationError."""
        try:
            found = self._registry.asked(lambda: self._read(value, self._registry.context))
        except (SerializationError, ValueError, EOFError, IndexError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def format(self) -> Format:
        """How `reading` reads what was written here."""
        return Format(self.decode, from_avro)
