"""Databases in files: what a killed process, a file that is not there and a rival run leave behind."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.record import CLAIMS, FENCES
from dbt_reverse_etl.testing import PEOPLE, deliver, next_run, opened, person
from tests.support.outcomes import DELIVERED, FATAL, RETRYABLE
from tests.support.sinks.databases import FILES, FileDatabase, people_of, refused
from tests.support.sinks.people import a_task, people

TASK = a_task()
files = pytest.mark.parametrize("db", FILES, indirect=True)

AT_THE_COMMIT = """
import os, signal, sys
from pathlib import Path
from dbt_reverse_etl.testing import batch_of, person
from tests.support.sinks.databases import FileDatabase
from tests.support.sinks.people import (a_task, people)
kind, folder, step = sys.argv[1:]
sink = FileDatabase(kind, Path(folder)).sink()
sink.open(a_task())
sink.deliver(batch_of(a_task(), people(person(1)), "first"))
commit = sink._commit
def killed(connection):
    if step == "after":
        commit(connection)
    os.kill(os.getpid(), signal.SIGKILL)
sink._commit = killed
sink.deliver(batch_of(a_task(), people(person(2)), "second"))
"""


@files
@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_process_killed_around_a_commit_leaves_all_of_a_batch_with_its_record_or_nothing(
    step: str, db: FileDatabase
) -> None:
    victim = [sys.executable, "-c", AT_THE_COMMIT, db.kind, str(db.file.parent), step]
    assert subprocess.run(victim, check=False).returncode == -signal.SIGKILL
    with opened(db.sink(), next_run(TASK)) as sink:
        assert sink.settle(["first", "second"]) == {"first": True, "second": True if step == "after" else None}
    assert db.rows("SELECT id FROM people ORDER BY id") == [(1,), (2,)][: 2 if step == "after" else 1]


@files
@pytest.mark.guarantee("SQL databases")
def test_syncs_that_open_one_new_file_at_once_do_not_fail(db: FileDatabase) -> None:
    tasks = [replace(TASK, sync_id=f"sync{number}", object=f"people{number}") for number in range(4)]
    barrier = threading.Barrier(len(tasks))

    def first_push(task: SinkTask) -> list[Outcome]:
        barrier.wait()
        with opened(db.sink(), task) as sink:
            return deliver(sink, task, people(person(1)))

    with ThreadPoolExecutor(len(tasks)) as pool:
        assert list(pool.map(first_push, tasks)) == [[DELIVERED]] * len(tasks)


IN_A_LARGE_BATCH = """
import os, signal, sys
from pathlib import Path
from dbt_reverse_etl.testing import batch_of, person
from tests.support.sinks.databases import FileDatabase
from tests.support.sinks.people import (a_task, people)
sink = FileDatabase("sqlite", Path(sys.argv[1])).sink()
sink.open(a_task())
sink.deliver(batch_of(a_task(), people(person(1)), "first"))
sink._commit = lambda connection: os.kill(os.getpid(), signal.SIGKILL)
sink.deliver(batch_of(a_task(), people(*(person(number, "x" * 1000) for number in range(2, 4000))), "second"))
"""


@pytest.mark.guarantee(
    "SQL databases", "A push that is killed in a batch larger than SQLite's page cache stops no later command"
)
@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
@pytest.mark.parametrize("first", ["check", "missing", "read", "open"])
def test_on_sqlite_a_process_killed_in_a_batch_larger_than_the_page_cache_stops_no_later_command(
    first: str, db: FileDatabase
) -> None:
    victim = [sys.executable, "-c", IN_A_LARGE_BATCH, str(db.file.parent)]
    assert subprocess.run(victim, check=False).returncode == -signal.SIGKILL
    assert db.file.stat().st_size > 2 * 2**20, "a part of the batch is in the file"
    assert Path(f"{db.file}-journal").stat().st_size > 0, "with what takes it out again"
    task = next_run(TASK)
    commands: dict[str, tuple[Callable[[], object], object]] = {
        "check": (lambda: db.sink().check(), None),
        "missing": (lambda: db.sink().missing(task), None),
        "read": (lambda: sum(part.num_rows for part in db.sink().read(task)), 1),
    }
    if first in commands:
        command, expected = commands[first]
        assert command() == expected
    with opened(db.sink(), task) as sink:
        assert sink.settle(["first", "second"]) == {"first": True, "second": None}
        assert deliver(sink, task, people(person(2))) == [DELIVERED]
    assert db.rows("SELECT id FROM people ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_connection_that_reads_neither_writes_nor_makes_a_file(db: FileDatabase) -> None:
    dialect = db.sink()._dialect
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        dialect.connect("ro")
    assert not db.file.exists()
    db.make(TASK)
    with closing(dialect.connect("ro")) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM people")


AT_RANDOM = """
import sys
from pathlib import Path
from dbt_reverse_etl.testing import batch_of, person
from tests.support.sinks.databases import FileDatabase
from tests.support.sinks.people import (a_task, people)
sink = FileDatabase(sys.argv[1], Path(sys.argv[2])).sink()
sink.open(a_task())
for claim in range(10**6):
    rows = people(*(person(claim * 400 + number, "x" * 200) for number in range(200)))
    for half in (0, 1):
        if half == 1:
            rows = [(operation, row | {"id": row["id"] + 200}) for operation, row in rows]
        sink.deliver(batch_of(a_task(), rows, f"claim-{claim}", last=half == 1))
        print(claim, flush=True)
