"""Values as Avro with a schema registry, through the serializers of the Kafka client. Imported only where a sync asks for it: it takes seconds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.avro_types import avro_schema, from_avro, nullable, to_avro
from dbt_reverse_etl.sinks.kafka.envelope import ALIKE, envelope
from dbt_reverse_etl.sinks.kafka.reading import Format
from dbt_reverse_etl.sinks.kafka.settings import KafkaSettings
from dbt_reverse_etl.sinks.kafka.topic import PATIENCE
from dbt_reverse_etl.values.encoding import Encoded, encode_rows

with warnings.catch_warnings(record=True):  # what the client's own dependencies say to each other
    from confluent_kafka.schema_registry import (
        Schema,
        SchemaRegistryClient,
        SchemaRegistryError,
        topic_subject_name_strategy,
    )
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

_STRATEGY = {"subject.name.strategy": topic_subject_name_strategy}
_UNKNOWN = (40402, 40403)  # codes of a version, and of a schema, that the registry does not have
_INCOMPATIBLE = 409
_REFUSED = (401, 403)
_NOT_FOUND = 404
_FRAMED = b"\0"  # begins a value that has a schema
_FRAME = 5  # bytes: that one, and the schema's id
_ODD = (TypeError, KeyError, AttributeError)  # what the client makes of JSON of another form
_Answer = TypeVar("_Answer")


class Avro:
    """Writes and reads the values of one sync's topic, whose subject in the registry is `<topic>-value`."""

    def __init__(self, settings: KafkaSettings, task: SinkTask) -> None:
        fields = nullable(task.schema)
        self._schema = envelope(fields) if task.mode is Mode.CHANGELOG else fields
        shape = ("Envelope", ALIKE) if task.mode is Mode.CHANGELOG else ("Value", {})
        self._text = json.dumps(avro_schema(self._schema, *shape))
        self._url, self._subject = settings.schema_registry_url or "", f"{task.object}-value"
        self._client = _client(settings)
        self._context = SerializationContext(task.object, MessageField.VALUE)
        self._write = AvroSerializer(self._client, self._text, conf=_STRATEGY)
        self._read = AvroDeserializer(self._client, conf=_STRATEGY)
        self.format = Format(self.decode, from_avro)  # of what was written here

    def register(self) -> None:
        """Make the schema known, before the first message. Raises DestinationError."""
        number: object = None
        with suppress(ValueError, TypeError, AttributeError):  # an answer that is no JSON, or no object
            number = self._asked(lambda: self._client.register_schema(self._subject, Schema(self._text, "AVRO")))
        if not isinstance(number, int) or not 0 <= number < 2**32:  # the room of an id in a message
            raise DestinationError(self._no_registry("an answer without a schema's id"))

    def encode(self, rows: pa.Table) -> Encoded:
        """The columns of the schema as messages; a row is refused as by JSON, but for NaN and Infinity, which Avro has."""
        refused = encode_rows(rows, nan="null").rejected
        kept = [row for row in range(rows.num_rows) if row not in refused]
        values: list[bytes | None] = [None] * rows.num_rows
        exactly = rows.take(pa.array(kept, pa.int64())).cast(self._schema)
        for row, value in zip(kept, exactly.to_pylist(), strict=True):
            shaped = {field.name: to_avro(value[field.name], field.type) for field in self._schema}
            values[row] = self._write(shaped, self._context)
        return Encoded(values, refused)

    def decode(self, value: bytes) -> dict[str, Any] | None:
        """The fields of a value; None: it is not one of a schema of this registry. Raises DestinationError."""
        try:
            found = self._asked(lambda: self._reading(value))
        except (SerializationError, ValueError, EOFError, IndexError, *_ODD):
            if len(value) > _FRAME and value[:1] == _FRAMED and not self._has_schema(value):
                raise DestinationError(self._no_registry("an answer without a schema")) from None
            return None
        return found if isinstance(found, dict) else None

    def _has_schema(self, value: bytes) -> bool:
        """Whether the registry has a schema of this value, of whatever type; its answer is in the client's memory."""
        with suppress(ValueError, *_ODD):
            number = int.from_bytes(value[1:5], "big")
            return self._asked(lambda: self._client.get_schema(number, self._subject)).schema_str is not None
        return False

    def _reading(self, value: bytes) -> Any:
        try:
            return self._read(value, self._context)
        except SchemaRegistryError as refusal:
            if refusal.error_code not in _UNKNOWN:
                raise
            return None  # of another registry, or of a schema that was deleted

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """An answer of the registry, or of a serializer that asks it. Raises DestinationError."""
        try:
            return ask()
        except SchemaRegistryError as refusal:
            raise DestinationError(self._problem(refusal.http_status_code)) from None
        except Exception as error:
            # httpx or another client, by the version of Kafka's.
            if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
                raise
            raise DestinationError(self._no_registry(f"no answer ({type(error).__name__})")) from None

    def _problem(self, status: int) -> Problem:
        if status == _NOT_FOUND or 300 <= status < 400:
            return self._no_registry(f"status {status}")
        where = f"schema registry {self._url}, subject {self._subject}"
        if status == _INCOMPATIBLE:
            found = "it refuses the schema as incompatible with the one it has"
            expected = "one that the subject's compatibility allows: fields may come and go, their types may not change"
            next_step = "see Changes after an upgrade, cast the changed column back, sync to a new topic, or change the subject's compatibility"
        elif status in _REFUSED:
            found, expected = f"it refused the login (status {status})", "a login that may read and write the subject"
            next_step = "correct schema_registry_user and its rights"
        else:
            found, expected, next_step = f"status {status}", "a schema registry that takes the schema", "see its log"
        return Problem(where, found, expected, next_step)

    def _no_registry(self, found: str) -> Problem:
        expected = "a schema registry that answers, not a console or a login page"
        where, next_step = f"schema registry {self._url}", "check schema_registry_url, and push again"
        return Problem(where, found, expected, next_step)


def _client(settings: KafkaSettings) -> SchemaRegistryClient:
    """It reads the file of the CA. Raises DestinationError."""
    try:
        return SchemaRegistryClient(settings.registry() | {"timeout": PATIENCE, "max.retries": 1})
    except OSError as error:  # an error of TLS is one
        where, found = f"schema registry {settings.schema_registry_url}", f"no CA ({type(error).__name__})"
        expected, next_step = "a PEM file with its CA", "correct schema_registry_ca_location or SSL_CERT_FILE"
        raise DestinationError(Problem(where, found, expected, next_step)) from None
