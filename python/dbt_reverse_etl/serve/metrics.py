"""What Prometheus may read: the queue as it is, and what happened since the process began."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Summary, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dbt_reverse_etl.serve.queue import Queue

_PREFIX = "dbt_reverse_etl"


class _QueueCollector(Collector):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        runs = GaugeMetricFamily(f"{_PREFIX}_runs", "Runs of dbt Cloud by state", labels=["state"])
        for state, count in self._queue.counts().items():
            runs.add_metric([state.value], count)
        yield runs
        oldest = self._queue.oldest_open()
        waiting = 0.0 if oldest is None else max(0.0, time.time() - oldest)
        yield GaugeMetricFamily(f"{_PREFIX}_oldest_open_run_seconds", "Age of the oldest run not ended", waiting)
        done = GaugeMetricFamily(
            f"{_PREFIX}_last_done_timestamp_seconds", "When the last run of a job was done", labels=["job_id"]
        )
        for job_id, ended_at in self._queue.last_done().items():
            done.add_metric([str(job_id)], ended_at)
        yield done


class Metrics:
    """Counters of one process, with a registry of their own."""

    def __init__(self, queue: Queue) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_QueueCollector(queue))
        self._webhooks = self._counter("webhooks", "Webhooks by what became of them", "result")
        self._answers = self._counter("api_answers", "Answers of dbt Cloud's API by HTTP status", "status")
        self._pushes = self._counter("pushes", "Pushes by exit code; negative for a signal", "exit_code")
        self._seconds = Summary(f"{_PREFIX}_push_seconds", "Duration of pushes", registry=self._registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, [label], registry=self._registry)

    def webhook(self, result: str) -> None:
        """One webhook came."""
        self._webhooks.labels(result).inc()

    def answered(self, status: str) -> None:
        """The API answered, or did not."""
        self._answers.labels(status).inc()

    def pushed(self, code: int, seconds: float) -> None:
        """A push has ended."""
        self._pushes.labels(str(code)).inc()
        self._seconds.observe(seconds)

    def page(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)
