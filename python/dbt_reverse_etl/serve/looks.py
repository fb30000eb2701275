"""Asks dbt Cloud which runs of each job have finished: every `poll_interval`, and soon after a webhook."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence, Set

from dbt_reverse_etl.delivery.gate import jitter
from dbt_reverse_etl.serve.cloud import MOST_PAGES, PAGE, Cloud, CloudError, FinishedRun, ends
from dbt_reverse_etl.serve.metrics import Metrics
from dbt_reverse_etl.serve.pace import API, Pace
from dbt_reverse_etl.serve.position import PositionFile, State
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.surroundings import Surroundings

_LOOKS = 5  # for the run of a webhook, which may be listed a moment later


class Looks:
    """The looks at all jobs; one that fails is repeated after a rest of its job, which no webhook cuts short.

    Attributes:
        trouble: by job, why the last look failed.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (what a look touches)
        self,
        settings: ServeSettings,
        around: Surroundings,
        cloud: Cloud,
        position: PositionFile,
        metrics: Metrics,
        pace: Pace,
    ) -> None:
        self._around, self._cloud, self._position, self._metrics, self._pace = around, cloud, position, metrics, pace
        self._jobs, self._interval = [*settings.targets], settings.poll_interval
        self.trouble: dict[int, str] = {}
        self._heard: dict[int, dict[int, int]] = {job_id: {} for job_id in self._jobs}  # run -> looks left to find it
        self._hurried: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._known: set[int] = set()
        self._answered: set[int] = set()

    @property
    def is_settled(self) -> bool:
        """Whether the runs of each job are known, with those that webhooks named."""
        return not self.trouble and not any(self._heard.values())

    def hear(self, job_id: int, run_id: int) -> None:
        """A webhook named a run: look at its job, as soon as that may be done."""
        self._heard[job_id][run_id] = _LOOKS
        self._hurried.add(job_id)

    def look(self) -> None:
        """Look at each job whose time has come."""
        self._answered.clear()
        for job_id in self._jobs:
            if not self._left(job_id):
                self._hurried.discard(job_id)
                self._pace.end(_usual(job_id))  # a look that an error of our own ends is due again
                self._look_at(job_id)

    def has_answered(self, job_id: int) -> bool:
        """Whether the last look at a job went well: just now, or the next is not due yet. At one that is not listed nobody looks."""
        return job_id not in self._jobs or job_id in self._answered or not self._pace.is_due(_usual(job_id))

    def left(self) -> float:
        """Seconds until the next look."""
        return min(map(self._left, self._jobs))

    def _left(self, job_id: int) -> float:
        names = [API, _failed(job_id)] if job_id in self._hurried else [API, _failed(job_id), _usual(job_id)]
        return self._pace.left(*names)

    def _look_at(self, job_id: int) -> None:
        try:
            listed = self._cloud.finished(job_id, self._position.value.since.get(job_id))
            if listed:  # a job that is gone may still have some
                self._note(job_id, listed)
            if not listed or job_id not in self._known:
                self._cloud.check_job(job_id)
            if not listed:  # only of a job that is there: its first run is still to come
                self._note(job_id, listed)
        except CloudError as error:
            self._rest(job_id, error)
            return
        self._known.add(job_id)
        self._answered.add(job_id)
        self.trouble.pop(job_id, None)
        self._failures.pop(job_id, None)
        self._metrics.looked.labels(str(job_id)).set_to_current_time()
        self._seek(job_id, {one.run_id for one in listed})

    def _note(self, job_id: int, listed: Sequence[FinishedRun]) -> None:
        before = self._position.value
        since = before.since.get(job_id, 0.0)
        if len(listed) >= PAGE * MOST_PAGES and min(ends(listed), default=since) >= since:
            self._around.say(f"job {job_id}: only the newest {len(listed)} of its finished runs are looked at", "warn")
        after = before.found(job_id, listed, time.time())
        self._position.put(after)
        self._around.step("looked")
        if new := len(after.waiting([job_id])) - len(before.waiting([job_id])):
            self._around.say(f"job {job_id}: {new} new {'run' if new == 1 else 'runs'}", "info")

    def _rest(self, job_id: int, error: CloudError) -> None:
        self.trouble[job_id] = error.reason
        self._failures[job_id] += 1
        seconds = self._around.patience.wait(self._failures[job_id], error.pause, self._interval)
        self._pace.rest(_failed(job_id), seconds)
        if error.is_limit:
            self._pace.rest(API, seconds)
        self._around.say(f"job {job_id}: {error.reason}", "warn")

    def _seek(self, job_id: int, listed: Set[int]) -> None:
        """Set the time of the next look: soon, while a run that a webhook named is not listed, or not with the time of its end.

        One that is listed, and is not in the position, is settled.
        """
        heard = self._heard[job_id]
        for run_id, looks in [*heard.items()]:
            run = self._position.value.runs.get(run_id)
            if run_id in listed if run is None else run.state is not State.UNTIMED:
                del heard[run_id]
            elif looks == 1:
                del heard[run_id]
                if run is None:
                    self._around.say(
                        f"run {run_id}: a webhook named it, and dbt Cloud does not list it among the newest runs of the job",
                        "warn",
                    )
            else:
                heard[run_id] = looks - 1
        looked = _LOOKS - max([*heard.values()], default=0)
        soon = self._around.patience.wait(looked, most=self._interval)
        self._pace.rest(_usual(job_id), soon if heard else self._interval * (0.9 + jitter() / 5))


def _usual(job_id: int) -> str:
    return f"the usual look at job {job_id}"


def _failed(job_id: int) -> str:
    return f"job {job_id}, whose look failed"
