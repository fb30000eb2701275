"""Rows on a real Postgres server: which are refused and why, what their columns may be, and that no other row is touched."""

from __future__ import annotations

import string
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import IGNORED, NO_ROW, OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.postgres.catalog import Name, object_name
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.effort import scaled
from tests.support.servers.postgres import CITEXT, Database, new_database
from tests.support.sinks.people import a_task, people

DELIVERED, REJECTED = Outcome.DELIVERED, Outcome.REJECTED
on_one_database = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(25)
)
TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])


@pytest.fixture
def db() -> Database:
    return new_database()


def reasons(db: Database, rows: Sequence[tuple[str, dict[str, Any]]], **task: Any) -> dict[int, str]:
    """Open, deliver one batch, and say which rows were rejected."""
    the_task = a_task(**task)
    with opened(db.sink(), the_task) as sink:
        delivery = sink.deliver(batch_of(the_task, rows))
    for result in delivery.results:
        assert result.outcome is (Outcome.NO_MATCH if result.reason == NO_ROW else REJECTED)
    return {result.index: result.reason for result in delivery.results}


CONSTRAINTS: list[tuple[str, dict[str, Any], str]] = [
    ("name text NOT NULL", {"name": None}, "not null violation (23502), column name"),
    ("name text CONSTRAINT short CHECK (name <> 'bad')", {"name": "bad"}, "check violation (23514), constraint short"),
    ("name text CONSTRAINT one UNIQUE", {"name": "Ada0"}, "unique violation (23505), constraint one"),
    (
        "name text CONSTRAINT one UNIQUE DEFERRABLE INITIALLY DEFERRED",
        {"name": "Ada0"},
        "unique violation (23505), constraint one",
    ),
    ("name varchar(5)", {"name": "123456"}, "field name: longer than the 5 characters of its column"),
    ("name varchar(5)", {"name": "1234  "}, "field name: longer than the 5 characters of its column"),
    ("name char(5)", {"name": "123456"}, "string data right truncation (22001)"),
    ("name uuid", {"name": "no uuid"}, "invalid text representation (22P02)"),
    ("name mood", {"name": "bad"}, "invalid text representation (22P02)"),
    ("name short", {"name": "1234  "}, "field name: longer than the 5 characters of its column"),
    ("name jsonb", {"name": "{"}, "invalid text representation (22P02)"),
]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("column", "bad", "reason"), CONSTRAINTS, ids=lambda value: str(value)[:40])
def test_only_the_guilty_rows_are_rejected_and_the_reason_names_the_constraint(
    column: str, bad: dict[str, Any], reason: str, db: Database
) -> None:
    good = {"uuid": "6ecd8c99-4036-403d-bf84-cf8400f67836", "mood": "ok", "jsonb": "1"}.get(column.split()[1])
    db.run("CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN short AS varchar(5)")
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, {column}, score float)")
    rows = people(*(person(number, good or f"Ada{number}") for number in range(40)))
    rows[7] = ("insert", person(7) | bad)
    rows[39] = ("insert", person(39) | bad)
    if column.endswith("DEFERRED"):  # the first of the three keeps its name
        assert set(reasons(db, rows).values()) == {reason}
    else:
        assert reasons(db, rows) == {7: reason, 39: reason}
    assert db.rows("SELECT count(*) FROM people") == [(38,)]


@pytest.mark.guarantee("Postgres")
@on_one_database
@given(bad=st.sets(st.integers(0, 99), max_size=12), missing=st.sets(st.integers(0, 99), max_size=5))
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
def test_any_set_of_guilty_rows_is_found_exactly(mode: Mode, bad: set[int], missing: set[int], db: Database) -> None:
    db.table(
        "DROP TABLE IF EXISTS people; CREATE TABLE people (id int PRIMARY KEY, name text CHECK (name <> 'bad'), score float)"
    )
    absent = missing if mode is Mode.UPDATE_ONLY else set[int]()
    if mode is Mode.UPDATE_ONLY:
        db.run(
            f"INSERT INTO people SELECT n FROM generate_series(0, 99) n WHERE n <> ALL (ARRAY{sorted(absent)}::int[])"
        )
    rows = people(*(person(number, "bad" if number in bad else "good") for number in range(100)))
    found = reasons(db, rows, mode=mode)
    assert set(found) == bad | absent
    assert {row for (row,) in db.rows("SELECT id FROM people WHERE name = 'good'")} == set(range(100)) - bad - absent
    assert {found[row] for row in absent} <= {NO_ROW}


