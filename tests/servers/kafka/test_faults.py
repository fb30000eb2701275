"""What a broker that is killed or frozen, and a process that is killed, leave in the topic."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.engine import Engine, WaveResult
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.kafka import sink as kafka_sink
from dbt_reverse_etl.sinks.kafka.outcome import Reports
from dbt_reverse_etl.testing import Change, Row, deliver, next_run, opened, outcomes, person
from tests.support import ROOT
from tests.support.outcomes import DELIVERED, UNKNOWN
from tests.support.servers.kafka import a_batch, a_task, broker, delete_topic, read, settings, sink, table

ROWS = 25_000  # two batches of the engine


def people(first: int, last: int, name: str = "Ada") -> list[Change]:
    return [("insert", person(number, name)) for number in range(first, last)]


def ids(topic: str) -> set[int]:
    return {row["id"] for row in table(read(topic)).values()}


@dataclass(frozen=True)
class Outage:
    """What became of one batch, and of a wave of the engine, that were under way when the broker was killed."""

    topic: str
    answer: list[Outcome]
    closed_in: float
    wave_topic: str
    wave: WaveResult
    requests: int


class Interrupted:
    """A producer; half-way through a batch, when all so far is answered, something happens."""

    def __init__(self, producer: Producer | None, happens: Callable[[], None]) -> None:
        self._producer, self._happens, self._taken = producer, happens, 0

    def produce(self, *message: Any, **more: Any) -> None:
        self._taken += 1
        if self._taken == ROWS // 2:
            assert self._producer is not None
            self._producer.flush(30)
            self._happens()
        self._producer.produce(*message, **more)  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.fixture(scope="module")
def outage() -> Iterator[Outage]:
    """Kill the broker in the middle of a batch, when a wave of the engine has just begun; bring it back after the batch."""
    rows, tasks, books = people(0, ROWS, "x" * 300), (a_task(), a_task()), list[Reports]()
    with (
        pytest.MonkeyPatch.context() as patch,
        opened(sink(timeout=3), tasks[0]) as one,
        opened(sink(timeout=3), tasks[1]) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        patch.setattr(kafka_sink, "Reports", lambda: books.append(Reports()) or books[-1])
        patch.setattr(other, "deliver", Mock(wraps=other.deliver))
        policy = Policy(retries=Retries(first=0.1, cap=1, attempts=100, share=10))
        engine = Engine(other, tasks[1], policy, Clock(), lambda: True)
        waves = list[Future[WaveResult]]()

        def kill() -> None:
            waves.append(pool.submit(engine.deliver_wave, WavePart("claim-1", a_batch(tasks[1], rows).rows)))
            while len(books) < 3:  # of two batches, of which the later one has hardly begun
                time.sleep(0.001)
            broker().kill()

        one._producer = Interrupted(one._producer, kill)  # type: ignore[assignment]
        try:
            answer = outcomes(one.deliver(a_batch(tasks[0], rows)), ROWS)
            started = time.monotonic()
            one.close()
            closed_in = time.monotonic() - started
        finally:
            broker().start()
        wave = waves[0].result(60)
        yield Outage(tasks[0].object, answer, closed_in, tasks[1].object, wave, other.deliver.call_count)


@pytest.mark.guarantee("Kafka")
def test_of_a_broker_that_is_killed_while_it_answers_nothing_is_claimed_that_is_not_in_the_topic(
    outage: Outage,
) -> None:
    assert outage.answer == [DELIVERED] * (ROWS // 2 - 1) + [UNKNOWN] * (ROWS - ROWS // 2 + 1)
    claimed = {number for number, outcome in enumerate(outage.answer) if outcome is DELIVERED}
    assert claimed - ids(outage.topic) == set()


def test_a_sink_closes_at_once_where_the_broker_is_gone(outage: Outage) -> None:
    assert outage.closed_in < 2


@pytest.mark.guarantee("Kafka")
def test_the_engine_sends_what_an_outage_left_unknown_until_all_is_there(outage: Outage) -> None:
    assert (outage.wave.failures, outage.wave.stop) == ({}, None)
    assert outage.requests > 2  # of two batches
    assert ids(outage.wave_topic) == set(range(ROWS))


@pytest.mark.guarantee("Kafka")
def test_a_message_without_an_answer_in_time_is_unknown_and_a_later_value_stands_behind_it() -> None:
    task = a_task()
    with opened(sink(timeout=2), task) as kafka:
        assert deliver(kafka, task, people(0, 50)) == [DELIVERED] * 50
        broker().freeze()
        try:
            delivery = kafka.deliver(a_batch(task, people(0, 50, "late")))
        finally:
            broker().thaw()
        assert outcomes(delivery, 50) == [UNKNOWN] * 50
        assert {result.reason for result in delivery.results} == {"no answer in time (_MSG_TIMED_OUT)"}
        assert deliver(kafka, task, people(0, 50, "new")) == [DELIVERED] * 50
    time.sleep(0.5)  # what came late would be there
    assert {row["name"] for row in table(read(task.object)).values()} == {"new"}


VICTIM = """
    import json, os, signal, sys
    from dbt_reverse_etl.sinks.base import Mode, SinkTask
    from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
    from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings
    from dbt_reverse_etl.testing import PEOPLE, batch_of, deliver, person

    step, topic, settings = sys.argv[1], sys.argv[2], json.load(sys.stdin)

    class Dying:
        '''The producer, and the end of the process at one step of the second batch.'''

        def __init__(self, producer):
            self.producer, self.taken, self.asked = producer, 0, 0

        def produce(self, *message, **more):
            self.taken += 1
            self.die("produce", self.taken == 700)
            self.producer.produce(*message, **more)

        def flush(self, seconds):
            self.die("flush", self.taken > 200)
            return self.producer.flush(seconds)

        def purge(self):
            self.die("close", True)

        def die(self, at, now):
            if at == step and now:
                os.kill(os.getpid(), signal.SIGKILL)

    task = SinkTask("5c", "people", 1, topic, Mode.MIRROR, ("id",), PEOPLE, options=KafkaOptions(partitions=3))
    sink = KafkaSink(KafkaSettings.model_validate(settings))
    sink.open(task)
    sink._producer = Dying(sink._producer)
    for first, last in ((0, 200), (200, 1200)):
        answer = deliver(sink, task, [("insert", person(number, "old")) for number in range(first, last)])
        print(*(first + row for row, outcome in enumerate(answer) if outcome == "delivered"), flush=True)
    sink.close()
