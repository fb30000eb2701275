"""The queue of runs to push: one SQLite file that survives a kill between any two statements, and a loss of power."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

_BUSY_SECONDS = 2  # who sends a webhook waits for no more than ten

_SCHEMA = """
create table if not exists event (
    event_id text primary key,
    run_id integer not null,
    received_at real not null
) without rowid;
create table if not exists run (
    run_id integer primary key,
    job_id integer not null,
    state text not null check (state in ('queued', 'fetching', 'pushing', 'done', 'failed')),
    fetches integer not null default 0,
    pushes integer not null default 0,
    queued_at real not null,
    due_at real not null,
    ended_at real,
    exit_code integer,
    reason text not null default ''
);
create index if not exists run_state on run (state, due_at);
create table if not exists job (
    job_id integer primary key,
    known_from real not null,
    known_until real not null
) without rowid;
"""


class RunState(str, Enum):
    """Where a run is on its way."""

    QUEUED = "queued"
    FETCHING = "fetching"
    PUSHING = "pushing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class QueuedRun:
    """A run of dbt Cloud that is to be pushed, or was.

    Attributes:
        fetches, pushes: how often each was begun.
        queued_at: seconds since the epoch.
        exit_code: of the last push; None before the first, negative for a signal.
    """

    run_id: int
    job_id: int
    state: RunState
    fetches: int
    pushes: int
    queued_at: float
    exit_code: int | None
    reason: str


class Queue:
    """Safe for threads of one process; each method is one transaction that is on the disk when it returns.

    Raises:
        sqlite3.Error: the file cannot be read or written.
    """

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def add(self, event_id: str, run_id: int, job_id: int, now: float) -> bool:
        """Keep an event and its run; False if either is known."""
        with self._transaction() as database:
            new = database.execute("insert or ignore into event values (?, ?, ?)", (event_id, run_id, now)).rowcount
            return bool(new and _add_run(database, run_id, job_id, now))

    def add_finished(self, job_id: int, run_ids: Sequence[int], known_until: float, now: float) -> int:
        """Keep the runs of a job that the API named, and until when its runs are known. Returns how many are new."""
        known = "insert into job values (?, ?, ?) on conflict (job_id) do update set known_until = excluded.known_until"
        with self._transaction() as database:
            added = sum(_add_run(database, run_id, job_id, now) for run_id in run_ids)
            database.execute(known, (job_id, known_until, known_until))
            return added

    def known(self, job_id: int) -> tuple[float, float] | None:
        """From and until when the finished runs of a job are known, in seconds since the epoch; None before the first."""
        rows = self._read("select known_from, known_until from job where job_id = ?", job_id)
        return (rows[0][0], rows[0][1]) if rows else None

    def recover(self, now: float) -> int:
        """Queue again what a process that is gone had in hand. Returns how many."""
        sql = "update run set state = 'queued', due_at = ? where state in ('fetching', 'pushing')"
        with self._transaction() as database:
            return database.execute(sql, (now,)).rowcount

    def take(self, now: float) -> QueuedRun | None:
        """The first run that is due, from now on `fetching`."""
        first = "select min(run_id) from run where state = 'queued' and due_at <= ?"
        with self._transaction() as database:
            run_id = database.execute(first, (now,)).fetchone()[0]
            database.execute("update run set state = 'fetching', fetches = fetches + 1 where run_id = ?", (run_id,))
            rows = database.execute("select * from run where run_id = ?", (run_id,)).fetchall()
        return _run(rows[0]) if rows else None

    def pushing(self, run_id: int) -> None:
        """The artifacts are there, and the push begins."""
        self._update(run_id, "state = 'pushing', fetches = 0, pushes = pushes + 1")

    def later(self, run_id: int, due_at: float, reason: str, exit_code: int | None = None) -> None:
        """Queue it again for another time."""
        self._update(
            run_id,
            "state = 'queued', due_at = ?, reason = ?, exit_code = coalesce(?, exit_code)",
            due_at,
            reason,
            exit_code,
        )

    def put_back(self, run_id: int, now: float) -> None:
        """Queue it again as if it had not been begun: we were told to stop."""
        counts = "fetches = max(fetches - 1, 0), pushes = pushes - (state = 'pushing')"
        self._update(run_id, f"{counts}, state = 'queued', due_at = ?", now)

    def end(self, run_id: int, state: RunState, now: float, reason: str = "", exit_code: int | None = None) -> None:
        """It is done, or has failed for good."""
        self._update(
            run_id,
            "state = ?, ended_at = ?, reason = ?, exit_code = coalesce(?, exit_code)",
            state.value,
            now,
            reason,
            exit_code,
        )

    def newer(self, run: QueuedRun) -> QueuedRun | None:
        """The newest run of the same job that waits behind this one."""
        sql = "select * from run where job_id = ? and run_id > ? and state = 'queued' order by run_id desc limit 1"
        rows = self._read(sql, run.job_id, run.run_id)
        return _run(rows[0]) if rows else None

    def failed_before(self, run_id: int, job_id: int) -> list[int]:
        """Older runs of a job that failed."""
        sql = "select run_id from run where job_id = ? and run_id < ? and state = 'failed'"
        return [row[0] for row in self._read(sql, job_id, run_id)]

    def runs(self) -> list[QueuedRun]:
        """All that are kept, by run id."""
        return [_run(row) for row in self._read("select * from run order by run_id")]

    def counts(self) -> dict[RunState, int]:
        """How many runs are in each state."""
        found: dict[str, int] = dict(self._read("select state, count(*) from run group by state"))
        return {state: found.get(state.value, 0) for state in RunState}

    def oldest_open(self) -> float | None:
        """Since when the oldest run waits that is neither done nor failed, in seconds since the epoch."""
        return self._number("select min(queued_at) from run where state not in ('done', 'failed')")

    def next_due(self) -> float | None:
        """When the next queued run is due, in seconds since the epoch."""
        return self._number("select min(due_at) from run where state = 'queued'")

    def last_done(self) -> dict[int, float]:
        """By job, when its last run was done, in seconds since the epoch."""
        return dict(self._read("select job_id, max(ended_at) from run where state = 'done' group by job_id"))

    def prune(self, before: float) -> list[int]:
        """Forget what ended before; returns the ids of the runs."""
        ended = "select run_id from run where state in ('done', 'failed') and ended_at < ?"
        with self._transaction() as database:
            gone = [row[0] for row in database.execute(ended, (before,)).fetchall()]
            database.executemany("delete from run where run_id = ?", [(run_id,) for run_id in gone])
            database.execute("delete from event where received_at < ?", (before,))
        return gone

    def _update(self, run_id: int, assignments: str, *values: object) -> None:
        with self._transaction() as database:
            database.execute(f"update run set {assignments} where run_id = ?", (*values, run_id))  # noqa: S608  (constants of this file)

    def _number(self, sql: str, *values: object) -> float | None:
        found: float | None = self._read(sql, *values)[0][0]
        return found

    def _read(self, sql: str, *values: object) -> list[Any]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")


def _add_run(database: sqlite3.Connection, run_id: int, job_id: int, now: float) -> int:
    sql = "insert or ignore into run (run_id, job_id, state, queued_at, due_at) values (?, ?, 'queued', ?, ?)"
    return database.execute(sql, (run_id, job_id, now, now)).rowcount


def _run(row: sqlite3.Row) -> QueuedRun:
    found = {field.name: row[field.name] for field in fields(QueuedRun)}
    return QueuedRun(**{**found, "state": RunState(found["state"])})
