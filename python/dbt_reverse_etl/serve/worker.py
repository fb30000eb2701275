"""Takes runs from the queue: fetch the artifacts, push them, note what became of them. One at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dbt_reverse_etl.base.errors import ExitCode, unexpected
from dbt_reverse_etl.delivery.fault_points import Step as FaultPoint
from dbt_reverse_etl.delivery.fault_points import no_step
from dbt_reverse_etl.delivery.gate import jitter
from dbt_reverse_etl.serve.cloud import CloudError
from dbt_reverse_etl.serve.fetching import Fetcher, Unfit
from dbt_reverse_etl.serve.metrics import Metrics
from dbt_reverse_etl.serve.pushing import PushProcess, Stopped
from dbt_reverse_etl.serve.queue import Queue, QueuedRun, RunState
from dbt_reverse_etl.serve.reports import Reports

Say = Callable[[str, str], None]  # text, level: info, warn, error

KEPT = 30 * 86400.0  # seconds for which ended runs and their events are remembered
# A person has to act: another try says the same.
_FINAL = {
    ExitCode.USAGE: "the configuration is wrong",
    ExitCode.BLOCKED: "blocked by a guard or a failed test",
    ExitCode.OTHER_CHANGELOG: "the positions do not say what the destination holds, or stand under a former name",
}


@dataclass(frozen=True)
class Patience:
    """When to try again, and when to give up: a fetch only when both its tries and its time are spent.

    Attributes:
        first, most: seconds; the wait doubles from one to the other, with jitter.
        fetches, fetch_seconds: of what may pass by itself.
        final_fetches: of what probably will not, such as a missing file.
        pushes: tries of a push.
    """

    first: float = 5
    most: float = 600
    fetches: int = 10
    fetch_seconds: float = 6 * 3600
    final_fetches: int = 5
    pushes: int = 4

    def wait(self, tries: int, asked: float | None = None) -> float:
        """Seconds before the next try; at least as many as were asked for, up to an hour."""
        longest = min(self.most, self.first * 2.0 ** min(tries, 30))
        return max(longest * (0.5 + jitter() / 2), min(asked or 0.0, 3600.0))

    def is_spent(self, run: QueuedRun, now: float, *, final: bool) -> bool:
        """Whether a fetch is given up."""
        if final:
            return run.fetches >= self.final_fetches
        return run.fetches >= self.fetches and now - run.queued_at >= self.fetch_seconds


@dataclass
class Worker:
    """The only one that works on its queue.

    Attributes:
        targets: the dbt target of each job.
        push_arguments: from the folder of artifacts and the target to the arguments of the push.
        step: called between any two steps, so that a test may kill the process there.
    """

    queue: Queue
    fetcher: Fetcher
    process: PushProcess
    targets: Mapping[int, str]
    push_arguments: Callable[[Path, str], Sequence[str]]
    metrics: Metrics
    reports: Reports
    say: Say
    stopping: threading.Event
    wake: threading.Event
    patience: Patience = field(default_factory=Patience)
    step: FaultPoint = no_step
    worst: int = 0

    def run(self) -> None:
        """Work until `stopping` is set."""
        while not self.stopping.is_set():
            try:
                self.drain()
                self.reports.make_those_asked_for()
                self._rest()
            except Exception as error:  # of the queue: its disk may be full for a while
                self.say(str(unexpected(error, "the queue")), "error")
                self.stopping.wait(self.patience.first)

    def drain(self) -> None:
        """Work until nothing is due."""
        self.queue.recover(time.time())
        while not self.stopping.is_set():
            run = self.queue.take(time.time())
            if run is None:
                return
            self.step("taken")
            try:
                self._work(run)
            except Exception as error:
                problem = unexpected(error, f"run {run.run_id}")
                self.say(str(problem), "error")
                self._fetch_again(run, CloudError(problem.found))

    def _rest(self) -> None:
        for run_id in self.queue.prune(time.time() - KEPT):
            self.fetcher.remove(run_id)
        due = self.queue.next_due()
        seconds = 60.0 if due is None else min(60.0, max(0.0, due - time.time()))
        self.wake.wait(seconds)
        self.wake.clear()

    def _work(self, run: QueuedRun) -> None:
        target = self.targets.get(run.job_id)
        if target is None:
            self._end(run, RunState.FAILED, "its job is no longer listed")
            return
        if run.fetches > self.patience.fetches and self.patience.is_spent(run, time.time(), final=False):
            self._end(run, RunState.FAILED, f"given up: {run.reason or 'each try ended with our own process'}")
            return
        try:
            folders = self.fetcher.fetch(run, target)
        except Unfit as reason:
            self._end(run, RunState.FAILED if reason.is_failure else RunState.DONE, str(reason))
        except CloudError as error:
            self._fetch_again(run, error)
        else:
            self.reports.keep(folders[-1], target)
            self.step("fetched")
            self._push(run, target, folders)

    def _fetch_again(self, run: QueuedRun, error: CloudError) -> None:
        now = time.time()
        if self.stopping.is_set():
            self.queue.put_back(run.run_id, now)
        elif self.patience.is_spent(run, now, final=error.final):
            self._end(run, RunState.FAILED, f"given up: {error.reason}")
        else:
            self.worst = max(self.worst, ExitCode.FAILED)
            wait = self.patience.wait(run.fetches, error.retry_after)
            self.queue.later(run.run_id, now + wait, error.reason)
            self.say(f"run {run.run_id}: {error.reason}; again in {wait:.0f} s", "warn")

    def _push(self, run: QueuedRun, target: str, folders: Sequence[Path]) -> None:
        self.queue.pushing(run.run_id)
        self.step("pushing")
        self.say(f"run {run.run_id} of job {run.job_id}: pushing to {target}", "info")
        try:
            codes = [self._pushed(folder, target) for folder in folders]
        except Stopped:
            self.queue.put_back(run.run_id, time.time())
            return
        except OSError as error:
            self._push_again(run, ExitCode.FAILED, f"the push cannot be started ({type(error).__name__})")
            return
        self.step("pushed")
        # A signal says more than a code: what it cut short is done again.
        self._judge(run, min(codes) if min(codes) < 0 else max(codes))

    def _pushed(self, folder: Path, target: str) -> int:
        began = time.monotonic()
        code = self.process.run(self.push_arguments(folder, target))
        self.metrics.pushed(code, time.monotonic() - began)
        return code

    def _judge(self, run: QueuedRun, code: int) -> None:
        if code == ExitCode.OK:
            self._end(run, RunState.DONE, "", code)
        elif self.stopping.is_set():
            self.queue.put_back(run.run_id, time.time())
        elif code in _FINAL:
            self._end(run, RunState.FAILED, f"exit code {code}: {_FINAL[ExitCode(code)]}", code)
        else:
            self._push_again(run, code, f"signal {-code}" if code < 0 else f"exit code {code}")

    def _push_again(self, run: QueuedRun, code: int, reason: str) -> None:
        if run.pushes + 1 >= self.patience.pushes:
            self._end(run, RunState.FAILED, f"given up: {reason}", code)
            return
        wait = self.patience.wait(run.pushes)
        self.worst = max(self.worst, code, ExitCode.FAILED)
        self.queue.later(run.run_id, time.time() + wait, reason, code)
        self.say(f"run {run.run_id}: the push ended with {reason}; again in {wait:.0f} s", "warn")

    def _end(self, run: QueuedRun, state: RunState, reason: str, code: int | None = None) -> None:
        self.queue.end(run.run_id, state, time.time(), reason, code)
        self.step("ended")
        failed = state is RunState.FAILED
        # A person may want to push a failed run with an override: its artifacts stay until a newer run has ended.
        gone = self.queue.failed_before(run.run_id, run.job_id)
        for run_id in gone if failed else [*gone, run.run_id]:
            self.fetcher.remove(run_id)
        if failed:
            self.worst = max(self.worst, code or 0, ExitCode.FAILED)
        level = "error" if failed else "warn" if reason else "info"
        self.say(f"run {run.run_id}: {state.value}{f', {reason}' if reason else ''}", level)
