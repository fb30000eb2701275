"""The schema registry of a sync's topic, as the formats that need one ask it. Imported only where a sync asks for one: it takes seconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import SinkTask
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
    from confluent_kafka.serialization import MessageField, SerializationContext

STRATEGY = {"subject.name.strategy": topic_subject_name_strategy}
_INCOMPATIBLE, _NOT_FOUND = 409, 404
_REFUSED = (401, 403)
_Answer = TypeVar("_Answer")


class Registry:
    """The subject of the values of one topic.

    Attributes:
        client: for the client's own serializers.
        context: what they are told of the topic.
    """

    def __init__(self, settings: KafkaSettings, task: SinkTask) -> None:
        self._url = settings.schema_registry_url or ""
        self._subject = f"{task.object}-value"
        self.client = SchemaRegistryClient(settings.registry() | {"timeout": PATIENCE, "max.retries": 1})
        self.context = SerializationContext(task.object, MessageField.VALUE)

    def register(self, schema: Schema) -> None:
        """Make a schema known, before the first message. Raises DestinationError."""
        self.asked(lambda: self.client.register_schema(self._subject, schema))

    def latest(self, form: str) -> Schema | None:
        """The newest schema of the subject, in a format of the registry; None: there is none yet. Raises DestinationError."""

        def ask() -> Schema | None:
            try:
                return self.client.get_latest_version(self._subject, form).schema
            except SchemaRegistryError as refusal:
                if refusal.http_status_code == _NOT_FOUND:
                    return None
                raise

        return self.asked(ask)

    def asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """An answer of the registry, or of a serializer that asks it. Raises DestinationError."""
        try:
            return ask()
        except SchemaRegistryError as refusal:
            raise DestinationError(self._problem(refusal.http_status_code)) from None
        except OSError as error:
            raise DestinationError(self._unreachable(error)) from None
        except Exception as error:
            if type(error).__module__.startswith("httpx"):  # one or another, by the client's version
                raise DestinationError(self._unreachable(error)) from None
            raise

    def changed(self, found: str) -> Problem:
        """Why the fields of a sync do not fit the schema that the subject has."""
        expected = "one that the subject's compatibility allows: fields may come and go, their types may not change"
        next_step = "cast the changed column back, sync to a new topic, or change the subject's compatibility"
        return Problem(f"schema registry, subject {self._subject}", found, expected, next_step)

    def _problem(self, status: int) -> Problem:
        where = f"schema registry, subject {self._subject}"
        if status == _INCOMPATIBLE:
            return self.changed("it refuses the schema as incompatible with the one it has")
        if status in _REFUSED:
            expected, next_step = (
                "a login that may read and write the subject",
                "correct schema_registry_user and its rights",
            )
            return Problem(where, f"it refused the login (status {status})", expected, next_step)
        return Problem(where, f"status {status}", "a schema registry that takes the schema", "look into its log")

    def _unreachable(self, error: Exception) -> Problem:
        found, next_step = f"no answer ({type(error).__name__})", "check schema_registry_url, and push again"
        return Problem(f"schema registry {self._url}", found, "a schema registry that answers", next_step)


def encoded(rows: pa.Table, schema: pa.Schema, write: Callable[[pa.Table], Iterable[bytes | None]]) -> Encoded:
    """Rows as messages; they are refused as by JSON, but for NaN and Infinity, which every such format has.

    Args:
        schema: `exact`; the rows are written in it.
        write: a message for each row.
    """
    refused = encode_rows(rows, nan="null").rejected
    kept = [row for row in range(rows.num_rows) if row not in refused]
    values: list[bytes | None] = [None] * rows.num_rows
    exactly = rows.take(pa.array(kept, pa.int64())).cast(schema)
    for row, value in zip(kept, write(exactly), strict=True):
        values[row] = value
    return Encoded(values, refused)
