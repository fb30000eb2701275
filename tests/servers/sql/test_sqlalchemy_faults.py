"""The SQLAlchemy sink on a real Postgres server: what a lost connection, a rival run and a lost fence leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.postgres import PASSWORD, Database
from tests.support.servers.proxy import Proxy
from tests.support.sinks.people import a_task, people
from tests.support.sinks.sqlalchemy import duckdb_sink, postgres_sink
from tests.support.sinks.sqlalchemy_victim import TASK

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN
STEPS = [f"UPDATE {FENCES}", f"SELECT {FENCES}", "INSERT INTO people", "SELECT people", CLAIMS]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def proxied(db: Database, proxy: Proxy) -> SqlalchemySink:
    return postgres_sink(db, host="127.0.0.1", port=proxy.port)


def count(db: Database, table: str = "people") -> int:
    rows: int = db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


@contextmanager
def table_locked(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """Nobody can write into `people`, so that a batch stays in the middle of its transaction."""
    with db.owner() as other, other.transaction():
        other.execute("LOCK TABLE people IN EXCLUSIVE MODE")
        yield other


def wait_for_waiters(db: Database, number: int) -> None:
    """Until so many sessions of the sink's role wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'crm_push' AND wait_event_type = 'Lock'"
    for _ in range(1000):
        if db.rows(f"{query} AND datname = current_database()") == [(number,)]:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} sessions should wait")


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_cut_at_any_step_before_the_commit_is_retryable_and_nothing_is_applied(
    step: str, after: bool, people_db: Database, proxy: Proxy
) -> None:
    with opened(proxied(people_db, proxy), a_task()) as sink:
        proxy.cut_at(step, after=after)
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert proxy.cuts == 1
        assert count(people_db) == count(people_db, CLAIMS) == 0
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    assert (count(people_db), count(people_db, CLAIMS)) == (1, 1)


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(("after", "outcome"), [(True, DELIVERED), (False, RETRYABLE)])
def test_after_a_commit_without_an_answer_the_record_tells_what_became_of_it(
    after: bool, outcome: Outcome, people_db: Database, proxy: Proxy
) -> None:
    with opened(proxied(people_db, proxy), a_task()) as sink:
        proxy.cut_at("COMMIT\0", after=after)
        assert deliver(sink, a_task(), people(person(1))) == [outcome]
    assert proxy.cuts == 1
    assert count(people_db) == count(people_db, CLAIMS) == int(outcome is DELIVERED)


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize("after", [True, False])
def test_a_commit_without_an_answer_is_unknown_until_the_next_run_settles_it(
    after: bool, people_db: Database, proxy: Proxy
) -> None:
    with opened(proxied(people_db, proxy), a_task()) as sink:
        proxy.cut_at("COMMIT\0", after=after)
        proxy.down = True
        delivery = sink.deliver(batch_of(a_task(), people(person(1))))
        assert [result.outcome for result in delivery.results] == [UNKNOWN]
        assert PASSWORD not in delivery.results[0].reason
    with opened(postgres_sink(people_db), next_run(a_task())) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True if after else None}
    assert count(people_db) == int(after)


def test_a_terminated_backend_is_retryable_and_the_next_batch_reconnects(people_db: Database) -> None:
    with opened(postgres_sink(people_db), a_task()) as sink:
        query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{people_db.name}'"
        people_db.rows(f"{query} AND usename = 'crm_push'")
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("SQLAlchemy")
def test_a_newer_run_waits_for_the_batch_of_an_older_one_whose_late_writes_overwrite_nothing(
    people_db: Database, threads: ThreadPoolExecutor
) -> None:
    task = a_task()
    with opened(postgres_sink(people_db), task) as old, closing(postgres_sink(people_db)) as new:
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
            postgres_sink(people_db).open(task)
    assert people_db.rows("SELECT name FROM people") == [("new",)]


def test_two_first_runs_at_once_both_open_and_the_older_one_is_refused(tmp_path: Path) -> None:
    with opened(duckdb_sink(tmp_path / "x.duckdb"), a_task()) as old:
        with opened(duckdb_sink(tmp_path / "x.duckdb"), a_task(fence=2)) as new:
            assert deliver(new, a_task(), people(person(1))) == [DELIVERED]
        assert deliver(old, a_task(), people(person(1, "late"))) == [FATAL]


