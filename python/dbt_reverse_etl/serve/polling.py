"""Asks the API which runs ended with success since it was asked last; needs no inbound port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from dbt_reverse_etl.base.errors import unexpected
from dbt_reverse_etl.delivery.gate import jitter
from dbt_reverse_etl.serve.cloud import PAGE, Cloud, CloudError, FinishedRun
from dbt_reverse_etl.serve.queue import Queue

_OVERLAP = 3600.0  # seconds: a run may be listed some time after it ended; one that is known is not queued twice
_MOST_PAGES = 20


class Poller:
    """Puts finished runs of the listed jobs into the queue."""

    def __init__(self, cloud: Cloud, queue: Queue, jobs: Iterable[int], say: Callable[[str, str], None]) -> None:
        self._cloud, self._queue, self._jobs, self._say = cloud, queue, list(jobs), say

    def run(self, interval: float, stopping: threading.Event, found: Callable[[], None]) -> None:
        """Ask until `stopping` is set; `found` is called when there are new runs."""
        while not stopping.is_set():
            try:
                pause = self.look()
                found()
            except Exception as error:  # of the queue: its disk may be full for a while
                self._say(str(unexpected(error, "poll")), "error")
                pause = 0.0
            stopping.wait(max(interval * (0.9 + jitter() / 5), pause or 0.0))

    def look(self) -> float | None:
        """Ask once for each job. None if all went well, otherwise seconds that the API asked to wait, or 0."""
        pause: float | None = None
        for job_id in self._jobs:
            try:
                self._look(job_id)
            except CloudError as error:
                self._say(f"job {job_id}: {error.reason}", "warn")
                pause = max(pause or 0.0, min(error.retry_after or 0.0, 3600.0))
        return pause

    def _look(self, job_id: int) -> None:
        known = self._queue.known(job_id)
        if known is None:
            runs, until = self._newest(job_id), 0.0
        else:
            first, until = known
            runs = self._since(job_id, max(first, until - _OVERLAP))
        if not runs:
            return
        until = max(until, *(run.finished_at for run in runs))
        added = self._queue.add_finished(job_id, [run.run_id for run in runs], until, time.time())
        if added:
            self._say(f"job {job_id}: {added} new runs", "info")

    def _newest(self, job_id: int) -> list[FinishedRun]:
        """Asked for the first time: the newest run stands for all before it."""
        return self._cloud.finished(job_id, 0)[:1]

    def _since(self, job_id: int, since: float) -> list[FinishedRun]:
        runs: list[FinishedRun] = []
        for page in range(_MOST_PAGES):
            found = self._cloud.finished(job_id, page * PAGE)
            runs += [run for run in found if run.finished_at >= since]
            if len(found) < PAGE or found[-1].finished_at < since:
                break
        return runs
