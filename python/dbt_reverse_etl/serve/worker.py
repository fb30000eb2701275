"""Asks dbt Cloud what has finished, fetches it and pushes it: one run at a time, and again what did not go well.

There is no queue: dbt Cloud lists a run until it is settled here, and a push of what was pushed before sends nothing. So a
kill at any step is made good by the next look.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from dbt_reverse_etl.base.errors import ExitCode, unexpected, worst
from dbt_reverse_etl.delivery.gate import jitter
from dbt_reverse_etl.serve.artifacts import Artifacts
from dbt_reverse_etl.serve.cloud import MOST_PAGES, PAGE, Cloud, CloudError
from dbt_reverse_etl.serve.metrics import Metrics
from dbt_reverse_etl.serve.position import PositionFile, Run, State, Trouble
from dbt_reverse_etl.serve.pushing import NOT_STARTED, PushProcess
from dbt_reverse_etl.serve.reports import Reports
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.steps import Unfit
from dbt_reverse_etl.serve.surroundings import Surroundings

_LOOKS = 5  # for the run of a webhook, which may be listed a moment later
_OVERTAKEN = (
    "a later run had captured more before this push began, so not all of it was pushed: "
    "it arrives with the push of a later run of the job that succeeds"
)
_MEANINGS = {
    ExitCode.USAGE: ", the configuration is wrong",
    ExitCode.BLOCKED: ", blocked by a guard or a failed test",
    ExitCode.BUSY: ", another run holds the sync",
    ExitCode.OTHER_CHANGELOG: ", the positions do not say what the destination holds, or stand under a former name",
    NOT_STARTED: ", it cannot be started: see `push_command`",
}


class Worker:
    """The only one that works in its folder.

    Attributes:
        trouble: by job, why the last look had no answer.
        broken: the type of an error of our own with which the last turn ended, or an empty text.
        worst: the worst exit code so far.
    """

    def __init__(self, settings: ServeSettings, around: Surroundings, folder: Path, umask: int) -> None:
        self.targets, self._interval = settings.targets, settings.poll_interval
        self._around, self._say, self._patience = around, around.say, around.patience
        self.stopping, self._wake = threading.Event(), threading.Event()
        self.position = PositionFile(folder / "position.json")
        self.metrics = Metrics(lambda: self.position.value, [*self.targets])
        self._cloud = Cloud(settings.api(), lambda status: self.metrics.answers.labels(status).inc())
        self._artifacts = Artifacts(self._cloud, folder / "runs", around.step)
        self.process = PushProcess(_command(settings), folder / "push.lock", self.stopping, umask)
        self.reports = Reports(folder / "reports", self.process, around, self._wake.set)
        self.trouble: dict[int, str] = {}
        self.broken, self.worst = "", 0
        self._heard: dict[int, int] = {}  # run of a webhook -> looks that are left to find it
        self._pause = 0.0  # seconds that the API asked for in this turn
        self._misses = 0  # turns in a row that left something to try again
        self._remove_artifacts()

    def run(self) -> None:
        """Take turns until `stop`."""
        while not self.stopping.is_set():
            self._wake.clear()
            self.turn()
            usual = self._interval * (0.9 + jitter() / 5)
            self._wake.wait(self._patience.wait(self._misses, self._pause, usual) if self._misses else usual)

    def turn(self) -> None:
        """Look, try once each run that waits, and make the reports that were asked for."""
        self._pause = 0.0
        try:
            left = not self._look()
            for run in self.position.value.waiting(self.targets):
                if self.stopping.is_set():
                    return
                left |= not self._is_settled(run)
            self.reports.make_those_asked_for()
            self.broken = ""
        except Exception as error:  # of the disk, which may be full for a while
            left, self.broken = True, type(error).__name__
            self._say(str(unexpected(error, "serve")), "error")
        if left:
            self.worst = worst((self.worst, ExitCode.FAILED))
        self._misses = self._misses + 1 if left else 0

    def hear(self, run_id: int) -> None:
        """A webhook named a run: look now."""
        self._heard[run_id] = _LOOKS
        self._wake.set()

    def stop(self) -> None:
        """Take nothing new, and end a running push."""
        self.stopping.set()
        self._wake.set()

    def _look(self) -> bool:
        """Whether each job's runs are known, with those that webhooks named."""
        heard = list(self._heard)
        answered = [self._is_answered(job_id) for job_id in self.targets]
        missing = [run_id for run_id in heard if self._is_missing(run_id)]
        return all(answered) and not missing

    def _is_answered(self, job_id: int) -> bool:
        before = self.position.value
        try:
            listed = self._cloud.finished(job_id, before.since.get(job_id))
        except CloudError as error:
            self.trouble[job_id], self._pause = error.reason, max(self._pause, error.pause)
            self._say(f"job {job_id}: {error.reason}", "warn")
            return False
        self.trouble.pop(job_id, None)
        self.metrics.looked.labels(str(job_id)).set_to_current_time()
        if len(listed) >= PAGE * MOST_PAGES:
            self._say(f"job {job_id}: only the newest {len(listed)} of its finished runs are looked at", "warn")
        after = before.found(job_id, listed, time.time())
        self.position.put(after)
        self._around.step("looked")
        if new := len(after.runs) - len(before.runs):
            self._say(f"job {job_id}: {new} new {'run' if new == 1 else 'runs'}", "info")
        return True

    def _is_missing(self, run_id: int) -> bool:
        left = self._heard.pop(run_id) - 1
        if run_id in self.position.value.runs:
            return False
        if left:
            self._heard[run_id] = left
        else:
            self._say(f"run {run_id}: a webhook named it, and dbt Cloud does not list it", "warn")
        return bool(left)

    def _is_settled(self, run: Run) -> bool:
        """Try a run once. Whether there is nothing more to do for it."""
        is_there = bool(self._artifacts.of(run))
        if is_there and run.trouble is Trouble.FETCH:  # we were killed just after the fetch
            run = run.fetched(tries=0)
        stage = Trouble.PUSH if is_there else Trouble.FETCH
        if self._patience.is_spent(replace(run, trouble=run.trouble or stage), time.time()):
            return self._ended(run, State.FAILED, f"given up: {run.reason or 'each try ended with our own process'}")
        run = self._put(replace(run, tries=run.tries + 1))
        self._around.step("taken")
        try:
            if not is_there:
                newest = self.position.value.waiting([run.job_id])[-1]
                self._artifacts.fetch(run, self.targets[run.job_id], newest)
                run, stage = self._put(run.fetched(tries=1)), Trouble.PUSH
                self._around.step("fetched")
            return self._judged(run, self._push(run, self.targets[run.job_id]))
        except Unfit as unfit:
            return self._ended(run, State.FAILED if unfit.is_failure else State.DONE, str(unfit))
        except CloudError as error:
            self._pause = max(self._pause, error.pause)
            return self._left(run, Trouble.FETCH, error.reason)
        except Exception as error:  # others must not wait for it
            problem = unexpected(error, f"run {run.run_id}")
            self._say(str(problem), "error")
            return self._left(run, stage, problem.found)

    def _push(self, run: Run, target: str) -> int:
        """The worst exit code; a signal says more than a code: what it cut short is done again."""
        folders = self._artifacts.of(run)
        self.reports.keep(folders[-1], target)
        self._around.step("pushing")
        self._say(f"run {run.run_id} of job {run.job_id}: pushing to {target}", "info")
        codes: list[int] = []
        for folder in folders:
            began = time.monotonic()
            codes.append(self.process.run(self._around.arguments("push", folder, target, "--if-due")))
            self.metrics.pushes.labels(str(codes[-1])).inc()
            self.metrics.seconds.observe(time.monotonic() - began)
        self._around.step("pushed")
        return min(codes) if min(codes) < 0 else worst(codes)

    def _judged(self, run: Run, code: int) -> bool:
        if code == ExitCode.OK:
            return self._ended(run, State.DONE, is_pushed=True)
        self.worst = worst((self.worst, code))
        if code == ExitCode.OVERTAKEN:
            return self._ended(run, State.OVERTAKEN, _OVERTAKEN)
        reason = f"signal {-code}" if code < 0 else f"exit code {code}{_MEANINGS.get(code, '')}"
        if code == ExitCode.USAGE:
            return self._ended(run, State.FAILED, reason)
        # The worst code may hide that of another sync, which another try helps.
        return self._left(run, Trouble.BUSY if code == ExitCode.BUSY else Trouble.PUSH, reason)

    def _left(self, run: Run, trouble: Trouble, reason: str) -> bool:
        """Leave it for another try, if its limit allows one. While stopping, this try does not count."""
        if self.stopping.is_set():
            self._put(replace(run, tries=run.tries - 1))
            return False
        run = run.failed(trouble, reason, time.time())
        if self._patience.is_spent(run, time.time()):
            return self._ended(run, State.FAILED, f"given up: {reason}")
        self._put(run)
        self._say(f"run {run.run_id}: {reason}; it is tried again", "warn")
        return False

    def _ended(self, run: Run, state: State, reason: str = "", *, is_pushed: bool = False) -> bool:
        run = replace(run, state=state, reason=reason)
        self.position.put(self.position.value.ended(run, time.time(), is_pushed=is_pushed))
        self._around.step("ended")
        self._remove_artifacts()
        failed = state is State.FAILED
        self.worst = worst((self.worst, ExitCode.FAILED)) if failed else self.worst
        level = "error" if failed else "warn" if reason else "info"
        self._say(f"run {run.run_id}: {state.value}{f', {reason}' if reason else ''}", level)
        return True

    def _remove_artifacts(self) -> None:
        """Those that nobody needs. A person may want to push with an override: those of each job's newest failed run stay."""
        runs = sorted(self.position.value.runs.values(), key=lambda run: run.finished_at)
        needed = {run.run_id for run in runs if run.state is State.WAITING}
        failed = {run.job_id: run.run_id for run in runs if run.state is State.FAILED and self._artifacts.of(run)}
        self._artifacts.keep_only({*needed, *failed.values()})

    def _put(self, run: Run) -> Run:
        self.position.put(self.position.value.updated(run))
        return run


def _command(settings: ServeSettings) -> list[str]:
    """The command of this very environment, unless another is set."""
    beside = Path(sys.executable).with_name("dbt-reverse-etl")
    own = str(beside) if beside.is_file() else shutil.which("dbt-reverse-etl") or "dbt-reverse-etl"
    return settings.push_command or [own]
