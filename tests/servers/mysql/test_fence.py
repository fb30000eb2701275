"""Several tasks of one run, an older and a newer run, and commits whose end nobody has seen, on a real MariaDB server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.database import CLAIMS
from dbt_reverse_etl.sinks.sql.mysql.session import run
from dbt_reverse_etl.testing import deliver, opened, person
from tests.support.servers.mysql import Database
from tests.support.servers.proxy import Proxy
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN
TASKS = 4


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TASKS) as pool:
        yield pool


def test_a_task_opens_and_delivers_while_another_one_of_its_run_is_in_the_middle_of_a_batch(
    mysql_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(mysql_db.sink(), a_task()) as sink:
        with mysql_db.held_up():
            busy = threads.submit(deliver, sink, a_task(), people(person(1)))
            mysql_db.wait_for_waiters()
            with opened(mysql_db.sink(lock_timeout=1), a_task()) as other:
                assert deliver(other, a_task(), people(person(2))) == [DELIVERED]
                assert not busy.done()
        assert busy.result() == [DELIVERED]


@contextmanager
def commits_held_back(db: Database) -> Iterator[None]:
    """Transactions go on, but no COMMIT ends."""
    with closing(db.server.root()) as other:
        run(other, "BACKUP STAGE START")
        run(other, "BACKUP STAGE BLOCK_COMMIT")
        yield
        run(other, "BACKUP STAGE END")


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_lost_commit_that_the_server_has_not_carried_out_yet_is_unknown(
    mysql_db: Database, mysql_proxy: Proxy
) -> None:
    with opened(mysql_db.behind(mysql_proxy.port, lock_timeout=1), a_task()) as sink:
        run(
            sink._connected(), "SET SESSION lock_wait_timeout = 100"
        )  # of the COMMIT, not of the question for the record
        with commits_held_back(mysql_db):
            mysql_proxy.cut_and_stall_at(mysql_db.COMMIT, lambda: None)
            assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        wait_for_rows(mysql_db, 1)


@pytest.mark.guarantee("MySQL and MariaDB")
def test_the_record_answers_for_a_lost_commit_as_soon_as_the_server_has_carried_it_out(
    mysql_db: Database, mysql_proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    with opened(mysql_db.behind(mysql_proxy.port, lock_timeout=20), a_task()) as sink:
        with commits_held_back(mysql_db):
            mysql_proxy.cut_and_stall_at(mysql_db.COMMIT, lambda: None)
            answer = threads.submit(deliver, sink, a_task(), people(person(1)))
            mysql_db.wait_for_waiters()
        assert answer.result(20) == [DELIVERED]
        assert deliver(sink, a_task(), people(person(2))) == [DELIVERED]
    assert mysql_db.rows(f"SELECT count(*) FROM {CLAIMS}") == [(2,)], "asking leaves nothing behind"


def wait_for_rows(db: Database, number: int) -> None:
    for _ in range(500):
        if db.rows(f"SELECT count(*) FROM people, {CLAIMS}") == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} rows should be there")
