"""Several tasks of one run, an older and a newer run, and commits whose end nobody has seen, on a real Postgres server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from dbt_reverse_etl.errors import DestinationError
from dbt_reverse_etl.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.database import CLAIMS
from dbt_reverse_etl.sinks.postgres import PostgresSink
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.unit.postgres_server import Database, error_answer
from tests.unit.proxy import Proxy
from tests.unit.sqlite_world import a_task, people

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN
TASKS = 4


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TASKS) as pool:
        yield pool


@contextmanager
def table_locked(people_db: Database) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Nobody can write into `people`, so that a batch stays in the middle of its transaction."""
    with people_db.owner() as other, other.transaction():
        other.execute("LOCK TABLE people IN EXCLUSIVE MODE")
        yield other


def wait_for_waiters(people_db: Database, number: int) -> None:
    """Until so many sessions of the sink's role wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'crm_push' "
        "AND wait_event_type = 'Lock'"
    )
    for _ in range(1000):
        if people_db.rows(query) == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} sessions should wait")


@pytest.mark.parametrize("stored", [None, 1, 2], ids=["no fence", "an older fence", "the own fence"])
def test_tasks_of_one_run_that_open_at_once_never_hinder_each_other(
    stored: int | None, people_db: Database, threads: ThreadPoolExecutor
) -> None:
    if stored is not None:
        with opened(people_db.sink(), a_task(fence=stored)):
            pass
    task = a_task(fence=2)

    def work(number: int) -> list[Outcome]:
        said: list[Outcome] = []
        for turn in range(8):
            with opened(people_db.sink(), task) as sink:
                said += deliver(sink, task, people(person(8 * number + turn)))
        return said

    assert [set(said) for said in threads.map(work, range(TASKS))] == [{DELIVERED}] * TASKS
    assert people_db.rows("SELECT count(*) FROM people") == [(8 * TASKS,)]


def test_a_task_opens_while_another_one_of_its_run_is_in_the_middle_of_a_batch(
    people_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), a_task()) as one:
        with table_locked(people_db):
            busy = threads.submit(deliver, one, a_task(), people(person(1)))
            wait_for_waiters(people_db, 1)
            with opened(people_db.sink(lock_timeout=0.3), a_task()):
                assert not busy.done()
        assert busy.result() == [DELIVERED]


def test_an_older_run_is_refused_at_once_even_while_the_newer_one_delivers(
    people_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), a_task(fence=7)) as newer:
        with table_locked(people_db):
            busy = threads.submit(deliver, newer, a_task(), people(person(1)))
            wait_for_waiters(people_db, 1)
            with pytest.raises(DestinationError, match=r"another run holds this sync \(fence 7\)"):
                people_db.sink(lock_timeout=0.3).open(a_task(fence=6))
        assert busy.result() == [DELIVERED]


def test_a_newer_run_waits_for_the_batch_of_an_older_one_whose_late_writes_overwrite_nothing(
    people_db: Database, threads: ThreadPoolExecutor
) -> None:
    task = a_task()
    with opened(people_db.sink(), task) as old, closing(people_db.sink()) as new:
        with table_locked(people_db):
            late = threads.submit(deliver, old, task, people(person(1, "old")))
            wait_for_waiters(people_db, 1)
            opening = threads.submit(new.open, next_run(task))
            wait_for_waiters(people_db, 2)
            assert not opening.done()
        assert late.result() == [DELIVERED]
        opening.result()
        assert new.settle(["claim-1"]) == {"claim-1": True}, "what the older run did is known to the newer one"
        assert deliver(new, task, [("update", person(1, "new"))]) == [DELIVERED]
        assert deliver(old, task, [("update", person(1, "old"))]) == [FATAL]
        with pytest.raises(DestinationError, match="another run"):
            people_db.sink().open(task)
    assert people_db.rows("SELECT name FROM people") == [("new",)]


class Backend:
    """The server's process for one sink."""

    def __init__(self, sink: PostgresSink) -> None:
        self._pid = sink._connected().info.backend_pid

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


def wait_for_rows(people_db: Database, number: int) -> None:
    for _ in range(1000):
        if people_db.rows(f"SELECT count(*) FROM people, {CLAIMS}") == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} rows should be there")


def test_a_lost_commit_that_the_server_has_not_carried_out_yet_is_unknown(people_db: Database, proxy: Proxy) -> None:
    with opened(people_db.sink(host="127.0.0.1", port=proxy.port, lock_timeout=0.5), a_task()) as sink:
        backend = Backend(sink)
        proxy.cut_and_stall_at("COMMIT\0", backend.stop)
        try:
            assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        finally:
            backend.go_on()
        wait_for_rows(people_db, 1)


def test_the_record_answers_for_a_lost_commit_as_soon_as_the_server_has_carried_it_out(
    people_db: Database, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(host="127.0.0.1", port=proxy.port), a_task()) as sink:
        backend = Backend(sink)
        proxy.cut_and_stall_at("COMMIT\0", backend.stop)
        try:
            answer = threads.submit(deliver, sink, a_task(), people(person(1)))
            wait_for_waiters(people_db, 1)
        finally:
            backend.go_on()
        assert answer.result() == [DELIVERED]
        assert deliver(sink, a_task(), people(person(2))) == [DELIVERED]
    assert people_db.rows(f"SELECT count(*) FROM {CLAIMS}") == [(2,)], "asking leaves nothing behind"


@pytest.mark.parametrize(
    ("state", "severity"), [("08006", "ERROR"), ("08P01", "ERROR"), ("40003", "ERROR"), ("57P01", "FATAL")]
)
def test_an_error_at_the_commit_that_leaves_its_end_open_is_settled_by_the_record(
    state: str, severity: str, people_db: Database, proxy: Proxy
) -> None:
    with opened(people_db.sink(host="127.0.0.1", port=proxy.port), a_task()) as sink:
        proxy.answer_at("COMMIT\0", error_answer(state, severity))
        assert sink.deliver(batch_of(a_task(), people(person(1)))) == Delivery()
        assert proxy.cuts == 1