"""


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(
    ("db", "lines"),
    [("sqlite", 4), *(pytest.param(kind, lines, marks=pytest.mark.full) for kind in FILES for lines in (1, 9))],
    indirect=["db"],
)
def test_after_a_kill_a_settled_claim_is_whole_and_an_unknown_one_left_no_row(lines: int, db: FileDatabase) -> None:
    command = [sys.executable, "-c", AT_RANDOM, db.kind, str(db.file.parent)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert runner.stdout
    with runner, runner.stdout:
        for _ in range(lines):
            assert runner.stdout.readline()
        runner.send_signal(signal.SIGKILL)
    claims = [f"claim-{number}" for number in range(lines + 50)]
    with opened(db.sink(), next_run(TASK)) as sink:
        answers = sink.settle(claims)
    rows = dict(
        db.rows("SELECT id // 400, count(*) FROM people GROUP BY 1".replace("//", "/" if db.kind == "sqlite" else "//"))
    )
    assert [rows.get(at, 0) for at in range(len(claims))] == [
        {True: 400, False: 200, None: 0}[answers[c]] for c in claims
    ]
    assert sum(rows.values()) >= lines * 200, "an answered batch is there"


@files
@pytest.mark.guarantee("SQL databases", "To look for a file never makes one, and one that vanished is not made anew")
def test_to_look_for_a_file_never_makes_one(db: FileDatabase) -> None:
    db.sink().check()
    assert db.sink().missing(next_run(TASK)) == f"no file {db.file}"
    assert db.sink().missing(TASK) is None
    for attempt in (lambda: list(db.sink().read(next_run(TASK))), lambda: db.sink().open(next_run(TASK))):
        with pytest.raises(DestinationError, match="resync"):
            attempt()
    assert not db.file.exists()


@files
def test_check_names_what_is_wrong_with_the_path(db: FileDatabase, tmp_path: Path) -> None:
    db.file.write_text("these are not the pages you are looking for" * 100)
    wrong = {"sqlite": "not an SQLite database", "duckdb": "not a DuckDB database"}
    for bad, named in ((db.file, wrong[db.kind]), (tmp_path, "regular file"), (tmp_path / "x" / "y", "mkdir")):
        with pytest.raises(DestinationError, match=named):
            db.sink(path=str(bad)).check()


@files
def test_two_ways_to_one_file_are_one_destination(db: FileDatabase, tmp_path: Path) -> None:
    db.file.touch()
    link = tmp_path / "link"
    link.symlink_to(db.file)
    assert db.sink(path=str(link)).identity == db.sink(path=str(tmp_path / "." / db.file.name)).identity
    assert db.sink().identity.endswith(str(db.file.resolve()))


@files
@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("again", [True, False], ids=["replaced", "removed"])
def test_a_file_that_is_removed_or_replaced_during_the_run_is_fatal(again: bool, db: FileDatabase) -> None:
    with opened(db.sink(), TASK) as sink:
        db.file.rename(db.file.with_suffix(".aside"))
        if again:
            db.file.write_bytes(db.file.with_suffix(".aside").read_bytes())
        assert deliver(sink, TASK, people(person(1))) == [FATAL]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_an_older_run_in_the_middle_of_a_batch_and_a_newer_one_never_both_commit(db: FileDatabase) -> None:
    with opened(db.sink(), TASK) as old:
        connection = old._connected()
        old._dialect.begin(connection)
        assert old._record.lost(connection) is None  # as each batch begins
        with pytest.raises(DestinationError, match=r"the database failed \(TransactionException\)"):
            db.sink().open(a_task(fence=2))
        connection.execute("ROLLBACK")
        old._dialect.begin(connection)
        connection.execute("SELECT * FROM people")  # a transaction that began before the newer run took the fence
        with opened(db.sink(), a_task(fence=2)) as new:
            assert deliver(new, TASK, people(person(1, "new"))) == [DELIVERED]
        with pytest.raises(old._dialect.failure_type, match=r"[Cc]onflict"):
            old._record.lost(connection)
        connection.execute("ROLLBACK")
        assert deliver(old, TASK, people(person(1, "late"))) == [FATAL]
    assert db.rows("SELECT name FROM people") == [("new",)]


@pytest.mark.guarantee("SQL databases", "A schema of DuckDB may be called like the file")
@pytest.mark.parametrize(
    ("stem", "schema"),
    [
        ("reports", "reports"),
        ("Reports.of.sales", "reports"),
        ("main", "main"),
        ("temp", "temp"),
        ("it's one", "state"),
    ],
)
@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_schema_that_is_called_like_the_file_is_still_the_schema(
    stem: str, schema: str, db: FileDatabase
) -> None:
    db.file = db.file.with_name(f"{stem}.duckdb")
    db.run(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    task = a_task(object=f'"{schema}".contacts')
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, people(person(1))) == [DELIVERED]
    assert sum(part.num_rows for part in db.sink().read(next_run(task))) == 1
    beside = a_task(sync_id="other", sync="other", object="others")
    with opened(db.sink(state_schema=schema), beside) as sink:
        assert deliver(sink, beside, people(person(1))) == [DELIVERED]
    tables = {("contacts", schema), ("others", "main"), (FENCES, schema), (CLAIMS, schema)}
    assert set(db.rows("SELECT table_name, schema_name FROM duckdb_tables()")) == tables


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_schema_that_is_not_there_is_no_other_name_of_the_file(db: FileDatabase) -> None:
    db.file = db.file.with_name("reports.duckdb")
    with pytest.raises(DestinationError):
        db.sink().open(a_task(object="reports.contacts"))
    assert db.rows("SELECT table_name FROM duckdb_tables()") == []


THAT_HOLDS_THE_FILE = """
import sys
import duckdb
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_file_that_another_process_has_open_is_named_as_that_and_tried_again(db: FileDatabase) -> None:
    db.make(TASK)
    command = [sys.executable, "-c", THAT_HOLDS_THE_FILE, str(db.file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline()
        with pytest.raises(DestinationError, match="found the file is open in another program; expected"):
            db.sink().check()
        dialect = db.sink()._dialect
        with pytest.raises(dialect.failure_type) as refusal:
            dialect.connect("rw")
        assert dialect.failure(refusal.value)[0] is RETRYABLE
        holder.stdin.close()
    db.sink().check()


WITHOUT_SPACE = """
import resource, sys
from pathlib import Path
from dbt_reverse_etl.testing import batch_of, person
from tests.support.sinks.databases import FileDatabase
from tests.support.sinks.people import (a_task, people)
sink = FileDatabase("duckdb", Path(sys.argv[1])).sink()
sink.open(a_task())
sink.deliver(batch_of(a_task(), people(person(1)), "first"))
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
rows = people(*(person(number, str(number) * 200) for number in range(2, 5000)))
found = {(result.outcome.name, result.reason) for result in sink.deliver(batch_of(a_task(), rows, "second")).results}
assert found == {("FATAL", "no space is left for the file")}, found
"""


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_batch_for_which_there_is_no_space_is_fatal_and_leaves_nothing(db: FileDatabase) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_SPACE, str(db.file.parent)], check=True)
    with opened(db.sink(), next_run(TASK)) as sink:
        assert sink.settle(["first", "second"]) == {"first": True, "second": None}
    assert db.rows("SELECT id FROM people") == [(1,)]


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
@pytest.mark.parametrize("cut", [False, True])
def test_on_duckdb_a_damaged_file_is_named_as_that(cut: bool, db: FileDatabase) -> None:
    db.make(TASK)
    content = db.file.read_bytes()
    db.file.write_bytes(content[:5000] + (b"" if cut else b"?" * 100 + content[5100:]))
    with pytest.raises(DestinationError, match="found the file is damaged; expected"):
        db.sink().check()


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_value_in_an_error_is_not_taken_for_its_reason(db: FileDatabase) -> None:
    dialect = db.sink()._dialect
    db.run("CREATE TABLE words (word VARCHAR PRIMARY KEY)")
    twice = (
        "INSERT INTO words VALUES ('IO Error: Could not set lock on file'), ('IO Error: Could not set lock on file')"
    )
    with closing(dialect.connect("rw")) as connection, pytest.raises(dialect.failure_type) as refusal:
        connection.execute(twice)
    assert dialect.failure(refusal.value)[1].startswith("constraint violated")


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_row_without_its_parent_is_refused_for_the_foreign_key_and_no_column(db: FileDatabase) -> None:
    db.run("CREATE TABLE firms (id int PRIMARY KEY)\nINSERT INTO firms VALUES (1)")
    db.run(people_of(db, "firm int REFERENCES firms (id)"))
    schema = pa.schema([*PEOPLE, ("firm", pa.int64())])
    rows = people({**person(1), "firm": 1}, {**person(2), "firm": 5})
    assert refused(db, rows, schema=schema) == {1: "constraint violated (ConstraintException), foreign key"}
