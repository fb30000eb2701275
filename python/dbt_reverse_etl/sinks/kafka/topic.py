"""What is asked of the cluster before the first message: can it be reached, is the topic there, is it as it must be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]  # its stubs forget them

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import BEFORE, CAPTURED_AT, EVENT_ID, OPERATION, SNAPSHOT, Mode, SinkTask, options_of
from dbt_reverse_etl.sinks.hosts import is_loopback
from dbt_reverse_etl.sinks.kafka import avro_types
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.refusals import unmapped_key

PATIENCE = 10.0  # seconds for an answer
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
POLL = 0.02
_LATE = "_TIMED_OUT"
_REFUSED = ("_AUTHENTICATION", "_SSL")
_PLAIN_WORDS = (*_REFUSED, "_RESOLVE", "_TRANSPORT", "_ALL_BROKERS_DOWN")  # they say more than "timed out"
_UNKNOWN_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_COMPACTED = {"cleanup.policy": "compact"}
_EVERY_EVENT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_Answer = TypeVar("_Answer")


class NoAnswer(Exception):
    """The cluster refused or did not answer; the text is the name of an error."""


class Topic(NamedTuple):
    """What of a topic matters here; `cleanup_policy` is `compact`, `delete`, or both with a comma; `limit` is max.message.bytes."""

    partitions: int
    cleanup_policy: str
    limit: int


class Cluster:
    """Asks a cluster, which must be reached first; every question is bounded in time and raises NoAnswer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._errors, self._named = errors, named = list[str](), list[str]()
        is_plain = settings.security_protocol is None and not settings.protocol.endswith("ssl")
        self._plain_by_default = settings.protocol if is_plain else ""
        self._replication_factor = settings.replication_factor or -1

        # Without self: a client that holds itself outlives the cluster, and statistics that nobody takes fill the memory.
        def note_error(error: KafkaError) -> None:
            errors.append(error.name())

        def note_hosts(statistics: str) -> None:
            named[:] = _hosts_of(statistics)

        try:
            # Any question may go to any broker, so that only the client's statistics tell their names before it connects to them.
            look = {"statistics.interval.ms": 10, "stats_cb": note_hosts} if self._plain_by_default else {}
            self._client = AdminClient(settings.connection() | {"error_cb": note_error} | look)
        except KafkaException as error:
            raise NoAnswer(name_of(error)) from None

    def reach(self) -> None:
        """Log in and get an answer; a refused login is said after the first of two questions. Raises DestinationError where rows would
        leave this machine unencrypted, which nobody asked for."""
        if self._plain_by_default:
            self._refuse_away()
        try:
            self._answer(self._client.describe_cluster(request_timeout=PATIENCE / 5))
        except NoAnswer as none:
            if str(none) in _REFUSED:
                raise
            self._answer(self._client.describe_cluster(request_timeout=PATIENCE))

    def _refuse_away(self) -> None:
        """What tunnels and containers show here is sent to the machines behind them, and the login first."""
        began = time.monotonic()
        while not self._named:
            self._client.poll(POLL)
            spent = time.monotonic() - began
            if spent > PATIENCE or (spent > PATIENCE / 5 and not {*_REFUSED}.isdisjoint(self._errors)):
                raise self._no_answer(_LATE)
        away = [host for host in self._named if not is_loopback(host)]
        if away:
            del self._client  # within a second it would connect to them by itself
            raise DestinationError(_not_here(away[0], self._plain_by_default))

    def topic(self, name: str) -> Topic | None:
        """The topic, or None if there is none; it is never made by asking."""
        try:
            described = self._described(name)
            resource = ConfigResource(ResourceType.TOPIC, name)
            (configs,) = self._client.describe_configs([resource], request_timeout=PATIENCE).values()
            values: dict[str, Any] = {entry: config.value for entry, config in self._answer(configs).items()}
        except NoAnswer as none:
            if str(none) == _UNKNOWN_TOPIC:
                return None
            raise
        # Kafka's defaults, where a broker of another make leaves them out.
        policy, limit = values.get("cleanup.policy", "delete"), values.get("max.message.bytes", 1_048_588)
        return Topic(len(described.partitions), policy, int(limit))

    def lacking(self, name: str) -> list[str]:
        """The rights on the topic, as `WRITE`, that a push needs and the login has not; none where the broker does not tell.
        Raises NoAnswer without `DESCRIBE`."""
        granted = {operation.name for operation in self._described(name).authorized_operations or ()}
        return sorted({"WRITE", "DESCRIBE_CONFIGS"} - granted) if granted else []

    def _described(self, name: str) -> Any:
        asked: Any = {"request_timeout": PATIENCE, "include_authorized_operations": True}
        return self._answer(self._client.describe_topics(TopicCollection([name]), **asked)[name])

    def make(self, task: SinkTask) -> Topic:
        """Make the topic; one that somebody else just made is as good."""
        name, partitions = task.object, options_of(task, KafkaOptions).partitions or -1
        topic = NewTopic(name, partitions, self._replication_factor, config=dict(configs_of(task)))
        try:
            made = self._client.create_topics([topic], request_timeout=PATIENCE, operation_timeout=PATIENCE)
            self._answer(made[name])
        except NoAnswer as refusal:
            if str(refusal) != "TOPIC_ALREADY_EXISTS":
                raise
        return self._appearing(name)

    def _appearing(self, name: str) -> Topic:
        """A new topic is known to every broker only after a moment."""
        until = time.monotonic() + PATIENCE
        while (topic := self.topic(name)) is None:
            if time.monotonic() > until:
                raise NoAnswer(_UNKNOWN_TOPIC)
            time.sleep(0.05)
        return topic

    def _answer(self, future: Future[_Answer]) -> _Answer:
        while not future.done():  # each question has its timeout, and the client must not end while one is open
            self._client.poll(POLL)
        error = future.exception()
        if error is None:
            return future.result()
        raise self._no_answer(name_of(error))

    def _no_answer(self, name: str) -> NoAnswer:
        plain = [error for error in self._errors if error in _PLAIN_WORDS]
        return NoAnswer(plain[0] if plain and name == _LATE else name)


