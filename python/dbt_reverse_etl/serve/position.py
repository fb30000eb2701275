"""How far each job of dbt Cloud is settled: one small file, replaced as a whole. The runs themselves are asked of its API again.

Times of runs are dbt Cloud's, so that its clock and ours need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import field, replace
from enum import Enum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dbt_reverse_etl.base.durable import put
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.serve.cloud import FinishedRun, ends

OVERLAP = 3600.0  # seconds: a run may be listed some time after it ended


class State(str, Enum):
    """What became of a run.

    Attributes:
        UNTIMED: dbt Cloud has not noted yet when it finished. It waits once that is known.
        GIVEN_UP: dbt Cloud did not note in a day when it finished. Nobody waits for it; if it is
            listed with its end, so among the newest runs of its job, it waits after all. It stays while it is listed, not to be found again.
        OVERTAKEN: not all of it was pushed, because a later run had captured more; only the results of a later run help.
    """

    UNTIMED = "untimed"
    GIVEN_UP = "given up"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    OVERTAKEN = "overtaken"


UNSETTLED = (State.FAILED, State.OVERTAKEN)  # until later runs have pushed its syncs
_MONTH = 30 * 86400.0
# Seconds, by our clock, after which nobody waits any more: a sync may have moved away, or a run stay without a time.
LONGEST = {State.FAILED: _MONTH, State.OVERTAKEN: _MONTH, State.UNTIMED: 86400.0}


class Trouble(str, Enum):
    """What kept a run from its end. Each kind has a limit of its own."""

    NONE = ""
    FETCH = "fetch"
    PUSH = "push"
    BUSY = "busy"


@dataclass(frozen=True)
class Run:
    """A run that ended with success.

    Attributes:
        finished_at: seconds since the epoch; of a run without a time yet, those from which on it may have finished.
        found_at: the same by our clock.
        tries: of what it waits for: first of its artifacts, then of its push.
        reason: why it waits, or what became of it.
        trouble: the kind of failure with which the last tries ended.
        since: when the first of these failed, by our clock.
        other: tries and since of the other trouble of a push: a sync may be busy, and fail, in turn.
        syncs: of a run that has ended, those that it was to push, without those that later runs have pushed; none if it had
            none for its target, or `is_unfetched`.
    """

    run_id: int
    job_id: int
    finished_at: float
    found_at: float
    state: State = State.WAITING
    tries: int = 0
    reason: str = ""
    trouble: Trouble = Trouble.NONE
    since: float = 0.0
    other: tuple[int, float] = (0, 0.0)
    syncs: frozenset[str] = frozenset()

    @property
    def is_unfetched(self) -> bool:
        """Whether its artifacts never came, so that it may have been to push any sync of its project."""
        return self.trouble is Trouble.FETCH and not self.syncs

    def fetched(self, tries: int) -> Run:
        """With its artifacts: tries count from here on for its push."""
        return replace(self, tries=tries, reason="", trouble=Trouble.NONE, since=0.0, other=(0, 0.0))

    def failed(self, trouble: Trouble, reason: str, now: float) -> Run:
        """After a try that failed; tries that failed otherwise do not count for its limit."""
        if trouble is self.trouble:
            return replace(self, reason=reason)
        of_a_push = {trouble, self.trouble} == {Trouble.PUSH, Trouble.BUSY}
        (tries, since), other = (self.other, (self.tries - 1, self.since)) if of_a_push else ((0, 0.0), (0, 0.0))
        return replace(self, reason=reason, trouble=trouble, tries=tries + 1, since=since or now, other=other)


@dataclass(frozen=True)
class Position:
    """What is settled.

    Attributes:
        since: by job: every run that finished before is settled.
        runs: by id: those that finished later; failed and overtaken ones until later runs have pushed their syncs.
        done_at: by job, when a run was last pushed, by our clock.
        ledgers: by target, the ledger of the first run that was pushed for it.
    """

    since: Mapping[int, float] = field(default_factory=dict)
    runs: Mapping[int, Run] = field(default_factory=dict)
    done_at: Mapping[int, float] = field(default_factory=dict)
    ledgers: Mapping[str, str] = field(default_factory=dict)

    def found(self, job_id: int, listed: Iterable[FinishedRun], now: float) -> Position:
        """With the runs that the API has listed. The first list settles all runs before its newest."""
        listed = [*listed]
        ids = {one.run_id for one in listed}
        known = {
            run_id: run
            for run_id, run in self.runs.items()
            if run_id in ids or (run.job_id, run.state) != (job_id, State.GIVEN_UP) or now - run.found_at <= _MONTH
        }
        since = self.since.get(job_id, max(ends(listed), default=0.0))
        untimed = [one.run_id for one in listed if not one.finished_at]
        runs = {**{run_id: Run(run_id, job_id, since, now, State.UNTIMED) for run_id in untimed}, **known}
        finished = {one.run_id: one.finished_at.timestamp() for one in listed if one.finished_at}
        new = {
            run_id: Run(run_id, job_id, at, now)
            for run_id, at in finished.items()
            if (runs[run_id].state in (State.UNTIMED, State.GIVEN_UP) if run_id in runs else at >= since)
        }
        return replace(self, since={**self.since, job_id: since}, runs={**runs, **new})

    def updated(self, run: Run) -> Position:
        """With another state of a run."""
        return replace(self, runs={**self.runs, run.run_id: run})

    def ended(
        self,
        run: Run,
        now: float,
        *,
        is_pushed: bool = False,
        others: Set[str] = frozenset(),
        jobs: Container[int] = (),
    ) -> Position:
        """With a run for which there is nothing more to do; what is settled by that is forgotten.

        Args:
            is_pushed: its push ended well, so that earlier runs with no other syncs need no attention any more.
            others: the syncs of its project that it was not to push. One that is gone from the project is not missed.
            jobs: other jobs with its target, whose syncs it may have pushed, too.
        """
        runs = [
            _without_pushed(one, run, others, jobs)
            if is_pushed and one.state in UNSETTLED and one.finished_at < run.finished_at
            else one
            for one in self.updated(run).runs.values()
        ]
        mine = [one for one in runs if one.job_id == run.job_id]
        waiting = [one.finished_at for one in mine if one.state in (State.WAITING, State.UNTIMED)]
        listed_late = max(one.finished_at for one in mine) - OVERLAP
        since = {**self.since, run.job_id: max(self.since[run.job_id], min([listed_late, *waiting]))}
        kept = {one.run_id: one for one in runs if one.finished_at >= since[one.job_id] or one.state is not State.DONE}
        done = {run.job_id: now} if is_pushed else {}
        return replace(self, since=since, runs=kept, done_at={**self.done_at, **done})

    def too_old(self, now: float) -> list[Run]:
        """Runs that have stayed for too long in a state that something else was to end."""
        return [run for run in self.runs.values() if now - run.found_at > LONGEST.get(run.state, math.inf)]

    def waiting(self, jobs: Container[int]) -> list[Run]:
        """Runs of these jobs that are to be pushed, in the order in which they finished."""
        found = [run for run in self.runs.values() if run.state is State.WAITING and run.job_id in jobs]
        return sorted(found, key=lambda run: (run.finished_at, run.run_id))


def _without_pushed(one: Run, run: Run, others: Set[str], jobs: Container[int]) -> Run:
    """After the push of a later run. One of another job may be of another project: only what it was to push counts."""
    if one.job_id == run.job_id:
        left = frozenset(others) if one.is_unfetched else one.syncs & others
    elif one.job_id in jobs and one.syncs:
        left = one.syncs - run.syncs
    else:
        return one
    return replace(one, syncs=left) if left else replace(one, state=State.DONE)


_FORM = TypeAdapter(Position)


class PositionFile:
    """The position of one service on the disk. `value` is what the file says, whichever moment the process is killed.

    Raises:
        ReverseEtlError: the file is not what this wrote.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self.value = _FORM.validate_json(file.read_bytes()) if file.exists() else Position()
        except ValidationError:
            found, expected = "another content", "what `serve` or `poll` wrote there"
            next_step = "remove it: the newest run of each job is pushed then"
            raise ReverseEtlError(Problem(str(file), found, expected, next_step)) from None

    def put(self, position: Position) -> None:
        """Write it, if it is another one.

        Raises:
            OSError: it cannot be written; the former one holds.
        """
        if position != self.value:
            put(self._file, _FORM.dump_json(position))
            self.value = position
