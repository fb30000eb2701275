"""What only SQLite has: its values, locks, disks and triggers, and what somebody's tables there may look like."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, SinkTask
from dbt_reverse_etl.sinks.fence import OlderFence
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.record import CLAIMS, FENCES
from dbt_reverse_etl.sinks.sql.rows import Step
from dbt_reverse_etl.sinks.sql.settings import SqliteSettings
from dbt_reverse_etl.testing import PEOPLE, batch_of, deliver, next_run, opened, person
from tests.support.delivery.clock import FakeClock
from tests.support.outcomes import DELIVERED, FATAL, REJECTED, RETRYABLE, UNKNOWN
from tests.support.sinks.people import a_task, on_a_shared_file, people, sink_on, table

CANARY = "canary-1618033988"


def micro_text(value: datetime) -> str:
    return value.isoformat(" ", "microseconds")


@st.composite
def decimals(draw: st.DrawFn) -> tuple[pa.DataType, Decimal, str]:
    digits, scale = draw(st.integers(-(10**38) + 1, 10**38 - 1)), draw(st.integers(0, 38))
    value = Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))
    return pa.decimal128(38, scale), value, f"{value:.{scale}f}"


VALUES = st.one_of(
    decimals(),
    st.datetimes().map(lambda value: (pa.timestamp("us"), value, micro_text(value))),
    st.datetimes().map(lambda value: (pa.timestamp("us", "Asia/Tokyo"), value, micro_text(value))),
    st.dates().map(lambda value: (pa.date32(), value, value.isoformat())),
    st.text(st.characters(codec="utf-8")).map(lambda value: (pa.string(), value, value)),
    st.text(st.characters(codec="utf-8")).map(lambda value: (pa.large_string(), value, value)),
    st.binary().map(lambda value: (pa.binary(), value, value)),
    st.floats(allow_nan=False).map(lambda value: (pa.float64(), value, value)),
    st.floats(allow_nan=False, width=32).map(lambda value: (pa.float32(), value, value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: (pa.int64(), value, value)),
    st.booleans().map(lambda value: (pa.bool_(), value, int(value))),
)


@pytest.mark.guarantee("SQLite")
@on_a_shared_file
@given(st.lists(VALUES, min_size=1, max_size=8))
def test_any_value_is_stored_without_loss(
    path: Path, db: sqlite3.Connection, values: list[tuple[Any, Any, Any]]
) -> None:
    db.execute("DROP TABLE IF EXISTS people")
    schema = pa.schema([("id", pa.int64()), *((f"c{at}", kind) for at, (kind, _, _) in enumerate(values))])
    row = {"id": 1} | {f"c{at}": value for at, (_, value, _) in enumerate(values)}
    with opened(sink_on(path), a_task(schema)) as sink:
        assert deliver(sink, a_task(schema), people({"id": 0}, row)) == [DELIVERED] * 2
    assert table(db) == [(0, *[None] * len(values)), (1, *(text for _, _, text in values))]


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize(
    ("kind", "bad", "reason"),
    [
        (pa.float64(), float("nan"), "NaN"),
        (pa.timestamp("us", "UTC"), 253_402_300_800_000_000, "year outside"),
        (pa.timestamp("us"), -62_135_596_800_000_001, "year outside"),
        (pa.date32(), 2_932_897, "year outside"),
        (pa.list_(pa.float64()), [float("nan")], "NaN"),
    ],
    ids=str,
)
def test_a_value_that_sqlite_cannot_hold_is_rejected_alone(
    kind: pa.DataType, bad: Any, reason: str, path: Path, db: sqlite3.Connection
) -> None:
    task = a_task(pa.schema([("id", pa.int64()), ("v", kind)]))
    with opened(sink_on(path), task) as sink:
        delivery = sink.deliver(batch_of(task, people({"id": 1}, {"id": 2, "v": bad}, {"id": 3})))
    assert [(result.index, result.outcome) for result in delivery.results] == [(1, REJECTED)]
    assert reason in delivery.results[0].reason
    assert "v" in delivery.results[0].reason
    assert [row[0] for row in table(db)] == [1, 3]


@pytest.mark.guarantee("SQLite")
def test_text_that_is_not_utf8_is_rejected_alone(path: Path, db: sqlite3.Connection) -> None:
    task = a_task(pa.schema([("id", pa.int64()), ("v", pa.string())]))
    damaged = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])), pa.py_buffer(b"\xff\xfeok")]
    )
    columns = {OPERATION: ["insert"] * 2, EVENT_ID: ["a", "b"], "id": [1, 2], "v": damaged}
    with opened(sink_on(path), task) as sink:
        delivery = sink.deliver(Batch(pa.table(columns), "c"))
    assert [(result.index, result.outcome) for result in delivery.results] == [(0, REJECTED)]
    assert table(db) == [(2, "ok")]


@pytest.mark.guarantee("SQLite")
def test_a_file_put_back_from_a_backup_is_noticed_only_if_the_newest_run_wrote(path: Path) -> None:
    task = a_task()
    with opened(sink_on(path), task):
        pass
    backup, second = path.read_bytes(), next_run(task)
    with opened(sink_on(path), second) as sink:
        assert deliver(sink, second, people(person(1))) == [DELIVERED]
    assert sink_on(path).missing(replace(second, wrote=True)) is None
    path.write_bytes(backup)
    assert sink_on(path).missing(second) is None, "that run need not have opened it"
    with pytest.raises(OlderFence) as older:
        sink_on(path).missing(replace(second, wrote=True))
    assert older.value.fence == task.fence


@pytest.mark.guarantee("SQLite")
def test_a_second_index_that_takes_two_keys_for_one_overwrites_no_row(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id TEXT PRIMARY KEY, name TEXT)")
    db.execute("CREATE UNIQUE INDEX ci ON people (id COLLATE NOCASE)")
    task = a_task(pa.schema([("id", pa.string()), ("name", pa.string())]))
    rows = people({"id": "Ada", "name": "first"}, {"id": "ADA", "name": "second"}, {"id": "Bob", "name": "b"})
    with opened(sink_on(path), task) as sink:
        assert deliver(sink, task, rows) == [DELIVERED, REJECTED, DELIVERED]
        assert deliver(sink, task, people({"id": "Ada", "name": "third"})) == [DELIVERED]
    assert table(db) == [("Ada", "third"), ("Bob", "b")]


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@pytest.mark.guarantee("SQLite")
@on_a_shared_file
@given(
    names.filter(lambda name: not name.lower().startswith(("sqlite_", "_dbt"))), st.lists(names, min_size=2, max_size=5)
)
@example('"; DROP TABLE people; --', ['"', '"" text, "x', "a'b"])
@example("Excluded", ["id", "v"])  # as the new row is called in an upsert
def test_any_name_is_an_identifier_and_never_sql(
    path: Path, db: sqlite3.Connection, name: str, fields: list[str]
) -> None:
    fields = list({field.encode().lower(): field for field in fields}.values())
    db.execute(f"DROP TABLE IF EXISTS {FENCES}")
    db.execute("DROP TABLE IF EXISTS " + '"' + name.replace('"', '""') + '"')
    task = a_task(pa.schema([(field, pa.string()) for field in fields]), object=name)
    row = {field: f"v{at}" for at, field in enumerate(fields)}
    older = {**row, fields[-1]: "v0"}
    for mode, sent in ((Mode.UPSERT, older), (Mode.UPDATE_ONLY, older), (Mode.MIRROR, row), (Mode.INSERT_ONLY, older)):
        with opened(sink_on(path), replace(task, mode=mode)) as sink:
            assert deliver(sink, task, people(sent)) == [DELIVERED]
    assert db.execute("SELECT * FROM " + '"' + name.replace('"', '""') + '"').fetchall() == [tuple(row.values())]


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("action", ["ABORT", "FAIL", "ROLLBACK"])
def test_a_trigger_that_raises_rejects_its_row_and_its_text_stays_inside(
    action: str, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    db.execute("CREATE TABLE log (id INTEGER)")
    body = f"INSERT INTO log VALUES (NEW.id); SELECT RAISE({action}, 'UNIQUE constraint failed: {CANARY}');"
    db.execute(f"CREATE TRIGGER t BEFORE INSERT ON people WHEN NEW.id = 7 BEGIN {body} END")
    batch = batch_of(a_task(), people(person(1), person(7), person(9)))
    with opened(sink_on(path), a_task()) as sink:
        delivery = sink.deliver(batch)
        assert deliver(sink, a_task(), people(person(20))) == [DELIVERED], "the sink goes on"
    whole = action == "ROLLBACK"
    assert delivery.refused_whole is whole
    assert [result.index for result in delivery.results] == ([0, 1, 2] if whole else [1])
    assert CANARY not in str(delivery)
    assert [row[0] for row in table(db)] == ([20] if whole else [1, 9, 20])
    assert table(db, "log") == []


@pytest.mark.parametrize("on", ["PEOPLE", "log"])
def test_only_a_table_with_triggers_pays_for_the_question_whether_one_changed_a_key(
    on: str, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    db.execute("CREATE TABLE log (id INTEGER)")
    db.execute(f"CREATE TRIGGER t AFTER INSERT ON {on} BEGIN DELETE FROM log; END")
    with opened(sink_on(path), a_task()) as sink:
        assert sink._writer.table.rewrites is (on == "PEOPLE")
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


def test_a_value_that_an_index_cannot_read_is_the_rows_fault(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    db.execute("CREATE INDEX by_plan ON people (json_extract(name, '$.plan'))")
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "{}"), person(2, "{"))) == [DELIVERED, REJECTED]


def test_a_deferred_constraint_refuses_the_batch_as_one(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE plans (name TEXT PRIMARY KEY)")
    reference = "REFERENCES plans DEFERRABLE INITIALLY DEFERRED"
    db.execute(f"CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT {reference}, score REAL)")
    with opened(sink_on(path), a_task()) as sink:
        delivery = sink.deliver(batch_of(a_task(), people(person(1, "a"), person(2, "b"))))
        assert delivery.refused_whole
        assert [result.outcome for result in delivery.results] == [REJECTED] * 2
        assert sink.settle(["claim-1"]) == {"claim-1": None}
    assert table(db) == []


def test_a_rejected_row_keeps_its_claim_from_being_settled(path: Path) -> None:
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1), person(2, score=float("nan")))) == [DELIVERED, REJECTED]
    with opened(sink_on(path), next_run(a_task())) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": False}


@pytest.mark.guarantee("SQLite")
def test_a_locked_database_is_retryable_and_nothing_is_applied(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path, timeout=0), a_task()) as sink:
        db.execute("BEGIN IMMEDIATE")
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        db.execute("ROLLBACK")
        assert table(db) == []
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


def test_a_reader_that_stops_the_commit_makes_the_batch_retryable(path: Path, db: sqlite3.Connection) -> None:
    with opened(sink_on(path, timeout=0), a_task()) as sink:
        db.execute("BEGIN")
        db.execute("SELECT * FROM people").fetchall()
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
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
    [("disk I/O error", True, UNKNOWN), ("disk I/O error", False, UNKNOWN), ("database or disk is full", False, FATAL)],
)
def test_a_commit_that_fails_is_unknown_unless_surely_not_applied(
    says: str, applied: bool, outcome: Outcome, path: Path, db: sqlite3.Connection
) -> None:
    with opened(sink_on(path), a_task()) as sink:
        sink._drop_connection()
        broken = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=CommitFails)
        broken.says, broken.applied, sink._connection = says, applied, broken
        assert deliver(sink, a_task(), people(person(1))) == [outcome]
        assert (sink._connection is None) is (outcome is UNKNOWN), "after a doubt the file is opened again"
        sink._drop_connection()
        assert sink.settle(["claim-1"]) == {"claim-1": True if applied else None}
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    assert len(table(db)) == 1


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
        with patch.object(sink, "deliver", wraps=sink.deliver) as deliver:
            result = engine.deliver_wave(WavePart("wave", table_of_wave))
    assert [*result.failures] == ([] if bad is None else [bad])
    assert deliver.call_count == 8
    assert len(table(db)) == 50 - len(result.failures)
    with opened(sink_on(path), next_run(a_task())) as sink_of_next_run:
        assert sink_of_next_run.settle(["wave"]) == {"wave": bad is None}


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE people (ID INTEGER PRIMARY KEY, Name VARCHAR(9), SCORE DOUBLE, extra TEXT)",
        "CREATE TABLE people (id INT, name, score FLOAT, x TEXT NOT NULL DEFAULT '', UNIQUE (id))",
        "CREATE TABLE people (id BIGINT PRIMARY KEY, name CLOB, score NUMERIC) WITHOUT ROWID",
        "CREATE TABLE people (x INTEGER PRIMARY KEY, score REAL, name TEXT, id INTEGER UNIQUE)",
        "CREATE TABLE people (x INTEGER PRIMARY KEY NOT NULL, id INT UNIQUE, name TEXT, score REAL)",
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL) STRICT",
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name ANY, score Any) STRICT",
    ],
)
def test_a_users_own_table_is_taken_as_it_is(ddl: str, path: Path, db: sqlite3.Connection) -> None:
    db.execute(ddl)
    before = db.execute("SELECT sql FROM sqlite_master WHERE name = 'people'").fetchall()
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "Ada"), person(1, "Grace"), person(2))) == [DELIVERED] * 3
    assert db.execute("SELECT id, name, score FROM people").fetchall() == [(1, "Grace", 1.5), (2, "Ada", 1.5)]
    assert db.execute("SELECT sql FROM sqlite_master WHERE name = 'people'").fetchall() == before


def test_any_of_a_table_that_is_not_strict_would_make_texts_numbers(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name ANY, score REAL)")
    with pytest.raises(DestinationError, match="column name of type ANY, which changes values of type string"):
        sink_on(path).open(a_task())


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ("CREATE TABLE other (id INTEGER PRIMARY KEY)", "names a table that is not there"),
        ("CREATE TABLE firms (id INTEGER)", "names columns that no unique index is over"),
    ],
)
def test_a_foreign_key_that_points_nowhere_is_named_as_that(
    parent: str, words: str, path: Path, db: sqlite3.Connection
) -> None:
    db.execute(parent)
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL, firm REFERENCES firms (id))")
    task = a_task(pa.schema([*PEOPLE, ("firm", pa.int64())]))
    with opened(sink_on(path), task) as sink:
        (result,) = sink.deliver(batch_of(task, people({**person(1), "firm": 1}))).results
    assert result.outcome is FATAL
    assert result.reason.endswith(words)


def test_a_foreign_key_of_another_table_is_not_taken_for_one_of_the_object(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    db.execute("CREATE TABLE kids (of REFERENCES people (name))")
    with opened(sink_on(path), a_task()) as sink:
        (result,) = sink.deliver(batch_of(a_task(), people(person(1)))).results
    assert result.outcome is FATAL
    assert "of the table, or of another one that points at it, names columns" in result.reason


def test_deletes_use_the_key_index(path: Path, db: sqlite3.Connection) -> None:
    for schema in (PEOPLE, pa.schema([("name", pa.string()), ("id", pa.int64())])):
        task = a_task(schema, object=f"by_{schema.names[0]}")
        with opened(sink_on(path), replace(task, sync_id=schema.names[0])) as sink:
            delete = sink._writer._sql[Step.DELETE]
            plan = db.execute(f"EXPLAIN QUERY PLAN {delete}", (1,)).fetchall()
        assert "SEARCH" in str(plan), plan


@pytest.mark.parametrize(("mode", "create"), [(Mode.MIRROR, False), (Mode.UPDATE_ONLY, True)])
def test_a_missing_table_is_an_error_where_it_may_not_be_made(mode: Mode, create: bool, path: Path) -> None:
    sink = sink_on(path, create_object=create)
    for _ in ("no file", "no table"):
        (early,) = sink.rights(a_task(mode=mode, known="key")).missing
        assert (early.found, early.expected) == ("no table people", "an existing table")
        assert early.next_step == "make it; or set create_object: true and a mode that inserts"
        path.touch()
    with pytest.raises(DestinationError, match="no table people"), opened(sink, a_task(mode=mode)):
        pass


@pytest.mark.parametrize("create", [False, True])
def test_a_table_in_another_case_is_named_as_an_object_and_no_second_one_is_made(
    create: bool, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE café (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    sink, task = sink_on(path, create_object=create), a_task(object="CAFÉ")
    (early,) = sink.rights(task).missing
    assert early.found == "no table CAFÉ, but café"
    assert early.next_step == "write object: café; or make CAFÉ yourself, if both are meant"
    with pytest.raises(DestinationError) as caught:
        sink.open(task)
    assert caught.value.problems == (early,)
    db.execute("CREATE TABLE CAFÉ (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    assert sink.rights(task).missing == ()
    with opened(sink, task):
        pass


def test_a_table_that_a_push_makes_is_not_missed_before(path: Path) -> None:
    sink = sink_on(path, create_object=True)
    assert sink.rights(a_task()).missing == ()
    path.touch()
    assert sink.rights(a_task()).missing == ()


@pytest.mark.parametrize("digits", [15, 16])
def test_a_number_column_takes_only_decimals_that_it_can_hold_exactly(
    digits: int, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, price DECIMAL(38, 2))")
    task = a_task(pa.schema([("id", pa.int64()), ("price", pa.decimal128(digits, 2))]))
    if digits > 15:
        with pytest.raises(DestinationError, match="price"), opened(sink_on(path), task):
            pass
        return
    price = Decimal("9" * (digits - 2) + ".99")
    with opened(sink_on(path), task) as sink:
        assert deliver(sink, task, people({"id": 1, "price": price})) == [DELIVERED]
    assert f"{table(db)[0][1]:.2f}" == str(price)
