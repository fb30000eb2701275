"""A topic of a Kafka cluster: the latest value of each key (what Flink calls upsert-kafka), or every change as an event.

A row is delivered when the broker has acknowledged its messages. `messages` says what a message holds,
`topic` what a topic must be like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import Producer  # OpenTelemetry replaces that of the package by one that adds headers

from dbt_reverse_etl.base.errors import DestinationError, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import SNAPSHOT, Batch, Limits, Mode, Rights, Sink, SinkTask, options_of
from dbt_reverse_etl.sinks.kafka.envelope import COLUMNS
from dbt_reverse_etl.sinks.kafka.messages import Entry, Header, Message, entries_of, json_of, tombstone
from dbt_reverse_etl.sinks.kafka.outcome import Fate, Reports, delivery_of, not_taken, said
from dbt_reverse_etl.sinks.kafka.reading import JSON, read_rows
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.topic import (
    Cluster,
    NoAnswer,
    Topic,
    configs_of,
    name_of,
    policy_problems,
    task_problems,
    topic_problems,
)
from dbt_reverse_etl.sinks.refusals import deleted_rows

if TYPE_CHECKING:
    from dbt_reverse_etl.sinks.kafka.avro import Avro

RESYNC = "restore the topic, or dbt run-operation resync for this sync"


class KafkaSink(Sink):
    """Keeps the latest value of each key in a compacted topic equal to a model, or writes each change as an event."""

    type = "kafka"
    settings_model = KafkaSettings
    options_model = KafkaOptions
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.CHANGELOG})
    distributable = True
    validates_early = True
    promise = "At least once, in order per key: the latest value wins, and each change has a stable event_id."

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Producer | None = None

    @property
    def identity(self) -> str:
        """The bootstrap servers, ordered."""
        return ",".join(self._settings.servers)

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """One batch at a time: the producer has many requests under way for it, and the next one is prepared meanwhile."""
        return Limits(rows=20_000, bytes=32 * 2**20)

    def extra_columns(self, task: SinkTask) -> tuple[str, ...]:
        """The snapshot for a header; for events the images before, and the time too."""
        return COLUMNS if task.mode is Mode.CHANGELOG else (SNAPSHOT,)

    def validate(self, task: SinkTask) -> None:
        """Refuse names that no topic or record can have, keys that are not mapped, and options that do not fit."""
        raise_if_any(task_problems(task, self._settings))

    def check(self) -> None:
        """Log in, nothing else."""
        with self._explained():
            self._cluster()

    def rights(self, task: SinkTask) -> Rights:
        """What the login may do with the topic, and what that is like."""
        is_json = options_of(task, KafkaOptions).value_format == "json"
        untried = () if is_json else ("the schema registry: a push registers the schema",)
        with self._explained():
            cluster = self._cluster()
            try:
                absent = cluster.lacking(task.object)
                topic = None if "DESCRIBE_CONFIGS" in absent else cluster.topic(task.object)
            except NoAnswer as none:
                return self._rights_without_topic(task, none, untried)
        problems = self._no_right(task, absent).problems if absent else ()
        return Rights((*problems, *(topic_problems(topic, task) if topic else ())), untried)

    def _rights_without_topic(self, task: SinkTask, none: NoAnswer, untried: tuple[str, ...]) -> Rights:
        if str(none) == "TOPIC_AUTHORIZATION_FAILED":
            return Rights(self._no_right(task, ["DESCRIBE"]).problems, untried)
        if str(none) != "UNKNOWN_TOPIC_OR_PART":
            raise none
        if not self._settings.create_object:
            return Rights(self._no_topic(task).problems, untried)
        return Rights(untried=("the rights on the topic, and that to make it: it is not there yet", *untried))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the topic is gone, although rows were delivered, or loses them meanwhile."""
        if task.first:
            return None
        with self._explained():
            topic = self._cluster().topic(task.object)
        if topic is None:
            return f"no topic {task.object}"
        raise_if_any(policy_problems(topic, task), DestinationError)
        return None

    def open(self, task: SinkTask) -> None:
        """Look at the topic, or make it, and start the producer."""
        self.validate(task)
        self.close()
        self._task = task
        with self._explained():
            cluster = self._cluster()
            topic = cluster.topic(task.object) or self._made(cluster)
            absent = cluster.lacking(task.object)
        problems = self._no_right(task, absent).problems if absent else topic_problems(topic, task)
        raise_if_any(problems, DestinationError)
        self._encode = json_of(options_of(task, KafkaOptions), task.mode)
        registered = self._registered(task)
        if registered is not None:
            registered.register()
            self._encode = registered.encode
        self._producer = Producer(self._settings.producer(topic.limit))

    def prepare(self, rows: pa.Table) -> Sequence[Entry]:
        """The messages of the rows."""
        return entries_of(rows, self._task, options_of(self._task, KafkaOptions), self._encode)

    def deliver(self, batch: Batch) -> Delivery:
        """Send the messages of one batch and wait until the broker has answered for each."""
        producer = self._producer
        if producer is None:
            raise RuntimeError("deliver needs open first")
        entries = self.prepare(batch.rows) if batch.prepared is None else batch.prepared
        followed = frozenset(deleted_rows(batch.rows) if self._task.mode is Mode.CHANGELOG else ())
        reports = Reports()
        unsent = _sent(entries, followed, lambda message: _take(producer, self._task.object, message, reports))
        while reports.wait(producer.flush):  # nothing but this batch is in the queue, and each message has its timeout
            pass
        failed = reports.failed(lambda: (None if isinstance(one, str) else one[0] for one in entries), followed)
        return delivery_of(len(entries), unsent, failed, reports.hopeless)

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The last value of each key."""
        registered = self._registered(task)
        form = JSON if registered is None else registered.format
        with self._explained():
            topic = self._cluster().topic(task.object)
            if topic is not None:
                yield from read_rows(self._settings, task, topic.partitions, form)

    def key_form(self, task: SinkTask) -> str:
        return f"options.key: {options_of(task, KafkaOptions).key}"

    def key_place(self, task: SinkTask) -> str:
        return f"options.partitions: {options_of(task, KafkaOptions).partitions}"

    def is_nan_null(self, task: SinkTask) -> bool:
        """By `options.nan`."""
        return options_of(task, KafkaOptions).nan == "null"

    def close(self) -> None:
        """Forget what was not sent; after `deliver` nothing is left."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def _registered(self, task: SinkTask) -> Avro | None:
        """The format of the values, where it has a schema in the registry. Its packages take seconds, and others do not need them."""
        if options_of(task, KafkaOptions).value_format != "avro":
            return None
        from dbt_reverse_etl.sinks.kafka.avro import Avro

        return Avro(self._settings, task)

    def _cluster(self) -> Cluster:
        cluster = Cluster(self._settings)
        cluster.reach()
        return cluster

    def _made(self, cluster: Cluster) -> Topic:
        task = self._task
        if not task.first:
            raise self.problem(f"the topic {task.object} has vanished", "the topic of the last push", RESYNC)
        if not self._settings.create_object:
            raise self._no_topic(task)
        return cluster.make(task)

    def _no_topic(self, task: SinkTask) -> DestinationError:
        partitions = options_of(task, KafkaOptions).partitions
        wanted = f" --partitions {partitions}" if partitions else ""
        configs = "".join(f" --config {name}={value}" for name, value in configs_of(task).items())
        command = f"kafka-topics --create --topic {task.object}{wanted}{configs}"
        return self.problem(f"no topic {task.object}", "a topic", f"run: {command}; or set create_object: true")

    def _no_right(self, task: SinkTask, absent: Sequence[str]) -> DestinationError:
        """`WRITE` and `DESCRIBE_CONFIGS` as Kafka's own tool takes them."""
        names = ["".join(part.capitalize() for part in one.split("_")) for one in absent]
        grants = "".join(f" --operation {name}" for name in names)
        next_step = f"kafka-acls --add --allow-principal User:...{grants} --topic {task.object}"
        found = f"no right {' and '.join(names)} on topic {task.object}"
        return self.problem(found, "Write, Describe and DescribeConfigs", next_step)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NoAnswer as error:
            expected = "a cluster that answers and grants Describe, DescribeConfigs and Write on the topic"
            raise self.problem(said(str(error)), expected, "see docs/kafka.md, then push again") from None


def _sent(entries: Sequence[Any], followed: frozenset[int], take: Callable[[Message], str | None]) -> dict[int, Fate]:
    """Send the messages of each row; what became of those rows that were not sent, or not wholly."""
    unsent: dict[int, Fate] = {}
    for row, entry in enumerate(entries):
        if isinstance(entry, str):
            unsent[row] = (Outcome.REJECTED, entry)
        elif (refusal := take(entry)) is not None:
            unsent[row] = not_taken(refusal)
        elif row in followed and (refusal := take(tombstone(entry))) is not None:
            unsent[row] = (Outcome.UNKNOWN, said(refusal))  # its event may be there
    return unsent


def _take(producer: Producer, topic: str, message: Message, reports: Reports) -> str | None:
    """Queue one message; None, or the error for which it was not taken. A full queue is waited for."""
    key, value, event, operation, snapshot = message
    headers: list[Header] = [("event_id", event), operation, snapshot]
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=reports)
            return None
        except BufferError:
            reports.wait(producer.poll)
        except KafkaException as error:
            return name_of(error)
