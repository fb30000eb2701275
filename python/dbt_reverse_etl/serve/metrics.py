"""What Prometheus may read: the runs as they are, and what happened since the process began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dbt_reverse_etl.serve.position import UNSETTLED, Position, State

_PREFIX = "dbt_reverse_etl"
M = TypeVar("M", Counter, Gauge, Summary)


def counts(position: Position, jobs: Sequence[int]) -> dict[str, int]:
    """How many runs of these jobs wait, how many for the time of their end, and how many failed or were overtaken, with syncs that no later run has pushed."""
    states = [run.state for run in position.runs.values() if run.job_id in jobs]
    return {state.value: states.count(state) for state in (State.WAITING, State.UNTIMED, *UNSETTLED)}


class Metrics(Collector):
    """Of one process, with a registry of their own.

    Args:
        position: asked when somebody reads.
    """

    def __init__(self, position: Callable[[], Position], jobs: Sequence[int]) -> None:
        self._position, self._jobs, self._registry = position, jobs, CollectorRegistry()
        self._registry.register(self)
        self.webhooks = self._made(Counter, "webhooks", "Webhooks by what became of them", "result")
        self.answers = self._made(Counter, "api_answers", "Answers of dbt Cloud's API by HTTP status", "status")
        self.pushes = self._made(Counter, "pushes", "Pushes by exit code; negative for a signal", "exit_code")
        self.seconds = self._made(Summary, "push_seconds", "Duration of pushes")
        looked = "When dbt Cloud last listed the finished runs of a job"
        self.looked = self._made(Gauge, "last_look_timestamp_seconds", looked, "job_id")
        for job_id in jobs:
            self.looked.labels(str(job_id))  # 0 until then

    def _made(self, kind: type[M], name: str, text: str, *labels: str) -> M:
        return kind(f"{_PREFIX}_{name}", text, labels, registry=self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What the position says."""
        position = self._position()
        runs = GaugeMetricFamily(f"{_PREFIX}_runs", "Runs of dbt Cloud by state", labels=["state"])
        for state, count in counts(position, self._jobs).items():
            runs.add_metric([state], count)
        done_at, text = f"{_PREFIX}_last_done_timestamp_seconds", "When a run of a job was last pushed"
        done = GaugeMetricFamily(done_at, text, labels=["job_id"])
        for job_id in self._jobs:
            done.add_metric([str(job_id)], position.done_at.get(job_id, 0))
        of_these = [run for run in position.runs.values() if run.job_id in self._jobs]
        not_pushed = [run.finished_at for run in of_these if run.state in (State.WAITING, State.OVERTAKEN)]
        age = max(0.0, time.time() - min(not_pushed)) if not_pushed else 0.0
        oldest, text = "oldest_open_run_seconds", "Since the oldest run that waits or was overtaken has ended"
        yield from (runs, done, GaugeMetricFamily(f"{_PREFIX}_{oldest}", text, age))

    def page(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)
