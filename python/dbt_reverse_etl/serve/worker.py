"""Asks dbt Cloud what has finished, fetches it and pushes it: one run at a time, and again what did not go well.

There is no queue: dbt Cloud lists a run until it is settled here, and a push of what was pushed before sends nothing. So a
kill at any step is made good by the next look.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dbt_reverse_etl.base.errors import ExitCode, unexpected, worst
from dbt_reverse_etl.serve.artifacts import Artifacts, ledger_of, syncs_of
from dbt_reverse_etl.serve.cloud import Cloud, CloudError
from dbt_reverse_etl.serve.looks import Looks
from dbt_reverse_etl.serve.metrics import Metrics, counts
from dbt_reverse_etl.serve.pace import API, Pace
from dbt_reverse_etl.serve.position import LONGEST, PositionFile, Run, State, Trouble
from dbt_reverse_etl.serve.pushing import NOT_STARTED, PushProcess
from dbt_reverse_etl.serve.reports import Reports
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.steps import Unfit
from dbt_reverse_etl.serve.surroundings import Surroundings

_OVERTAKEN = (
    "a later run had captured more before this push began, so not all of it was pushed: "
    "it arrives with the push of a later successful run of its models"
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
        broken: the type of an error of our own with which the last turn ended, or an empty text.
        worst: the worst exit code so far.
    """

    def __init__(self, settings: ServeSettings, around: Surroundings, folder: Path, umask: int) -> None:
        self.targets, self._interval = settings.targets, settings.poll_interval
        self._around, self._say, self._patience = around, around.say, around.patience
        self.stopping, self._wake = threading.Event(), threading.Event()
        self.position = PositionFile(folder / "position.json")
        self.metrics = Metrics(lambda: self.position.value, [*self.targets])
        cloud = Cloud(settings.api(), lambda status: self.metrics.answers.labels(status).inc())
        self._pace = Pace(around.clock)
        self.looks = Looks(settings, around, cloud, self.position, self.metrics, self._pace)
        self._artifacts = Artifacts(cloud, folder / "runs", around.step)
        self.process = PushProcess(_command(settings), folder / "push.lock", self.stopping, umask)
        self.reports = Reports(folder / "reports", self.process, around, self._wake.set)
        self.broken, self.worst = "", 0
        self._breaks = 0  # turns in a row that ended with an error of our own
        self._overtaken: set[int] = set()  # runs, by this process
        self._remove_artifacts()

    def run(self) -> None:
        """Take turns until `stop`."""
        while not self.stopping.is_set():
            self._wake.clear()
            self.turn()
            self._wake.wait(self._left_until_next())

    def turn(self) -> None:
        """Of looks and of runs that wait, try once those whose time has come; and make the reports that were asked for."""
        try:
            self.looks.look()
            self._forget_old()  # after the look, which may have found what they wait for
            for run in self._waiting():
                if self.stopping.is_set():
                    return
                if self._pace.is_due(*self._rests(run)):
                    self._try(run)
            self.reports.make_those_asked_for()
            self.broken, self._breaks = "", 0
        except Exception as error:  # of the disk, which may be full for a while
            self.broken, self._breaks = type(error).__name__, self._breaks + 1
            self._say(str(unexpected(error, "serve")), "error")
        open_runs = counts(self.position.value, [*self.targets])
        if self.broken or not self.looks.is_settled or open_runs[State.WAITING] or open_runs[State.UNTIMED]:
            self.worst = worst((self.worst, ExitCode.FAILED))
        states = [run.state for run in self.position.value.runs.values() if run.run_id in self._overtaken]
        if State.OVERTAKEN in states:  # else a later run of this turn was pushed
            self.worst = worst((self.worst, ExitCode.OVERTAKEN))

    def hear(self, job_id: int, run_id: int) -> None:
        """A webhook named a run."""
        self.looks.hear(job_id, run_id)
        self._wake.set()

    def stop(self) -> None:
        """Take nothing new, and end a running push."""
        self.stopping.set()
        self._wake.set()

    def _left_until_next(self) -> float:
        if self.broken:
            return self._patience.wait(self._breaks, most=self._interval)
        return min([self.looks.left(), *(self._pace.left(*self._rests(run)) for run in self._waiting())])

    def _waiting(self) -> list[Run]:
        return self.position.value.waiting(self.targets)

    def _rests(self, run: Run) -> list[str]:
        """What must be over before a run is tried again; after the API has asked for a pause, no run that needs it loses a try."""
        return [_name(run)] if self._artifacts.of(run) else [_name(run), API]

    def _try(self, run: Run) -> None:
        """Try a run once."""
        is_there = bool(self._artifacts.of(run))
        # We were killed just after the fetch; or an earlier build did not note with which trouble its tries ended.
        if is_there and (run.trouble is Trouble.FETCH or (run.reason and run.trouble is Trouble.NONE)):
            run = run.fetched(tries=0)
        stage = Trouble.PUSH if is_there else Trouble.FETCH
        tried = replace(run, trouble=run.trouble or stage)
        if self._patience.is_spent(tried, time.time()):
            self._ended(tried, State.FAILED, f"not tried again: {run.reason or 'each try ended with our own process'}")
            return
        run = self._put(replace(run, tries=run.tries + 1))
        self.broken = ""  # the disk takes writes again, and a push takes long
        self._around.step("taken")
        try:
            if not is_there:
                newest = self.position.value.waiting([run.job_id])[-1]
                self._artifacts.fetch(run, self.targets[run.job_id], newest)
                run, stage = self._put(run.fetched(tries=1)), Trouble.PUSH
                self._around.step("fetched")
            self._judge(run, self._push(run, self.targets[run.job_id]))
        except Unfit as unfit:
            self._artifacts.remove(run)
            run = replace(run, trouble=Trouble.NONE)  # nothing of it may go to these destinations
            self._ended(run, State.FAILED if unfit.is_failure else State.DONE, str(unfit))
        except CloudError as error:
            self._left(run, Trouble.FETCH, error.reason, error.pause)
            if error.is_limit:
                self._pace.rest(API, self._patience.wait(run.tries, error.pause, self._interval))
        except Exception as error:  # others must not wait for it
            problem = unexpected(error, f"run {run.run_id}")
            self._say(str(problem), "error")
            self._left(run, stage, problem.found)

    def _push(self, run: Run, target: str) -> int:
        """The worst exit code; a signal says more than a code: what it cut short is done again."""
        folders = self._artifacts.of(run)
        self._check_ledger(folders, target)
        self.reports.keep(folders[-1], target)
        self._around.step("pushing")
        self._say(f"run {run.run_id} of job {run.job_id}: pushing to {target}", "info")
        codes: list[int] = []
        for folder in folders:
            with self.metrics.seconds.time():
                codes.append(self.process.run(self._around.arguments("push", folder, target, "--if-due")))
            self.metrics.pushes.labels(str(codes[-1])).inc()
        self._around.step("pushed")
        return min(codes) if min(codes) < 0 else worst(codes)

    def _check_ledger(self, folders: Sequence[Path], target: str) -> None:
        """Positions of another ledger say nothing of what the destinations hold: an empty one would send them all rows of other tables.

        Raises:
            Unfit: a manifest names another ledger than earlier runs for this target.
        """
        for ledger in filter(None, map(ledger_of, folders)):
            position = self.position.value
            known = position.ledgers.get(target, ledger)
            self.position.put(replace(position, ledgers={**position.ledgers, target: known}))
            if ledger != known:
                found, expected = f"the ledger {ledger}", f"{known}, as in earlier runs for target {target}"
                next_step = (
                    "list only jobs that write to it; if it has moved, stop this, remove position.json, and start again"
                )
                raise Unfit(f"found {found}; expected {expected}. Next: {next_step}", is_failure=True)

    def _judge(self, run: Run, code: int) -> None:
        if code != ExitCode.OVERTAKEN:
            self.worst = worst((self.worst, code))
        reason = f"signal {-code}" if code < 0 else f"exit code {code}{_MEANINGS.get(code, '')}"
        if code == ExitCode.OK:
            self._ended(run, State.DONE, is_pushed=True)
        elif code == ExitCode.OVERTAKEN:
            self._overtaken.add(run.run_id)
            self._ended(run, State.OVERTAKEN, _OVERTAKEN)
        else:  # the worst code may hide that of another sync, which another try helps
            self._left(run, Trouble.BUSY if code == ExitCode.BUSY else Trouble.PUSH, reason)

    def _left(self, run: Run, trouble: Trouble, reason: str, pause: float = 0.0) -> None:
        """Leave it for another try, if its limit allows one. While stopping, this try does not count."""
        if self.stopping.is_set():
            self._put(replace(run, tries=run.tries - 1))
            return
        run = run.failed(trouble, reason, time.time())
        if self._patience.is_spent(run, time.time()):
            self._ended(run, State.FAILED, f"not tried again: {reason}")
            return
        self._pace.rest(_name(run), self._patience.wait(run.tries, pause, self._interval))
        self._put(run)
        self._say(f"run {run.run_id}: {reason}; it is tried again", "warn")

    def _ended(self, run: Run, state: State, reason: str = "", *, is_pushed: bool = False) -> None:
        self._pace.end(_name(run))
        due, others = syncs_of(self._artifacts.of(run))
        run = replace(run, state=state, reason=reason, syncs=due)
        jobs = [job for job, target in self.targets.items() if target == self.targets[run.job_id]]
        position = self.position.value.ended(run, time.time(), is_pushed=is_pushed, others=others, jobs=jobs)
        self.position.put(position)
        self._around.step("ended")
        self._remove_artifacts()
        failed = state is State.FAILED
        self.worst = worst((self.worst, ExitCode.FAILED)) if failed else self.worst
        level = "error" if failed else "warn" if reason else "info"
        self._say(f"run {run.run_id}: {state.value}{f', {reason}' if reason else ''}", level)

    def _forget_old(self) -> None:
        for run in self.position.value.too_old(time.time()):
            if run.state is State.UNTIMED and not self.looks.has_answered(run.job_id):
                continue  # its time may be there by now
            pushed = f"a later push of {', '.join(sorted(run.syncs)) or 'its syncs'}"
            expected = "the time of its end from dbt Cloud" if run.state is State.UNTIMED else pushed
            days = round(LONGEST[run.state] / 86400)
            self._put(replace(run, state=State.GIVEN_UP if run.state is State.UNTIMED else State.DONE))
            self._remove_artifacts()
            self.worst = worst((self.worst, ExitCode.FAILED))
            self._say(
                f"run {run.run_id} of job {run.job_id}: found {run.state.value} for {days} day{'s' * (days > 1)}; expected {expected}. "
                "Nobody waits for it any more. Next: if rows are missing, run `dbt-reverse-etl push`",
                "warn",
            )

    def _remove_artifacts(self) -> None:
        """Those that nobody needs. A person may want to push with an override: those of each job's newest failed run stay."""
        runs = sorted(self.position.value.runs.values(), key=lambda run: run.finished_at)
        needed = {run.run_id for run in runs if run.state is State.WAITING}
        failed = {run.job_id: run.run_id for run in runs if run.state is State.FAILED and self._artifacts.of(run)}
        self._artifacts.keep_only({*needed, *failed.values()})

    def _put(self, run: Run) -> Run:
        self.position.put(self.position.value.updated(run))
        return run


def _name(run: Run) -> str:
    return f"run {run.run_id}"


def _command(settings: ServeSettings) -> list[str]:
    """The command of this very environment, unless another is set."""
    beside = Path(sys.executable).with_name("dbt-reverse-etl")
    own = str(beside) if beside.is_file() else shutil.which("dbt-reverse-etl") or "dbt-reverse-etl"
    return settings.push_command or [own]
