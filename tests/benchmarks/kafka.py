"""Kafka: rows by us, ready bytes by Kafka's own performance tool and by aiokafka, on the same broker and topic."""

from __future__ import annotations

import pickle
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import SNAPSHOT, Mode, SinkTask
from dbt_reverse_etl.sinks.kafka.messages import Entry, Message
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.sinks.kafka.topic import Cluster
from tests.benchmarks.peers import AIOKAFKA, is_there
from tests.benchmarks.rows import changes, task_of
from tests.benchmarks.turns import fastest, report
from tests.support.servers.kafka_broker import KafkaBroker, tool

TOOL_ROWS, AIOKAFKA_ROWS = 2_000_000, 30_000  # the tool reports every five seconds; aiokafka is slow
LINGER, BATCH = 20, 2**18  # of aiokafka; with its defaults it is slower
_WINDOW = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


def kafka(home: Path, rows: int, rounds: int) -> None:
    """Rows a second, each acknowledged by the broker."""
    (home / "broker").mkdir()
    broker = KafkaBroker(home / "broker")
    try:
        work = Work(home, rows, broker.servers)
        candidates = {"ours": work.by_us, "tool": work.by_tool}
        if is_there(AIOKAFKA):
            candidates["aiokafka"] = work.by_aiokafka
        seconds = fastest(min(rounds, 2), candidates)
    finally:
        broker.kill()
    what, ours = f"{rows} rows into Kafka, rows a second", seconds["ours"]
    report(
        f"{what} / those of ProducerPerformance, ready bytes without key and headers", seconds["tool"] / ours, ">= 0.6"
    )
    if "aiokafka" in seconds:
        report(f"{what} / {AIOKAFKA.name} with {AIOKAFKA_ROWS}, ready bytes", seconds["aiokafka"] / ours, ">= 5")


class Work:
    """So many inserts; every candidate tells the seconds that as many rows would take it."""

    def __init__(self, home: Path, rows: int, servers: str) -> None:
        self._home, self._rows, self._servers = home, rows, servers

    @cached_property
    def table(self) -> pa.Table:
        """The rows as a wave has them."""
        inserts = changes([("insert", range(self._rows))], "x")
        return inserts.append_column(SNAPSHOT, pa.array([1] * self._rows, pa.int64())).combine_chunks()

    @cached_property
    def task(self) -> SinkTask:
        return task_of(self.table, Mode.MIRROR, KafkaOptions(partitions=3))

    @cached_property
    def sink(self) -> KafkaSink:
        """On a topic that is made for it."""
        sink = KafkaSink(KafkaSettings(bootstrap_servers=self._servers, create_object=True))
        sink.open(self.task)
        return sink

    @cached_property
    def messages(self) -> Path:
        """Some of our messages, in the form of aiokafka."""
        entries = self.sink.prepare(self.table.slice(0, AIOKAFKA_ROWS))
        ready = [(key, value, [("event_id", event), *more]) for key, value, event, *more in _whole(entries)]
        (self._home / "messages").write_bytes(pickle.dumps(ready))
        return self._home / "messages"

    @cached_property
    def payloads(self) -> Path:
        """Values of our messages, of which the tool takes one after the other."""
        entries = self.sink.prepare(self.table.slice(0, 20_000))
        (self._home / "payloads").write_bytes(b"\n".join(value or b"" for _, value, *_ in _whole(entries)))
        return self._home / "payloads"

    @cached_property
    def keyless(self) -> str:
        """A topic for the tool, whose messages have no key, which a compacted topic does not take."""
        cluster = Cluster(KafkaSettings(bootstrap_servers=self._servers))
        cluster.reach()
        cluster.make(replace(self.task, object="payloads", mode=Mode.CHANGELOG))
        return "payloads"

    def by_us(self) -> float:
        """The engine and the sink: encoding included, every row acknowledged."""
        engine = Engine(self.sink, self.task, Policy(), Clock(), lambda: True)
        began = time.perf_counter()
        result = engine.deliver_wave(WavePart("claim", self.table))
        taken = time.perf_counter() - began
        assert result.counts.delivered.total == self._rows
        return taken

    def by_tool(self) -> float:
        """Its records a second after the first five seconds, in which Java warms up."""
        properties = [f"bootstrap.servers={self._servers}", "acks=all", "compression.type=lz4"]
        work = ["--topic", self.keyless, "--payload-file", str(self.payloads), "--num-records", str(TOOL_ROWS)]
        done = subprocess.run(
            [*tool("ProducerPerformance"), *work, "--throughput", "-1", "--producer-props", *properties],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        windows = [(int(sent), float(rate)) for sent, rate in _WINDOW.findall(done.stdout)]
        assert windows[-1][0] == TOOL_ROWS, done.stdout
        (sent, rate), (warm, warm_rate) = windows[-1], windows[0] if len(windows) > 1 else (0, 1.0)
        return self._rows * (sent / rate - warm / warm_rate) / (sent - warm)

    def by_aiokafka(self) -> float:
        more = {"linger": LINGER, "batch": BATCH}
        seconds = AIOKAFKA.seconds(messages=str(self.messages), servers=self._servers, topic=self.task.object, **more)
        return self._rows * seconds / AIOKAFKA_ROWS


def _whole(entries: Sequence[Entry]) -> list[Message]:
    return [entry for entry in entries if not isinstance(entry, str)]