"""


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(("step", "claims"), [("produce", 200), ("flush", 200), ("close", 1200)])
def test_a_process_killed_there_has_claimed_nothing_that_is_not_in_the_topic_and_the_next_one_makes_it_right(
    step: str, claims: int
) -> None:
    task = a_task()
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(VICTIM), step, task.object],
        input=json.dumps(settings()), text=True, capture_output=True, check=False, cwd=ROOT / "python",
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    claimed = set(map(int, died.stdout.split()))
    assert len(claimed) == claims
    assert claimed - ids(task.object) == set()
    with opened(sink(), task) as kafka:  # all of it is in doubt
        assert set(deliver(kafka, task, people(0, 1200, "new"))) == {DELIVERED}
    rows: list[Row] = sorted(table(read(task.object)).values(), key=lambda row: int(row["id"]))
    assert rows == [person(number, "new") for number in range(1200)]


@pytest.mark.guarantee("Kafka")
def test_a_topic_that_is_deleted_during_a_push_is_not_created_again_and_no_later_row_counts_as_delivered() -> None:
    task = a_task()
    with opened(sink(timeout=3), task) as kafka:
        assert deliver(kafka, task, people(0, 1)) == [DELIVERED]
        delete_topic(task.object)
        time.sleep(1)  # the broker tells it to no one
        assert deliver(kafka, task, people(1, 2)) == [UNKNOWN]
        assert kafka.missing(next_run(task)) == f"no topic {task.object}"
