"""Servers of databases: what a lost connection, a lock, a killed server and rival runs leave behind, under the documented rights."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.sql.record import CLAIMS
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.outcomes import DELIVERED, FATAL, RETRYABLE, UNKNOWN
from tests.support.servers import mysql, postgres
from tests.support.servers.proxy import Proxy
from tests.support.sinks.databases import SERVERS
from tests.support.sinks.people import a_task, people

TASK = a_task()
servers = pytest.mark.parametrize("db", SERVERS, indirect=True)


def count(db: Any, table: str = "people") -> int:
    rows: int = db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


def said(delivery: Delivery) -> set[tuple[Outcome, str]]:
    return {(result.outcome, result.reason) for result in delivery.results}


@servers
@pytest.mark.guarantee("SQL databases", "The role needs no more than the documented grants")
def test_the_sink_can_do_its_work_and_nothing_else_with_the_documented_rights(people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as sink:
        assert deliver(sink, TASK, people(person(1))) == [DELIVERED]
        for forbidden in (
            "TRUNCATE people",
            "DROP TABLE people",
            "CREATE TABLE x (y int)",
            "ALTER TABLE people ADD x int",
            "CREATE INDEX x ON people (score)",
        ):
            with pytest.raises(sink._dialect.failure_type, match=r"denied|must be owner"):
                sink._dialect.run(sink._connected(), forbidden)
        people_db.run("REVOKE INSERT ON people FROM crm_push")
        delivery = sink.deliver(batch_of(TASK, people(person(2))))
    denied = {"postgres": "insufficient privilege (42501)", "mysql": "tableaccess denied error (1142)"}
    assert said(delivery) == {(FATAL, denied[people_db.kind])}


STEPS = {
    "postgres": ["BEGIN", "SELECT fence", "CREATE TEMPORARY", "COPY", "SAVEPOINT", "INSERT INTO", "SET CONSTRAINTS"],
    "mysql": ["CREATE TEMPORARY", "INSERT INTO `crm", "START TRANSACTION", "SELECT fence", "DELETE t", "ON DUPLICATE"],
}
CUTS = [(kind, step) for kind in SERVERS for step in (*STEPS[kind], CLAIMS)]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("db", "step"), CUTS, indirect=["db"])
def test_a_connection_cut_at_any_step_before_the_commit_is_retryable_and_nothing_is_applied(
    step: str, after: bool, people_db: Any, proxy: Proxy
) -> None:
    changes = [*people(person(1)), ("delete", {"id": 2})]
    with opened(people_db.behind(proxy.port), TASK) as sink:
        proxy.cut_at(step, after=after)
        assert deliver(sink, TASK, changes) == [RETRYABLE] * 2
        assert proxy.cuts == 1
        assert count(people_db) == count(people_db, CLAIMS) == 0
        assert deliver(sink, TASK, changes) == [DELIVERED] * 2
    assert (count(people_db), count(people_db, CLAIMS)) == (1, 1)


@servers
@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("after", "outcome"), [(True, DELIVERED), (False, RETRYABLE)])
def test_after_a_commit_without_an_answer_the_record_tells_what_became_of_it(
    after: bool, outcome: Outcome, people_db: Any, proxy: Proxy
) -> None:
    with opened(people_db.behind(proxy.port), TASK) as sink:
        proxy.cut_at(people_db.COMMIT, after=after)
        assert deliver(sink, TASK, people(person(1))) == [outcome]
    assert proxy.cuts == 1
    assert count(people_db) == count(people_db, CLAIMS) == int(outcome is DELIVERED)


ERRORS = [
    *(("postgres", postgres.error_answer(*error), []) for error in (("08006", "ERROR"), ("40003", "ERROR"))),
    ("postgres", postgres.error_answer("57P01", "FATAL"), []),
    *(("mysql", mysql.error_answer(*error), []) for error in ((1053, "08S01"), (1317, "70100"), (1180, "HY000"))),
    *(("mysql", mysql.error_answer(*error), [RETRYABLE]) for error in ((1213, "40001"), (1290, "HY000"))),
]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("db", "answer", "outcome"), ERRORS, indirect=["db"])
def test_an_error_at_the_commit_that_leaves_its_end_open_is_settled_by_the_record(
    answer: bytes, outcome: list[Outcome], people_db: Any, proxy: Proxy
) -> None:
    """Those that say that it was rolled back are believed."""
    with opened(people_db.behind(proxy.port), TASK) as sink:
        proxy.answer_at(people_db.COMMIT, answer)
        results = sink.deliver(batch_of(TASK, people(person(1)))).results
        assert [result.outcome for result in results] == outcome
        assert proxy.cuts == 1


@contextmanager
def commits_held_back(db: Any, sink: Any) -> Iterator[Callable[[], None]]:
    """No COMMIT of this sink ends, until this is called; statements of other connections go on."""
    if db.kind == "postgres":
        pid = sink._connected().info.backend_pid
        yield lambda: os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        return
    sink._dialect.run(sink._connected(), "SET SESSION lock_wait_timeout = 100")
    with closing(db.server.root()) as other, other.cursor() as cursor:
        cursor.execute("BACKUP STAGE START")
        cursor.execute("BACKUP STAGE BLOCK_COMMIT")
        yield lambda: None
        cursor.execute("BACKUP STAGE END")


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_lost_commit_that_the_server_has_not_carried_out_yet_is_unknown(people_db: Any, proxy: Proxy) -> None:
    with opened(people_db.behind(proxy.port, lock_timeout=1), TASK) as sink:
        with commits_held_back(people_db, sink) as hold_back:
            proxy.cut_and_stall_at(people_db.COMMIT, hold_back)
            assert deliver(sink, TASK, people(person(1))) == [UNKNOWN]
        wait_for_rows(people_db, 1)


@servers
@pytest.mark.guarantee("SQL databases")
def test_the_record_answers_for_a_lost_commit_as_soon_as_the_server_has_carried_it_out(
    people_db: Any, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.behind(proxy.port, lock_timeout=20), TASK) as sink:
        with commits_held_back(people_db, sink) as hold_back:
            proxy.cut_and_stall_at(people_db.COMMIT, hold_back)
            answer = threads.submit(deliver, sink, TASK, people(person(1)))
            people_db.wait_for_waiters(1)
        assert answer.result(20) == [DELIVERED]
        assert deliver(sink, TASK, people(person(2))) == [DELIVERED]
    assert count(people_db, CLAIMS) == 2, "asking leaves nothing behind"


def wait_for_rows(db: Any, number: int) -> None:
    for _ in range(1000):
        if db.rows(f"SELECT count(*) FROM people, {CLAIMS}") == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} rows should be there")


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_killed_session_is_retryable_and_the_next_batch_reconnects(people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as sink:
        if people_db.kind == "postgres":
            people_db.rows(f"SELECT pg_terminate_backend({sink._connected().info.backend_pid}, 5000)")
        else:
            people_db.run(f"KILL {sink._connected().thread_id()}")
        assert deliver(sink, TASK, people(person(1))) == [RETRYABLE]
        assert deliver(sink, TASK, people(person(1))) == [DELIVERED]


LOCKED = {"postgres": "lock not available (55P03)", "mysql": "lock wait timeout (1205)"}


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_lock_of_another_session_is_retryable(people_db: Any) -> None:
    with opened(people_db.sink(lock_timeout=1), TASK) as sink:
        with people_db.held_up():
            delivery = sink.deliver(batch_of(TASK, people(person(1))))
        assert said(delivery) == {(RETRYABLE, LOCKED[people_db.kind])}
        assert deliver(sink, TASK, people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("db", "others"), [("postgres", 0), ("mysql", 0), ("mysql", 300)], indirect=["db"])
def test_in_a_deadlock_the_batch_is_retryable_if_the_server_chose_it_and_never_hangs(
    others: int, people_db: Any
) -> None:
    """MariaDB rolls back whoever has changed less; Postgres whoever looks first, which is ours."""
    changes = [("update", person(1, "x")), ("update", person(2, "x"))]
    with opened(people_db.sink(lock_timeout=10), TASK) as sink, people_db.session() as other:
        deliver(sink, TASK, people(person(1), person(2)))
        for statement in ("SET deadlock_timeout = '1h'",) if people_db.kind == "postgres" else ():
            other(statement)
        other("BEGIN")
        other("UPDATE people SET score = 0 WHERE id = 2")
        for number in range(others):
            other(f"INSERT INTO people VALUES ({100 + number}, 'x', 1)")
        answers: list[Outcome] = []
        ours = threading.Thread(target=lambda: answers.extend(deliver(sink, TASK, changes)))
        ours.start()
        people_db.wait_for_waiters(1)
        theirs = threading.Thread(target=lambda: quietly(other, "UPDATE people SET score = 0 WHERE id = 1"))
        theirs.start()
        theirs.join(20)
        quietly(other, "ROLLBACK")
        ours.join(20)
        expected = {("mysql", 0): DELIVERED, ("mysql", 300): RETRYABLE, ("postgres", 0): RETRYABLE}
        assert answers == [expected[people_db.kind, others]] * 2
        assert deliver(sink, TASK, changes) == [DELIVERED] * 2


def quietly(session: Callable[[str], object], statement: str) -> None:
    try:
        session(statement)
    except Exception:
        session("ROLLBACK")


@contextmanager
def read_only(db: Any) -> Iterator[None]:
    words = {
        "mysql": ("SET GLOBAL read_only = {}",),
        "postgres": (
            "SET default_transaction_read_only = off",
            "ALTER DATABASE {db} SET default_transaction_read_only = {}",
        ),
    }

    def switch(on: int) -> None:
        with db.session() as run:
            for statement in words[db.kind]:
                run(statement.format(on, db=db.name))

    switch(1)
    try:
        yield
    finally:
        switch(0)


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_server_that_became_read_only_is_retryable_until_it_takes_writes_again(people_db: Any) -> None:
    words = {"postgres": "read only sql transaction (25006)", "mysql": "option prevents statement (1290)"}
    with opened(people_db.sink(), TASK) as sink:
        with read_only(people_db):
            sink._drop_connection()
            delivery = sink.deliver(batch_of(TASK, people(person(1))))
            if people_db.kind == "mysql":
                with pytest.raises(DestinationError, match="takes no writes"):
                    people_db.sink().check()
        assert said(delivery) == {(RETRYABLE, words[people_db.kind])}
        sink._drop_connection()
        assert deliver(sink, TASK, people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", ["mysql"], indirect=True)
def test_a_server_that_is_killed_in_the_middle_of_a_batch_or_after_it_keeps_all_of_it_or_nothing(
    people_db: Any, proxy: Proxy
) -> None:
    server = people_db.server
    with server.always_started(), opened(people_db.behind(proxy.port), TASK) as sink:
        for step in ("ON DUPLICATE", CLAIMS):
            proxy.cut_and_stall_at(step, server.kill)
            assert deliver(sink, TASK, people(person(1))) == [RETRYABLE]
            assert deliver(sink, TASK, people(person(1))) == [RETRYABLE], "nobody listens"
            server.start()
            assert count(people_db) == count(people_db, CLAIMS) == 0
        proxy.cut_and_stall_at(people_db.COMMIT, server.kill)
        assert deliver(sink, TASK, people(person(1))) == [UNKNOWN]
        server.start()
        assert deliver(sink, TASK, people(person(2))) == [DELIVERED]
        server.kill()
    with opened(people_db.sink(), next_run(TASK)) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True}
    assert people_db.rows("SELECT id FROM people") == [(2,)]


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_task_opens_while_another_one_of_its_run_is_in_the_middle_of_a_batch(
    people_db: Any, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), TASK) as one:
        with people_db.held_up():
            busy = threads.submit(deliver, one, TASK, people(person(1)))
            people_db.wait_for_waiters(1)
            with opened(people_db.sink(lock_timeout=1), TASK) as other:
                if people_db.kind == "mysql":  # whose lock is on one row
                    assert deliver(other, TASK, people(person(2))) == [DELIVERED]
                assert not busy.done()
        assert busy.result() == [DELIVERED]


@servers
@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("stored", [None, 1, 2], ids=["no fence", "an older fence", "the own fence"])
def test_tasks_of_one_run_that_open_at_once_never_hinder_each_other(
    stored: int | None, people_db: Any, threads: ThreadPoolExecutor
) -> None:
    if stored is not None:
        with opened(people_db.sink(), a_task(fence=stored)):
            pass
    task, turns = a_task(fence=2), 6

    def work(number: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for turn in range(turns):
            with opened(people_db.sink(), task) as sink:
                outcomes += deliver(sink, task, people(person(turns * number + turn)))
        return outcomes

    assert [set(outcomes) for outcomes in threads.map(work, range(4))] == [{DELIVERED}] * 4
    assert count(people_db) == 4 * turns


@servers
@pytest.mark.guarantee("SQL databases")
def test_an_older_run_is_refused_at_once_even_while_the_newer_one_delivers(
    people_db: Any, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), a_task(fence=7)) as newer:
        with people_db.held_up():
            busy = threads.submit(deliver, newer, TASK, people(person(1)))
            people_db.wait_for_waiters(1)
            with pytest.raises(DestinationError, match=r"another run holds this sync \(fence 7\)"):
                people_db.sink(lock_timeout=1).open(a_task(fence=6))
        assert busy.result() == [DELIVERED]


@servers
@pytest.mark.guarantee("SQL databases")
def test_a_newer_run_waits_for_the_batch_of_an_older_one_whose_late_writes_overwrite_nothing(
    people_db: Any, threads: ThreadPoolExecutor
) -> None:
    with opened(people_db.sink(), TASK) as old, closing(people_db.sink()) as new:
        with people_db.held_up():
            late = threads.submit(deliver, old, TASK, people(person(1, "old")))
            people_db.wait_for_waiters(1)
            opening = threads.submit(new.open, next_run(TASK))
            people_db.wait_for_waiters(2)
            assert not opening.done()
        assert late.result() == [DELIVERED]
        opening.result()
        assert new.settle(["claim-1"]) == {"claim-1": True}, "what the older run did is known to the newer one"
        assert deliver(new, TASK, [("update", person(1, "new"))]) == [DELIVERED]
        assert deliver(old, TASK, [("update", person(1, "old"))]) == [FATAL]
        with pytest.raises(DestinationError, match="another run"):
            people_db.sink().open(TASK)
    assert people_db.rows("SELECT name FROM people") == [("new",)]


@servers
def test_check_says_what_is_wrong_with_the_login_and_which_setting_to_correct(people_db: Any) -> None:
    for wrong, words in (
        ({"password": "x"}, "password.*Next: correct user and password in"),
        ({"user": "nobody"}, "(no such user|password or the user).*Next: correct user and password in"),
        ({"database": "no"}, "(no such database|may not use the database).*Next: .*correct database in"),
        ({"host": "127.0.0.1", "port": 1}, "reached.*Next: start the server, or correct host and port in"),
        ({"host": "nowhere.invalid"}, "reached.*Next: start the server, or correct host and port in"),
    ):
        with pytest.raises(DestinationError, match=words):
            people_db.sink(**wrong).check()


@servers
@pytest.mark.guarantee("Secrets and row values")
def test_the_password_and_row_values_are_in_no_log_and_no_error(
    people_db: Any, proxy: Proxy, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    caplog.set_level(logging.DEBUG)
    people_db.run("ALTER TABLE people ADD CONSTRAINT c CHECK (name <> 'canary-row')")
    sink, texts = people_db.behind(proxy.port), list[str]()
    with opened(sink, TASK):
        texts += [r.reason for r in sink.deliver(batch_of(TASK, people(person(1, "canary-row")))).results]
        proxy.cut_at("canary-row", after=False)
        proxy.down = True
        texts += [r.reason for r in sink.deliver(batch_of(TASK, people(person(1, "canary-row")))).results]
    with pytest.raises(DestinationError) as caught:
        sink.check()
    texts += [str(caught.value), repr(caught.value), repr(sink), sink.identity, repr(caught.value.__cause__)]
    texts += [caplog.text, *(str(warning.message) for warning in recwarn)]
    assert len(texts) >= 8
    assert not [text for text in texts if "canary" in text]