def test_a_foreign_key_is_kept_and_a_parent_may_come_later_in_the_batch(db: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("boss", pa.int64())])
    db.table("CREATE TABLE people (id int PRIMARY KEY, boss int REFERENCES people)")
    rows = [("insert", {"id": number, "boss": number + 1 if number < 9 else None}) for number in range(10)]
    assert reasons(db, [*rows, ("insert", {"id": 10, "boss": 99})], schema=schema) == {
        10: "foreign key violation (23503), constraint people_boss_fkey"
    }
    assert reasons(db, [("delete", {"id": 9})], schema=schema, fence=2) == {
        0: "foreign key violation (23503), constraint people_boss_fkey"
    }


@pytest.mark.guarantee("Postgres")
def test_a_unique_value_may_move_from_one_row_to_another_in_a_batch(db: Database) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text UNIQUE, score float)")
    assert reasons(db, people(person(1, "a"), person(2, "b"), person(3, "c"))) == {}
    changes = [("update", person(2, "c")), ("delete", {"id": 3}), ("update", person(1, "b"))]
    assert reasons(db, changes, fence=2) == {}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(1, "b"), (2, "c")]


@pytest.mark.guarantee("Postgres", "A row that a trigger swallows is not delivered")
def test_a_trigger_that_ignores_or_refuses_rows_is_seen(db: Database) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text, score float)")
    db.run(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF new.name = 'secret' THEN "
        "RAISE EXCEPTION 'no %', new.name USING CONSTRAINT = new.name; END IF; "
        "IF new.name = 'gone' THEN RETURN NULL; END IF; RETURN new; END$$;"
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    rows = people(person(1), person(2, "secret"), person(3, "gone"), person(4))
    assert reasons(db, rows) == {1: "raise exception (P0001)", 2: IGNORED}


@pytest.mark.guarantee("Refusals and outages")
def test_an_update_that_a_trigger_ignores_is_rejected_and_one_of_a_missing_row_has_no_match(db: Database) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text CHECK (name <> 'bad'), score float)")
    db.run(
        "INSERT INTO people SELECT n, 'old' FROM generate_series(1, 4) n;"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN CASE WHEN new.name <> 'gone' THEN new END; END$$;"
        "CREATE TRIGGER t BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    names = {1: "new", 2: "gone", 3: "bad", 4: "new", 5: "new", 6: "gone", 7: "bad"}
    rows = [("update", person(number, name)) for number, name in names.items()]
    found = reasons(db, rows, mode=Mode.UPDATE_ONLY)
    assert found.pop(2).startswith("check violation (23514)")
    assert found == {1: IGNORED, 4: NO_ROW, 5: NO_ROW, 6: NO_ROW}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(1, "new"), (2, "old"), (3, "old"), (4, "new")]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY])
def test_two_keys_that_are_one_to_the_table_never_overwrite_each_other(mode: Mode, db: Database) -> None:
    db.run(CITEXT)
    db.table("CREATE TABLE people (id citext PRIMARY KEY, name text)")
    first = people({"id": "Ada", "name": "first"}, {"id": "ADA", "name": "second"}, {"id": "Bob", "name": "b"})
    assert reasons(db, first, schema=TEXTS, mode=mode) == {1: OTHER_SPELLING}
    later = people({"id": "bob", "name": "other"})
    assert reasons(db, later, schema=TEXTS, mode=mode, fence=2) == {0: OTHER_SPELLING}
    assert db.rows("SELECT id::text, name FROM people ORDER BY 1") == [("Ada", "first"), ("Bob", "b")]


@pytest.mark.guarantee("Postgres")
def test_a_delete_or_update_of_another_spelling_touches_no_row(db: Database) -> None:
    db.run(CITEXT)
    db.table("CREATE TABLE people (id citext PRIMARY KEY, name text)")
    ada = {"id": "Ada", "name": "first"}
    assert reasons(db, people(ada), schema=TEXTS) == {}
    assert reasons(db, [("delete", {"id": "ADA"})], schema=TEXTS, fence=2) == {}
    assert reasons(db, [("update", {**ada, "id": "ADA"})], schema=TEXTS, mode=Mode.UPDATE_ONLY, fence=3) == {0: NO_ROW}
    assert db.rows("SELECT id::text, name FROM people") == [("Ada", "first")]
    renamed = [("insert", {"id": "ADA", "name": "renamed"}), ("delete", {"id": "Ada"})]
    assert reasons(db, renamed, schema=TEXTS, fence=4) == {}
    assert db.rows("SELECT id::text, name FROM people") == [("ADA", "renamed")]


