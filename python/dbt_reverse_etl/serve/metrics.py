"""What Prometheus may read: the runs as they are, and what happened since the process began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dbt_reverse_etl.serve.position import Position, State

_PREFIX = "dbt_reverse_etl"


def counts(position: Position, jobs: Sequence[int]) -> dict[str, int]:
    """How many runs of these jobs wait, and how many have failed and no later one has ended."""
    states = [run.state for run in position.runs.values() if run.job_id in jobs]
    return {state.value: states.count(state) for state in (State.WAITING, State.FAILED)}


class Metrics(Collector):
    """Of one process, with a registry of their own.

    Args:
        position: asked when somebody reads.
    """

    def __init__(self, position: Callable[[], Position], jobs: Sequence[int]) -> None:
        self._position, self._jobs, self._registry = position, jobs, CollectorRegistry()
        self._registry.register(self)
        self._webhooks = self._counter("webhooks", "Webhooks by what became of them", "result")
        self._answers = self._counter("api_answers", "Answers of dbt Cloud's API by HTTP status", "status")
        self._pushes = self._counter("pushes", "Pushes by exit code; negative for a signal", "exit_code")
        self._seconds = Summary(f"{_PREFIX}_push_seconds", "Duration of pushes", registry=self._registry)
        looked, text = (
            f"{_PREFIX}_last_look_timestamp_seconds",
            "When dbt Cloud last told of the finished runs of a job",
        )
        self._looked = Gauge(looked, text, ["job_id"], registry=self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What the position says."""
        position = self._position()
        runs = GaugeMetricFamily(f"{_PREFIX}_runs", "Runs of dbt Cloud by state", labels=["state"])
        for state, count in counts(position, self._jobs).items():
            runs.add_metric([state], count)
        name = f"{_PREFIX}_last_done_timestamp_seconds"
        done = GaugeMetricFamily(name, "When the last run of a job was done", labels=["job_id"])
        for job_id, at in position.done_at.items():
            done.add_metric([str(job_id)], at)
        waiting = position.waiting(self._jobs)
        age = max(0.0, time.time() - waiting[0].finished_at) if waiting else 0.0
        name = f"{_PREFIX}_oldest_open_run_seconds"
        yield from (runs, done, GaugeMetricFamily(name, "Since the oldest run that waits has ended", age))

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, [label], registry=self._registry)

    def webhook(self, result: str) -> None:
        """One webhook came."""
        self._webhooks.labels(result).inc()

    def answered(self, status: str) -> None:
        """The API answered, or did not."""
        self._answers.labels(status).inc()

    def looked(self, job_id: int) -> None:
        """The API told of the runs of a job."""
        self._looked.labels(str(job_id)).set_to_current_time()

    def pushed(self, code: int, seconds: float) -> None:
        """A push has ended."""
        self._pushes.labels(str(code)).inc()
        self._seconds.observe(seconds)

    def page(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)