@pytest.mark.guarantee("SQLAlchemy")
def test_on_duckdb_an_older_run_in_the_middle_of_a_batch_and_a_newer_one_never_both_commit(tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    with opened(duckdb_sink(file), a_task()) as old:
        connection = old._connected()
        assert old._record.lost(connection) is None  # as each batch begins
        with pytest.raises(DestinationError, match="the database failed"):
            duckdb_sink(file).open(a_task(fence=2))
        connection.rollback()
        connection.execute(sa.text("SELECT 1"))  # a transaction that began before the newer run took the fence
        with opened(duckdb_sink(file), a_task(fence=2)):
            pass
        assert deliver(old, a_task(), people(person(1))) in ([FATAL], [RETRYABLE])
        assert deliver(old, a_task(), people(person(1))) == [FATAL]


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_process_killed_around_a_commit_leaves_all_of_a_batch_with_its_record_or_nothing(
    step: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.duckdb"
    victim = [sys.executable, "-m", "tests.support.sinks.sqlalchemy_victim", str(file), step]
    assert subprocess.run(victim, check=False).returncode == -signal.SIGKILL
    with opened(duckdb_sink(file), next_run(TASK)) as sink:
        assert sink.settle(["first", "second"]) == {"first": True, "second": True if step == "after" else None}
        rows = sink._connected().exec_driver_sql("SELECT id FROM people ORDER BY id").fetchall()
        assert [tuple(row) for row in rows] == [(1,), (2,)][: 2 if step == "after" else 1]


def test_a_lock_that_is_held_for_too_long_is_retryable(people_db: Database) -> None:
    with opened(postgres_sink(people_db, timeout=1), a_task()) as sink, table_locked(people_db):
        delivery = sink.deliver(batch_of(a_task(), people(person(1))))
        assert [(one.outcome, one.reason) for one in delivery.results] == [(RETRYABLE, "the database failed (57014)")]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TABLE people", "statement refused (42P01)"),
        ("REVOKE INSERT ON people FROM crm_push", "statement refused (42501)"),
        ("ALTER TABLE people DROP COLUMN score", "statement refused (42703)"),
        (f"DELETE FROM {FENCES}", "the destination lost its record of this sync"),
    ],
)
def test_what_only_a_person_can_mend_is_fatal(statement: str, reason: str, people_db: Database) -> None:
    with opened(postgres_sink(people_db), a_task()) as sink:
        people_db.run(statement)
        delivery = sink.deliver(batch_of(a_task(), people(person(1))))
    assert [(one.outcome, one.reason) for one in delivery.results] == [(FATAL, reason)]


@pytest.mark.parametrize("statement", ["DROP TABLE people", f"DROP TABLE {FENCES}", f"DELETE FROM {FENCES}"])
def test_what_has_vanished_is_named_before_the_next_run(statement: str, people_db: Database) -> None:
    with opened(postgres_sink(people_db), a_task()):
        pass
    people_db.run(statement)
    missing = postgres_sink(people_db).missing(next_run(a_task()))
    assert missing is not None
    assert statement.rsplit(maxsplit=1)[-1] in missing


def test_to_look_for_a_duckdb_file_never_makes_one(tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    duckdb_sink(file).check()
    assert duckdb_sink(file).missing(next_run(a_task())) == f"the file {file}"
    with pytest.raises(DestinationError, match="resync"):
        list(duckdb_sink(file).read(next_run(a_task())))
    assert not file.exists()
    with pytest.raises(DestinationError, match="no folder"):
        duckdb_sink(tmp_path / "nowhere" / "x.duckdb").check()


def test_records_are_kept_while_the_ledger_may_ask_and_removed_after(people_db: Database) -> None:
    with opened(postgres_sink(people_db), a_task()) as sink:
        for claim in ("a", "b", "c"):
            sink.deliver(batch_of(a_task(), people(person(1)), claim))
    with opened(postgres_sink(people_db), next_run(a_task())) as sink:
        for _ in range(2):
            assert sink.settle(["b", "c"]) == {"b": True, "c": True}
        assert set(people_db.rows(f"SELECT claim FROM {CLAIMS}")) == {("b",), ("c",)}
        sink.finish()
    assert count(people_db, CLAIMS) == 0