def test_a_uuid_key_is_taken_only_in_the_form_in_which_the_table_shows_it(db: Database) -> None:
    db.table("CREATE TABLE people (id uuid PRIMARY KEY, name text)")
    key = "6ecd8c99-4036-403d-bf84-cf8400f67836"
    rows = people({"id": key, "name": "a"}, {"id": key.upper(), "name": "b"}, {"id": "x", "name": "c"})
    assert reasons(db, rows, schema=TEXTS) == {1: OTHER_SPELLING, 2: "invalid text representation (22P02)"}
    assert db.rows("SELECT id::text, name FROM people") == [(key, "a")]


KINDS: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.list_(pa.int64()), "int[]", [[1, None, 3], [], None]),
    (pa.list_(pa.string()), "text[]", [["a,b", '"', "NULL", None, "{}\\"], None]),
    (pa.list_(pa.decimal128(9, 2)), "numeric[]", [[Decimal("1.10"), None]]),
    (pa.decimal128(9, 2), "numeric(12, 4)", [Decimal("-1.10")]),
    (pa.uint64(), "numeric(20)", [2**64 - 1]),
    (pa.int64(), "text", [7]),
    (pa.string(), "varchar(3)", ["abc", "äöü", "a  ", "", None]),
    (pa.list_(pa.string()), "varchar(3)[]", [["abc", None], ["äö "], [], None]),
    (pa.struct([("a", pa.list_(pa.int64()))]), "jsonb", [{"a": [1]}, {"a": None}]),
    (pa.float64(), "float8", [float("inf"), 1e-300]),
]


@pytest.mark.parametrize(("kind", "column", "values"), KINDS, ids=lambda value: str(value)[:20])
def test_values_arrive_exactly_in_columns_of_other_types(
    kind: pa.DataType, column: str, values: list[Any], db: Database
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, v {column})")
    assert reasons(db, people(*({"id": at, "v": value} for at, value in enumerate(values))), schema=schema) == {}
    shown = [str(value) if column == "text" else value for value in values]
    assert [v for (v,) in db.rows("SELECT v FROM people ORDER BY id")] == shown


def test_a_text_that_is_longer_than_its_column_by_blanks_is_refused_and_deletes_no_other_row(db: Database) -> None:
    schema = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string()))])
    db.table("CREATE TABLE people (id varchar(3) PRIMARY KEY, tags varchar(3)[])")
    rows = people({"id": "a  ", "tags": ["äöü"]}, {"id": "b", "tags": [None, "abc "]}, {"id": "a   ", "tags": None})
    said = {row: f"field {name}: longer than the 3 characters of its column" for row, name in ((1, "tags"), (2, "id"))}
    assert reasons(db, rows, schema=schema) == said
    assert reasons(db, [("delete", {"id": "a   "})], schema=schema, fence=2) == {}
    assert db.rows("SELECT id, tags FROM people") == [("a  ", ["äöü"])]


WRONG: list[tuple[pa.DataType, str]] = [
    (pa.decimal128(9, 2), "numeric(9, 1)"),
    (pa.decimal128(9, 2), "float8"),
    (pa.float64(), "real"),
    (pa.float64(), "numeric"),
    (pa.timestamp("us", "UTC"), "timestamp"),
    (pa.timestamp("us"), "timestamp(3)"),
    (pa.string(), "numeric(9, 1)"),
    (pa.string(), "bytea"),
    (pa.string(), "timestamptz"),
    *((pa.string(), column) for column in ("name", '"char"', "tsvector", "point", "bit(3)", "money")),
    *((pa.list_(pa.string()), f"{of}[]") for of in ("numeric(9, 1)", "real", "timestamptz", "int", "name", "short")),
    (pa.int64(), "float8"),
    (pa.list_(pa.float64()), "real[]"),
    (pa.list_(pa.list_(pa.int64())), "int[]"),
    (pa.int64(), "int GENERATED ALWAYS AS IDENTITY"),
    (pa.int64(), "int GENERATED ALWAYS AS (id) STORED"),
]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("kind", "column"), WRONG, ids=str)
def test_a_column_that_would_change_values_or_cannot_be_written_is_refused(
    kind: pa.DataType, column: str, db: Database
) -> None:
    db.run("CREATE DOMAIN short AS varchar(5)")
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, v {column})")
    with pytest.raises(DestinationError, match=r"column v|v is a generated"):
        reasons(db, [], schema=pa.schema([("id", pa.int64()), ("v", kind)]))


