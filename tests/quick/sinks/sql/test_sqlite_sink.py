"""The SQLite sink on real files: what a lock, a lost file, a lost fence and a killed process leave behind."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES
from dbt_reverse_etl.sinks.sql.sqlite.sink import SqliteSettings, SqliteSink
from dbt_reverse_etl.testing import FakeClock, batch_of, deliver, next_run, opened, person
from tests.support.sinks.people import DELIVERED, FATAL, a_task, people, sink_on, table


def test_check_never_creates_the_file(path: Path) -> None:
    sink_on(path).check()
    assert not path.exists()


def test_check_names_what_is_wrong_with_the_path(path: Path, tmp_path: Path) -> None:
    path.write_text("these are not the pages you are looking for" * 100)
    for bad, named in ((path, "not an SQLite database"), (tmp_path, "regular file"), (tmp_path / "x" / "y", "mkdir")):
        with pytest.raises(DestinationError, match=named):
            sink_on(bad).check()


@pytest.mark.parametrize("path_text", ["", ":memory:", "file:crm.sqlite?mode=ro", "a\0b"])
def test_only_a_file_is_a_destination(path_text: str) -> None:
    with pytest.raises(ValidationError):
        SqliteSettings(path=path_text)


def test_two_ways_to_one_file_are_one_destination(path: Path, tmp_path: Path) -> None:
    path.touch()
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    assert sink_on(link).identity == sink_on(tmp_path / "." / path.name).identity == str(path.resolve())


@pytest.mark.guarantee("SQLite")
def test_a_locked_database_is_retryable_and_nothing_is_applied(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path, timeout=0), a_task()) as sink:
        db.execute("BEGIN IMMEDIATE")
        assert deliver(sink, a_task(), people(person(1))) == [Outcome.RETRYABLE]
        db.execute("ROLLBACK")
        assert table(db) == []
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


def test_a_reader_that_stops_the_commit_makes_the_batch_retryable(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path, timeout=0), a_task()) as sink:
        db.execute("BEGIN")
        db.execute("SELECT * FROM people").fetchall()
        assert deliver(sink, a_task(), people(person(1))) == [Outcome.RETRYABLE]
        db.execute("ROLLBACK")
        assert sink.settle(["claim-1"]) == {"claim-1": None}
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize(
    ("pragma", "reason"), [("max_page_count = 1", "full"), ("query_only = 1", "cannot be written")]
)
def test_a_full_or_readonly_database_is_fatal_and_nothing_is_applied(
    pragma: str, reason: str, path: Path, db: sqlite3.Connection
) -> None:
    rows = people(*(person(number, "x" * 1000) for number in range(1000)))
    with opened(sink_on(path), a_task()) as sink:
        sink._connected().execute(f"PRAGMA {pragma}")
        delivery = sink.deliver(batch_of(a_task(), rows))
    assert {result.outcome for result in delivery.results} == {FATAL}
    assert reason in delivery.results[0].reason
    assert len(delivery.results) == len(rows)
    assert table(db) == table(db, CLAIMS) == []


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("again", [True, False], ids=["replaced", "removed"])
def test_a_file_that_is_removed_during_the_run_is_fatal(again: bool, journal: str, path: Path) -> None:
    with opened(sink_on(path), a_task()) as sink:
        sink._connected().execute(f"PRAGMA journal_mode = {journal}")
        path.unlink()
        if again:
            with opened(sink_on(path), a_task()):
                pass
        assert deliver(sink, a_task(), people(person(1))) == [FATAL]


class CommitFails(sqlite3.Connection):
    """A disk that fails at the commit, before or after the commit is on it."""

    says, applied = "", False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        super().execute("COMMIT" if self.applied else "ROLLBACK")
        raise sqlite3.OperationalError(self.says)


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize(
    ("says", "applied", "outcome"),
    [
        ("disk I/O error", True, Outcome.UNKNOWN),
        ("disk I/O error", False, Outcome.UNKNOWN),
        ("database or disk is full", False, FATAL),
    ],
)
def test_a_commit_that_fails_is_unknown_unless_surely_not_applied(
    says: str, applied: bool, outcome: Outcome, path: Path, db: sqlite3.Connection
) -> None:
    with opened(sink_on(path), a_task()) as sink:
        sink._drop_connection()
        broken = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=CommitFails)
        broken.says, broken.applied, sink._connection = says, applied, broken
        assert deliver(sink, a_task(), people(person(1))) == [outcome]
        assert (sink._connection is None) is (outcome is Outcome.UNKNOWN), "after a doubt the file is opened anew"
        sink._drop_connection()
        assert sink.settle(["claim-1"]) == {"claim-1": True if applied else None}
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    assert len(table(db)) == 1


def test_a_table_that_is_dropped_during_the_run_is_fatal(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path), a_task()) as sink:
        db.execute("DROP TABLE people")
        assert deliver(sink, a_task(), people(person(1))) == [FATAL]


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        ("", None),
        ("DROP TABLE people", "table people"),
        (f"DELETE FROM {FENCES}", FENCES),
        (f"DROP TABLE {FENCES}", FENCES),
    ],
)
def test_what_has_vanished_is_named_before_and_at_the_next_run(
    loss: str, named: str | None, path: Path, db: sqlite3.Connection
) -> None:
    with opened(sink_on(path), a_task()) as sink:
        deliver(sink, a_task(), people(person(1)))
    db.execute(loss)
    missing = sink_on(path).missing(next_run(a_task()))
    assert (named in missing) if named and missing else missing is named
    assert sink_on(path).missing(a_task()) is None, "a first push misses nothing"
    if named:
        with pytest.raises(DestinationError, match="resync"), opened(sink_on(path), next_run(a_task())):
            pass


def test_a_vanished_file_is_named_and_not_made_again(path: Path) -> None:
    assert sink_on(path).missing(next_run(a_task())) == f"the file {path}"
    with pytest.raises(DestinationError, match="resync"), opened(sink_on(path), next_run(a_task())):
        pass
    assert not path.exists()


def test_records_are_kept_while_the_ledger_may_ask_and_removed_after(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path), a_task()) as sink:
        for claim in ("a", "b", "c"):
            sink.deliver(batch_of(a_task(), people(person(1)), claim))
    with opened(sink_on(path), next_run(a_task())) as sink:
        for _ in range(2):
            assert sink.settle(["b", "c"]) == {"b": True, "c": True}
        assert {row[1] for row in table(db, CLAIMS)} == {"b", "c"}
        sink.finish()
    assert table(db, CLAIMS) == []


def test_a_run_that_lost_the_fence_removes_no_records(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path), a_task()) as old, opened(sink_on(path), next_run(a_task())) as new:
        new.deliver(batch_of(a_task(), people(person(1)), "new"))
        old.finish()
        with pytest.raises(DestinationError, match="another run"):
            old.settle(["new"])
    assert [row[1] for row in table(db, CLAIMS)] == ["new"]


def test_syncs_of_one_file_do_not_see_each_others_records(path: Path) -> None:
    other = replace(a_task(), sync_id="07", object="others")
    with opened(sink_on(path), a_task()) as one, opened(sink_on(path), other) as two:
        deliver(one, a_task(), people(person(1)))
        assert two.settle(["claim-1"]) == {"claim-1": None}
        two.finish()
        assert one.settle(["claim-1"]) == {"claim-1": True}


class SmallBatches(SqliteSink):
    def limits(self, task: SinkTask) -> Limits:
        return Limits(rows=7)


@pytest.mark.parametrize("bad", [None, 0, 23, 49])
def test_a_claim_that_the_engine_sent_in_many_batches_settles_only_if_every_row_is_in(
    bad: int | None, path: Path, db: sqlite3.Connection
) -> None:
    rows = [person(number) if number != bad else person(number, score=float("nan")) for number in range(50)]
    table_of_wave = batch_of(a_task(), people(*rows)).rows
    with opened(SmallBatches(SqliteSettings(path=str(path))), a_task()) as sink:
        engine = Engine(sink, a_task(), Policy(), FakeClock(), lambda: True)
        result = engine.deliver_wave("wave", table_of_wave)
    assert [*result.failures] == ([] if bad is None else [bad])
    assert result.requests == 8
    assert len(table(db)) == 50 - len(result.failures)
    with opened(sink_on(path), next_run(a_task())) as sink_of_next_run:
        assert sink_of_next_run.settle(["wave"]) == {"wave": bad is None}
