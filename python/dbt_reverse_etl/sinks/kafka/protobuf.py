"""Values as Protobuf with a schema registry, through the serializers of the Kafka client. Imported only where a sync asks for it: it takes seconds."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.duration_pb2 import DESCRIPTOR as DURATION
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.type.date_pb2 import DESCRIPTOR as DATE
from google.type.datetime_pb2 import DESCRIPTOR as DATETIME
from google.type.timeofday_pb2 import DESCRIPTOR as TIME_OF_DAY

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.envelope import envelope
from dbt_reverse_etl.sinks.kafka.protobuf_types import file_of, is_earlier
from dbt_reverse_etl.sinks.kafka.protobuf_values import field_of, from_protobuf, to_form
from dbt_reverse_etl.sinks.kafka.reading import Format
from dbt_reverse_etl.sinks.kafka.registry import STRATEGY, Registry, encoded
from dbt_reverse_etl.sinks.kafka.settings import KafkaSettings
from dbt_reverse_etl.values.arrow import exact
from dbt_reverse_etl.values.encoding import Encoded

with warnings.catch_warnings(record=True):  # what the client's own dependencies say to each other
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import SerializationError

_SERIALIZED = "serialized"  # a registry's word for the descriptor, not the text
_CONF = STRATEGY | {"use.deprecated.format": False}


class Protobuf:
    """Writes and reads the values of one sync's topic."""

    def __init__(self, settings: KafkaSettings, task: SinkTask) -> None:
        self._task, self._registry = task, Registry(settings, task)
        fields = exact(task.schema)
        is_event = task.mode is Mode.CHANGELOG
        self._messages = {"Envelope": envelope(fields), "Value": fields} if is_event else {"Value": fields}
        self._known: dict[bytes, bool] = {}

    def register(self) -> None:
        """Make the schema known, before the first message. Raises DestinationError."""
        text = base64.b64encode(self._type.DESCRIPTOR.file.serialized_pb).decode()
        self._registry.register(Schema(text, "PROTOBUF"))

    def encode(self, rows: pa.Table) -> Encoded:
        """The columns of the schema as messages."""
        return encoded(rows, next(iter(self._messages.values())), self._written)

    def _written(self, rows: pa.Table) -> Iterator[bytes | None]:
        columns = [to_form(column.combine_chunks()) for column in rows.columns]
        for value in pa.Table.from_arrays(columns, rows.column_names).to_pylist():
            yield self._write(self._type(**value), self._registry.context)

    def decode(self, value: bytes) -> dict[str, Any] | None:
        """The fields of a value; None: it is not one of a schema of this topic. Raises DestinationError."""
        try:
            if not self._is_ours(value):
                return None
            message = self._registry.asked(lambda: self._read(value, self._registry.context))
        except (SerializationError, ValueError):
            return None
        if self._task.mode is not Mode.CHANGELOG:
            return self._fields(message)
        after = field_of(message, "after")
        return {"after": None if after is None else self._fields(after)}

    @property
    def format(self) -> Format:
        """How `reading` reads what was written here."""
        return Format(self.decode, from_protobuf)

    def _fields(self, message: Any) -> dict[str, Any]:
        return {name: field_of(message, name) for name in self._task.schema.names}

    def _is_ours(self, value: bytes) -> bool:
        """Whether it is the first message type of a schema before ours: in front stand a zero, four bytes of the schema's id, and a zero."""
        number = value[1:5]
        if len(value) < 6 or value[0] or value[5]:
            return False
        if number not in self._known:
            found = self._registry.asked(
                lambda: self._registry.client.get_schema(int.from_bytes(number, "big"), fmt=_SERIALIZED)
            )
            self._known[number] = found.schema_type == "PROTOBUF" and is_earlier(_file(found), self._file)
        return self._known[number]

    @cached_property
    def _file(self) -> FileDescriptorProto:
        """Our message types, with the numbers that were given before."""
        latest = self._registry.latest(_SERIALIZED)
        earlier = _file(latest) if latest is not None and latest.schema_type == "PROTOBUF" else None
        file, changed = file_of(self._task.object, self._messages, earlier)
        if changed:
            raise DestinationError(self._registry.changed(f"another type for {', '.join(changed)}"))
        return file

    @cached_property
    def _type(self) -> Any:
        pool = DescriptorPool()
        for needed in (TIMESTAMP, DURATION, DATE, DATETIME, TIME_OF_DAY):
            pool.AddSerializedFile(needed.serialized_pb)
        pool.Add(self._file)
        return GetMessageClass(pool.FindMessageTypeByName(f"{self._file.package}.{next(iter(self._messages))}"))

    @cached_property
    def _write(self) -> Any:
        return ProtobufSerializer(self._type, self._registry.client, conf=_CONF)

    @cached_property
    def _read(self) -> Any:
        return ProtobufDeserializer(self._type, _CONF, self._registry.client)


def _file(schema: Schema) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(base64.b64decode(schema.schema_str or ""))
