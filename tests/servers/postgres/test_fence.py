"""Several tasks of one run, an older and a newer run, and commits whose end nobody has seen, on a real Postgres server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.sql.database import CLAIMS
from dbt_reverse_etl.sinks.sql.postgres.sink import PostgresSink
from dbt_reverse_etl.testing import batch_of, deliver, opened, person
from tests.support.servers.postgres import Database, error_answer
from tests.support.servers.proxy import Proxy
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN
TASKS = 4


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TASKS) as pool:
        yield pool


def test_a_task_opens_while_another_one_of_its_run_is_in_the_middle_of_a_batch(
    people_db: Database, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), a_task()) as one:
        with people_db.held_up():
            busy = threads.submit(deliver, one, a_task(), people(person(1)))
            people_db.wait_for_waiters(1)
            with opened(people_db.sink(lock_timeout=0.3), a_task()):
                assert not busy.done()
        assert busy.result() == [DELIVERED]


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


@pytest.mark.guarantee("Postgres")
def test_a_lost_commit_that_the_server_has_not_carried_out_yet_is_unknown(people_db: Database, proxy: Proxy) -> None:
    with opened(people_db.behind(proxy.port, lock_timeout=0.5), a_task()) as sink:
        backend = Backend(sink)
        proxy.cut_and_stall_at(people_db.COMMIT, backend.stop)
        try:
            assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        finally:
            backend.go_on()
        wait_for_rows(people_db, 1)


def test_the_record_answers_for_a_lost_commit_as_soon_as_the_server_has_carried_it_out(
    people_db: Database, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.behind(proxy.port), a_task()) as sink:
        backend = Backend(sink)
        proxy.cut_and_stall_at(people_db.COMMIT, backend.stop)
        try:
            answer = threads.submit(deliver, sink, a_task(), people(person(1)))
            people_db.wait_for_waiters(1)
        finally:
            backend.go_on()
        assert answer.result() == [DELIVERED]
        assert deliver(sink, a_task(), people(person(2))) == [DELIVERED]
    assert people_db.rows(f"SELECT count(*) FROM {CLAIMS}") == [(2,)], "asking leaves nothing behind"


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(
    ("state", "severity"), [("08006", "ERROR"), ("08P01", "ERROR"), ("40003", "ERROR"), ("57P01", "FATAL")]
)
def test_an_error_at_the_commit_that_leaves_its_end_open_is_settled_by_the_record(
    state: str, severity: str, people_db: Database, proxy: Proxy
) -> None:
    with opened(people_db.behind(proxy.port), a_task()) as sink:
        proxy.answer_at(people_db.COMMIT, error_answer(state, severity))
        assert sink.deliver(batch_of(a_task(), people(person(1)))) == Delivery()
        assert proxy.cuts == 1