@pytest.mark.parametrize(
    ("ddl", "named"),
    [
        ("CREATE TABLE people (id int, name text, score float)", "CREATE UNIQUE INDEX"),
        ("CREATE TABLE people (id int UNIQUE DEFERRABLE, name text, score float)", "CREATE UNIQUE INDEX"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text)", "ADD COLUMN"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text, score float, must int NOT NULL)", "must is NOT NULL"),
        ("CREATE VIEW people AS SELECT 1 AS id, 'x' AS name, 1.0::float AS score", "no table"),
        ("CREATE TABLE other (id int)", "create_object"),
    ],
)
def test_an_object_that_does_not_fit_is_refused_with_the_statement_that_mends_it(
    ddl: str, named: str, db: Database
) -> None:
    db.run(ddl)
    with pytest.raises(DestinationError, match=named):
        reasons(db, [])


def test_identity_generated_and_default_columns_that_are_not_mapped_fill_themselves(db: Database) -> None:
    db.table(
        "CREATE TABLE people (n int GENERATED ALWAYS AS IDENTITY, id int PRIMARY KEY, name text, score float, "
        "up text GENERATED ALWAYS AS (upper(name)) STORED, at date NOT NULL DEFAULT '2024-01-01')"
    )
    assert reasons(db, people(person(1, "ada"))) == {}
    assert db.rows("SELECT n, up, at::text FROM people") == [(1, "ADA", "2024-01-01")]


names = st.text(st.sampled_from(string.ascii_letters + "\"'. $%;{}\\äé"), min_size=1, max_size=20)


@pytest.mark.guarantee("Postgres")
@on_one_database
@given(table=names, fields=st.lists(names, min_size=2, max_size=4, unique=True))
def test_any_name_stays_a_name(table: str, fields: list[str], db: Database) -> None:
    quoted = '"' + table.replace('"', '""') + '"'
    schema = pa.schema([(field, pa.string()) for field in fields])
    task = a_task(schema, object=f"public.{quoted}")
    db.run(f"DROP TABLE IF EXISTS {quoted}")
    db.make(task)
    with opened(db.sink(), task) as sink:
        row = dict.fromkeys(fields, "x")
        bad = row | {fields[0]: "y", fields[1]: "a\0"}
        assert deliver(sink, task, [("insert", row), ("insert", bad)]) == [DELIVERED, REJECTED]
        assert deliver(sink, task, [("delete", row)]) == [DELIVERED]
    assert db.rows(f"SELECT count(*) FROM {quoted}") == [(0,)]


@pytest.mark.guarantee("Postgres")
def test_an_object_is_split_by_the_rules_of_quoting() -> None:
    assert object_name("people") == Name("public", "people")
    assert object_name("crm.People") == Name("crm", "People")
    assert object_name('"weird.name".t') == Name("weird.name", "t")
    assert object_name('a."x""y.z"') == Name("a", 'x"y.z')
    for wrong in ("", ".", "a.", ".a", "a.b.c", '"a', 'a"b', '""', "a\0", "x" * 64):
        assert object_name(wrong) is None


def test_the_record_may_stand_in_a_schema_of_its_own(db: Database) -> None:
    db.run("CREATE SCHEMA state; CREATE SCHEMA crm; GRANT USAGE, CREATE ON SCHEMA state TO crm_push")
    db.run("GRANT USAGE ON SCHEMA crm TO crm_push; CREATE TABLE crm.t (id int PRIMARY KEY)")
    db.run("GRANT ALL ON crm.t TO crm_push")
    task = a_task(pa.schema([("id", pa.int64())]), object="crm.t")
    with opened(db.sink(state_schema="state"), task) as sink:
        assert deliver(sink, task, [("insert", {"id": 1}), ("insert", {"id": 1 << 40})]) == [DELIVERED, REJECTED]
    assert db.rows("SELECT closed, left_out FROM state._dbt_reverse_etl_claims") == [(True, 1)]
    assert db.sink(state_schema="state").missing(next_run(task)) is None


keys = st.tuples(st.integers(0, 3), st.sampled_from(["a", "A", "é", " "]))
states = st.lists(st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=6), min_size=1, max_size=6)
