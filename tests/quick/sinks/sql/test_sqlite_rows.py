"""Rows under the SQLite sink: each value without loss, each refusal with its row."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Mode
from dbt_reverse_etl.sinks.sql.database import FENCES
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.sinks.people import DELIVERED, REJECTED, a_task, on_a_shared_file, people, sink_on, table

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
    st.times().map(lambda value: (pa.time64("us"), value, value.isoformat("microseconds"))),
    st.text(st.characters(codec="utf-8")).map(lambda value: (pa.string(), value, value)),
    st.text(st.characters(codec="utf-8")).map(lambda value: (pa.dictionary(pa.int32(), pa.string()), value, value)),
    st.binary().map(lambda value: (pa.binary(), value, value)),
    st.floats(allow_nan=False).map(lambda value: (pa.float64(), value, value)),
    st.floats(allow_nan=False, width=32).map(lambda value: (pa.float32(), value, value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: (pa.int64(), value, value)),
    st.integers(0, 2**63 - 1).map(lambda value: (pa.uint64(), value, value)),
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
        (pa.uint64(), 2**63, "integer above"),
        (pa.timestamp("ns"), 1, "finer than a microsecond"),
        (pa.timestamp("ns", "UTC"), -1, "finer than a microsecond"),
        (pa.time64("ns"), 1, "finer than a microsecond"),
        (pa.timestamp("s"), 253_402_300_800, "year outside"),
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


def test_a_type_without_a_form_is_refused_before_anything_is_sent(path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("took", pa.duration("us")), ("parts", pa.list_(pa.duration("s")))])
    with pytest.raises(ConfigurationError, match=r"took(.|\n)*parts"):
        sink_on(path).validate(a_task(schema))
    assert not path.exists()


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@pytest.mark.guarantee("SQLite")
@on_a_shared_file
@given(
    names.filter(lambda name: not name.lower().startswith(("sqlite_", "_dbt"))), st.lists(names, min_size=2, max_size=5)
)
@example('"; DROP TABLE people; --', ['"', '"" text, "x', "a'b"])
def test_any_name_is_an_identifier_and_never_sql(
    path: Path, db: sqlite3.Connection, name: str, fields: list[str]
) -> None:
    fields = list({field.encode().lower(): field for field in fields}.values())
    db.execute(f"DROP TABLE IF EXISTS {FENCES}")
    db.execute("DROP TABLE IF EXISTS " + '"' + name.replace('"', '""') + '"')
    task = a_task(pa.schema([(field, pa.string()) for field in fields]), object=name)
    row = {field: f"v{at}" for at, field in enumerate(fields)}
    for mode in (Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY):
        with opened(sink_on(path), replace(task, mode=mode)) as sink:
            assert deliver(sink, task, people(row)) == [DELIVERED]
    assert db.execute("SELECT * FROM " + '"' + name.replace('"', '""') + '"').fetchall() == [tuple(row.values())]


@pytest.mark.parametrize("name", ["", "sqlite_people", "_dbt_reverse_etl_claims", "_DBT_REVERSE_ETL_x", "a\0b"])
def test_a_reserved_object_name_is_refused(name: str, path: Path) -> None:
    with pytest.raises(ConfigurationError):
        sink_on(path).validate(a_task(object=name))


def test_fields_that_differ_only_in_case_are_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError):
        sink_on(path).validate(a_task(pa.schema([("id", pa.int64()), ("ID", pa.int64())])))


STRICT_PEOPLE = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, score REAL CHECK (score >= 0), "
    "UNIQUE (name) ON CONFLICT REPLACE)"
)


@pytest.mark.guarantee("SQLite")
@on_a_shared_file
@given(st.lists(st.sampled_from(["good", "null", "negative", "taken"]), max_size=12))
def test_exactly_the_guilty_rows_are_rejected(path: Path, db: sqlite3.Connection, kinds: list[str]) -> None:
    db.execute("DROP TABLE IF EXISTS people")
    db.execute(STRICT_PEOPLE)
    db.execute("INSERT INTO people VALUES (1000, 'taken', 0)")
    bad: dict[str, dict[str, Any]] = {"null": {"name": None}, "negative": {"score": -1.0}, "taken": {"name": "taken"}}
    rows = [person(at, f"n{at}") | bad.get(kind, {}) for at, kind in enumerate(kinds)]
    with opened(sink_on(path), a_task()) as sink:
        result = deliver(sink, a_task(), people(*rows))
    assert result == [DELIVERED if kind == "good" else REJECTED for kind in kinds]
    kept = [tuple(row.values()) for row, kind in zip(rows, kinds, strict=True) if kind == "good"]
    assert table(db) == [*kept, (1000, "taken", 0.0)]


def test_a_unique_value_may_move_between_rows_of_a_batch(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT UNIQUE, score REAL)")
    db.execute("INSERT INTO people VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)")
    changes = [("update", person(1, "b")), ("update", person(2, "c")), ("delete", {"id": 3})]
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), changes) == [DELIVERED] * 3
    assert [row[:2] for row in table(db)] == [(1, "b"), (2, "c")]


@pytest.mark.guarantee("SQLite")
def test_a_trigger_that_ignores_a_row_is_no_delivery(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    db.execute("INSERT INTO people VALUES (7, 'kept', 0)")
    for event in ("INSERT", "DELETE"):
        row = "NEW" if event == "INSERT" else "OLD"
        when = f"WHEN {row}.id = 7"
        db.execute(f"CREATE TRIGGER t{event} BEFORE {event} ON people {when} BEGIN SELECT RAISE(IGNORE); END")
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1), person(7))) == [DELIVERED, REJECTED]
        assert deliver(sink, a_task(), [("delete", {"id": 1}), ("delete", {"id": 7})]) == [DELIVERED, REJECTED]
    assert table(db) == [(7, "kept", 0.0)]


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
def test_a_null_key_is_rejected_where_the_table_would_take_it(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE people (id INT UNIQUE, name TEXT, score REAL)")
    nobody = {"id": None, "name": CANARY}
    with opened(sink_on(path), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1), nobody, nobody)) == [DELIVERED, REJECTED, REJECTED]
    assert [row[0] for row in table(db)] == [1]