def _hosts_of(statistics: str) -> list[str]:
    """The hosts that the cluster names; those of bootstrap_servers have no number yet."""
    brokers = json.loads(statistics)["brokers"].values()
    return [one["nodename"].rpartition(":")[0].strip("[]") for one in brokers if one["nodeid"] >= 0]


def _not_here(host: str, protocol: str) -> Problem:
    where, expected = f"Kafka broker {host}", "brokers on this machine, or TLS"
    next_step = f"set security_protocol: {protocol.replace('plaintext', 'ssl')} in profiles.yml; or {protocol}, if what is sent stays on this machine or in a tunnel"
    found = f"an address away from this machine, without TLS ({protocol}, the default)"
    return Problem(where, found, expected, next_step)


def name_of(error: BaseException | None) -> str:
    """The name of librdkafka's error, or the type of another exception."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return inner.name() if isinstance(inner, KafkaError) else type(error).__name__


def configs_of(task: SinkTask) -> Mapping[str, str]:
    """How a topic that we make is configured, so that nothing gets lost that a reader needs."""
    return _EVERY_EVENT if task.mode is Mode.CHANGELOG else _COMPACTED


def task_problems(task: SinkTask, settings: KafkaSettings) -> list[Problem]:
    """What can never work, whatever the cluster is like."""
    problems, options = unmapped_key(task), options_of(task, KafkaOptions)
    problems += _avro_problems(task, settings) if options.value_format == "avro" else []
    if not _NAME.fullmatch(task.object) or task.object in (".", ".."):
        expected = "the name of a topic: at most 249 letters, digits, . _ and -"
        problems.append(Problem(f"sync {task.sync}, object", repr(task.object[:249]), expected, "correct object"))
    problems += [
        Problem(f"sync {task.sync}", f"field {name}", "a name that is not one of ours", "rename it under fields")
        for name in sorted({OPERATION, EVENT_ID, SNAPSHOT, CAPTURED_AT, BEFORE} & set(task.schema.names))
    ]
    plain = [field.name for field in task.schema if not pa.types.is_nested(field.type)]
    if options.key == "raw" and not (len(task.key) == 1 and task.key[0] in plain):
        where, expected = f"sync {task.sync}, options.key", "one key field, of a type that is no list, struct or map"
        problems.append(Problem(where, "raw", expected, "remove it: key: json takes every key"))
    if options.partitions is None:
        expected = "the number of partitions of the topic: keys move when it changes, so a changed one must be noticed"
        next_step = f"write it; kafka-topics --describe --topic {task.object} tells it, and a new topic may have any"
        problems.append(Problem(f"sync {task.sync}, options.partitions", "nothing", expected, next_step))
    if task.mode is Mode.CHANGELOG and "compacted" in options.model_fields_set:
        where, expected = f"sync {task.sync}, options.compacted", "none: how long events are kept is up to the topic"
        problems.append(Problem(where, "it, in mode changelog", expected, "remove it"))
    return problems


def _avro_problems(task: SinkTask, settings: KafkaSettings) -> list[Problem]:
    where, problems = f"sync {task.sync}, options", []
    if settings.schema_registry_url is None:
        expected = "schema_registry_url in the destination"
        found = "value_format avro, and no schema registry"
        problems.append(Problem(where, found, expected, "add it to profiles.yml"))
    if not all(map(find_spec, ("fastavro", "authlib"))):  # found without being imported, which would take seconds
        install = "pip install 'dbt-reverse-etl[kafka-avro]'"
        problems.append(Problem(where, "value_format avro, and not all that it needs", "it installed", install))
    if options_of(task, KafkaOptions).nan != "reject":
        problems.append(Problem(where, "nan, with value_format avro", "none: Avro has NaN and Infinity", "remove it"))
    expected = "names of letters, digits and _, of the field and within it"
    return problems + [
        Problem(f"sync {task.sync}, field {name}", f"{task.schema.field(name).type}", expected, "rename it")
        for name in avro_types.unsupported(task.schema)
    ]


def topic_problems(topic: Topic, task: SinkTask) -> list[Problem]:
    """Why the rows of a sync must not go to this topic."""
    problems, partitions = policy_problems(topic, task), options_of(task, KafkaOptions).partitions
    if topic.partitions != partitions:
        found, expected = f"{topic.partitions} partitions", f"{partitions}, as options.partitions says: else keys move"
        next_step = f"sync to a new topic; or, where consumers bear old rows in old partitions, set partitions: {topic.partitions}: the next push sends every row again; or run resync, if no push of this version has sent anything"
        problems.append(Problem(f"topic {task.object}", found, expected, next_step))
    return problems


def policy_problems(topic: Topic, task: SinkTask) -> list[Problem]:
    """Why rows get lost that this topic has."""
    if topic.cleanup_policy == "compact" or not options_of(task, KafkaOptions).compacted or task.mode is Mode.CHANGELOG:
        return []
    found, expected = f"cleanup.policy={topic.cleanup_policy}", "compact: else rows that do not change get lost"
    repair = f", then dbt-reverse-etl reconcile --select {task.sync} --repair: rows may have expired"
    next_step = f"kafka-configs --alter --topic {task.object} --add-config cleanup.policy=compact{'' if task.first else repair}; or set options.compacted: false, if that is meant"
    return [Problem(f"topic {task.object}", found, expected, next_step)]
