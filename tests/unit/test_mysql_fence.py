"""Several tasks of one run, an older and a newer run, and commits whose end nobody has seen, on a real MariaDB server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from dbt_reverse_etl.errors import DestinationError
from dbt_reverse_etl.outcome import Outcome
from dbt_reverse_etl.sinks.database import CLAIMS
from dbt_reverse_etl.sinks.mysql import MysqlSink
from dbt_reverse_etl.sinks.mysql_session import run
from dbt_reverse_etl.sinks.mysql_settings import MysqlSettings
from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.unit.mysql_server import Database, wait_for_a_lock
from tests.unit.proxy import Proxy
from tests.unit.sqlite_world import a_task, people

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN
TASKS = 4


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TASKS) as pool:
        yield pool


@contextmanager
def row_locked(db: Database, number: int) -> Iterator[None]:
    """Nobody can write this row, so that a batch with it stays in the middle of its transaction."""
    with closing(db.owner()) as other:
        run(other, "START TRANSACTION")
        run(other, f"INSERT INTO people (id) VALUES ({number})")
        yield
        run(other, "ROLLBACK")


@pytest.mark.parametrize("stored", [None, 1, 2], ids=["no fence", "an older fence", "the own fence"])
def test_tasks_of_one_run_that_open_at_once_never_hinder_each_other(
    stored: int | None, mysql_db: Database, threads: ThreadPoolExecutor
) -> None:
    if stored is not None:
        with opened(mysql_db.sink(), a_task(fence=stored)):
            pass
    task = a_task(fence=2)

    def work(number: int) -> list[Outcome]:
        said: list[Outcome] = []
        for turn in range(8):
            with opened(mysql_db.sink(), task) as sink:
                said += deliver(sink, task, people(person(8 * number + turn)))
        return said

    assert [set(said) for said in threads.map(work, range(TASKS))] == [{DELIVERED}] * TASKS
    assert mysql_db.rows("SELECT count(*) FROM people") == [(8 * TASKS,)]


def test_a_task_opens_and_delivers_while_another_one_of_its_run_is_in_the_middle_of_a_batch(
    mysql_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(mysql_db.sink(), a_task()) as sink:
        with row_locked(mysql_db, 1):
            busy = threads.submit(deliver, sink, a_task(), people(person(1)))
            wait_for_a_lock(mysql_db)
            with opened(mysql_db.sink(lock_timeout=1), a_task()) as other:
                assert deliver(other, a_task(), people(person(2))) == [DELIVERED]
                assert not busy.done()
        assert busy.result() == [DELIVERED]


def test_an_older_run_is_refused_at_once_even_while_the_newer_one_delivers(
    mysql_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(mysql_db.sink(), a_task(fence=7)) as newer:
        with row_locked(mysql_db, 1):
            busy = threads.submit(deliver, newer, a_task(), people(person(1)))
            wait_for_a_lock(mysql_db)
            with pytest.raises(DestinationError, match=r"another run holds this sync \(fence 7\)"):
                mysql_db.sink(lock_timeout=1).open(a_task(fence=6))
        assert busy.result() == [DELIVERED]


def test_a_newer_run_waits_for_the_batch_of_an_older_one_whose_late_writes_overwrite_nothing(
    mysql_db: Database, threads: ThreadPoolExecutor
) -> None:
    task = a_task()
    with opened(mysql_db.sink(), task) as old, closing(mysql_db.sink()) as new:
        with row_locked(mysql_db, 1):
            late = threads.submit(deliver, old, task, people(person(1, "old")))
            wait_for_a_lock(mysql_db)
            opening = threads.submit(new.open, next_run(task))
            wait_for_a_lock(mysql_db, 2)
            assert not opening.done()
        assert late.result() == [DELIVERED]
        opening.result()
        assert new.settle(["claim-1"]) == {"claim-1": True}, "what the older run did is known to the newer one"
        assert deliver(new, task, [("update", person(1, "new"))]) == [DELIVERED]
        assert deliver(old, task, [("update", person(1, "old"))]) == [FATAL]
        with pytest.raises(DestinationError, match="another run"):
            mysql_db.sink().open(task)
    assert mysql_db.rows("SELECT name FROM people") == [("new",)]


def proxied(db: Database, proxy: Proxy, lock_timeout: int) -> MysqlSink:
    return MysqlSink(MysqlSettings.model_validate(db.over_tcp(proxy.port, lock_timeout=lock_timeout)))


@contextmanager
def commits_held_back(db: Database) -> Iterator[None]:
    """Transactions go on, but no COMMIT ends."""
    with closing(db.server.root()) as other:
        run(other, "BACKUP STAGE START")
        run(other, "BACKUP STAGE BLOCK_COMMIT")
        yield
        run(other, "BACKUP STAGE END")


def test_a_lost_commit_that_the_server_has_not_carried_out_yet_is_unknown(
    mysql_db: Database, mysql_proxy: Proxy
) -> None:
    with opened(proxied(mysql_db, mysql_proxy, lock_timeout=1), a_task()) as sink:
        run(
            sink._connected(), "SET SESSION lock_wait_timeout = 100"
        )  # of the COMMIT, not of the question for the record
        with commits_held_back(mysql_db):
            mysql_proxy.cut_and_stall_at("\3COMMIT", lambda: None)
            assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        wait_for_rows(mysql_db, 1)


def test_the_record_answers_for_a_lost_commit_as_soon_as_the_server_has_carried_it_out(
    mysql_db: Database, mysql_proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    with opened(proxied(mysql_db, mysql_proxy, lock_timeout=20), a_task()) as sink:
        with commits_held_back(mysql_db):
            mysql_proxy.cut_and_stall_at("\3COMMIT", lambda: None)
            answer = threads.submit(deliver, sink, a_task(), people(person(1)))
            wait_for_a_lock(mysql_db)
        assert answer.result(20) == [DELIVERED]
        assert deliver(sink, a_task(), people(person(2))) == [DELIVERED]
    assert mysql_db.rows(f"SELECT count(*) FROM {CLAIMS}") == [(2,)], "asking leaves nothing behind"


def wait_for_rows(db: Database, number: int) -> None:
    for _ in range(500):
        if db.rows(f"SELECT count(*) FROM people, {CLAIMS}") == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} rows should be there")
