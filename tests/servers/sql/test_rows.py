"""Rows in every SQL database: which are refused and why, and that no row of another key is touched."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.refusals import NO_ROW, NULL_KEY
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import BLANK_AT_END, OUTSIDE_CHARSET, REQUIRED
from dbt_reverse_etl.sinks.sql.rows import IGNORED, OTHER_KEY, OTHER_SPELLING
from dbt_reverse_etl.testing import batch_of, deliver, opened, outcomes, person
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, FATAL, REJECTED
from tests.support.servers.postgres import CITEXT
from tests.support.sinks.databases import SERVERS, people_of, refused
from tests.support.sinks.people import a_task, people

TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])
UTF8 = "CHARACTER SET utf8mb4"
in_one_database = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(20)
)

# Column, a value that it refuses, the reason. Each row but the first has a good value in all others.
Constraint = tuple[str, Any, str]
CONSTRAINTS: dict[str, list[Constraint]] = {
    "postgres": [
        ("text NOT NULL", None, "not null violation (23502), column c0"),
        ("text CONSTRAINT short CHECK (c1 <> 'bad')", "bad", "check violation (23514), constraint short"),
        ("text CONSTRAINT one UNIQUE", "good0", "unique violation (23505), constraint one"),
        ("varchar(6)", "1234567", "field c3: longer than the 6 characters of its column"),
        ("varchar(6)", "1234   ", "field c4: longer than the 6 characters of its column"),
        ("char(6)", "1234567", "string data right truncation (22001)"),
        ("uuid", "no uuid", "invalid text representation (22P02)"),
        ("mood", "bad", "invalid text representation (22P02)"),
        ("short", "1234   ", "field c8: longer than the 6 characters of its column"),
        ("jsonb", "{", "invalid text representation (22P02)"),
    ],
    "mysql": [
        ("varchar(9) NOT NULL", None, f"field c0: {REQUIRED}"),
        ("varchar(9), CONSTRAINT short CHECK (c1 <> 'bad')", "bad", "check constraint violated (4025), short"),
        ("varchar(9), UNIQUE one (c2)", "good0", "duplicate entry (1062), one"),
        ("varchar(6)", "1234567", "field c3: longer than the 6 characters of its column"),
        ("varchar(6)", "1234   ", "field c4: longer than the 6 characters of its column"),
        ("char(6)", "1234 ", f"field c5: {BLANK_AT_END}"),
        ("tinytext", "é" * 128, "field c6: longer than the 255 bytes of its column"),
        ("varchar(9) CHARACTER SET utf8mb3", "😀", f"field c7: {OUTSIDE_CHARSET}"),
        ("varchar(9) CHARACTER SET ascii", "é", f"field c8: {OUTSIDE_CHARSET}"),
        ("json", "{", "check constraint violated (4025), c9"),
        ("varchar(9) CHECK (c10 <> 'bad')", "bad", "check constraint violated (4025), c10"),
    ],
    "sqlite": [
        ("TEXT NOT NULL", None, "NOT NULL constraint failed: people.c0"),
        ("TEXT CONSTRAINT short CHECK (c1 <> 'bad')", "bad", "CHECK constraint failed: short"),
        ("TEXT UNIQUE ON CONFLICT REPLACE", "good0", "UNIQUE constraint failed: people.c2"),
    ],
    "duckdb": [
        ("VARCHAR NOT NULL", None, "constraint violated (ConstraintException), c0"),
        ("VARCHAR CHECK (c1 <> 'bad')", "bad", "constraint violated (ConstraintException), c1"),
        ("VARCHAR UNIQUE", "good0", "constraint violated (ConstraintException), c2"),
    ],
}
GOOD = {"uuid": "6ecd8c99-4036-403d-bf84-cf8400f67836", "mood": "ok", "jsonb": "1", "json": "1"}


@pytest.mark.guarantee("SQL databases")
def test_only_the_guilty_rows_are_rejected_and_each_reason_names_its_constraint(db: Any) -> None:
    constraints = CONSTRAINTS[db.kind]
    if db.kind == "postgres":
        db.run("CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN short AS varchar(6)")
    columns = ", ".join(f"c{at} {column}" for at, (column, *_) in enumerate(constraints))
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, {columns}) {UTF8 if db.kind == 'mysql' else ''}")
    names = [f"c{at}" for at in range(len(constraints))]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])

    def row(number: int) -> dict[str, Any]:
        good = (GOOD.get(column, f"good{number}") for column, *_ in constraints)
        return {"id": number, **dict(zip(names, good, strict=True))}

    rows, expected = [row(number) for number in range(40)], {}
    for at, (_, bad, reason) in enumerate(constraints):
        rows[3 * at + 1][f"c{at}"] = bad
        expected[3 * at + 1] = reason
    assert refused(db, people(*rows), schema=schema) == expected
    assert {number for (number,) in db.rows("SELECT id FROM people")} == set(range(40)) - expected.keys()


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
@in_one_database
@given(bad=st.sets(st.integers(0, 99), max_size=12), missing=st.sets(st.integers(0, 99), max_size=5))
def test_any_set_of_guilty_rows_is_found_exactly(mode: Mode, bad: set[int], missing: set[int], db: Any) -> None:
    db.run("DROP TABLE IF EXISTS people")
    db.table(people_of(db, "UNIQUE (name, id)", "CHECK (name <> 'bad')"))
    absent = missing if mode is Mode.UPDATE_ONLY else set[int]()
    if mode is Mode.UPDATE_ONLY:
        db.run(f"INSERT INTO people (id) VALUES {', '.join(f'({n})' for n in range(100) if n not in absent)}")
    rows = people(*(person(number, "bad" if number in bad else "good") for number in range(100)))
    found = refused(db, rows, mode=mode)
    assert set(found) == bad | absent
    assert {row for (row,) in db.rows("SELECT id FROM people WHERE name = 'good'")} == set(range(100)) - bad - absent
    assert {row for row, reason in found.items() if reason == NO_ROW} == absent, (
        "nothing is wrong with what changes nothing"
    )


def test_an_update_that_changes_nothing_is_delivered(people_db: Any) -> None:
    assert refused(people_db, people(person(1))) == {}
    updates = [("update", person(1)), ("update", person(2))]
    assert refused(people_db, updates, mode=Mode.UPDATE_ONLY, fence=2) == {1: NO_ROW}


BOSSES = pa.schema([("id", pa.int64()), ("boss", pa.int64())])
BOSS = {
    "postgres": ("foreign key violation (23503), constraint boss_fk",) * 2,
    "mysql": ("no referenced row 2 (1452), boss_fk", "row is referenced 2 (1451), boss_fk"),
    "sqlite": ("FOREIGN KEY constraint failed",) * 2,
}


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
def test_a_foreign_key_is_kept_and_rows_of_a_batch_that_wait_for_each_other_find_each_other(db: Any) -> None:
    fk = "CONSTRAINT boss_fk FOREIGN KEY (boss) REFERENCES people (id)"
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, boss int, {fk})")
    length = 1200 if db.kind == "postgres" else 300  # beyond one search of the server
    chain = [{"id": number, "boss": number + 1 if number < length - 1 else None} for number in range(length)]
    without_boss, referenced = BOSS[db.kind]
    assert refused(db, people(*chain, {"id": -2, "boss": -1}), schema=BOSSES) == {length: without_boss}
    assert refused(db, [("delete", {"id": length - 1})], schema=BOSSES, fence=2) == {0: referenced}
    assert db.rows("SELECT count(*) FROM people") == [(length,)]


LINKS = pa.schema([("id", pa.int64()), ("boss", pa.int64()), ("name", pa.string())])
# Of InnoDB there is no SET DEFAULT.
ACTIONS = [
    (kind, action)
    for kind in (*SERVERS, "sqlite")
    for action in ("CASCADE", "SET NULL", "SET DEFAULT")
    if (kind, action) != ("mysql", "SET DEFAULT")
]


def a_tree(db: Any, action: str, *more: str) -> None:
    """1 <- 3 <- 4, and 2 beside them; the names of the others are theirs, too."""
    name = {"mysql": "varchar(9)", "postgres": "text", "sqlite": "TEXT"}[db.kind]
    # MySQL shows the name of a table as it was written, and may have tables without upper and lower case.
    key = f"CONSTRAINT boss_fk FOREIGN KEY (BOSS) REFERENCES people (id) ON DELETE {action}"
    columns = (f"id int PRIMARY KEY, boss int, name {name} UNIQUE, note {name}", key, *more)
    db.table(f"CREATE TABLE people ({', '.join(columns)}) {UTF8 if db.kind == 'mysql' else ''}")
    db.run("INSERT INTO people VALUES (1, null, 'a', 'n'), (2, null, 'b', 'n'), (3, 1, 'c', 'n'), (4, 3, 'd', 'n')")


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("bad", [False, True], ids=["alone", "beside a refused row"])
@pytest.mark.parametrize(("db", "action"), ACTIONS, indirect=["db"])
def test_a_row_that_leaves_a_deleted_parent_takes_no_row_with_it(action: str, bad: bool, db: Any) -> None:
    a_tree(db, action, "CHECK (name <> 'bad')")
    moves = [("delete", {"id": 1}), ("update", {"id": 3, "boss": 2, "name": "c"})]
    moves += [("insert", {"id": 9, "boss": 2, "name": "bad"})] * bad
    assert set(refused(db, moves, schema=LINKS)) == ({2} if bad else set())
    assert db.rows("SELECT * FROM people ORDER BY id") == [(2, None, "b", "n"), (3, 2, "c", "n"), (4, 3, "d", "n")]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("db", "action"), ACTIONS, indirect=["db"])
def test_a_write_that_the_delete_of_its_parent_undoes_is_refused_and_a_unique_value_may_still_move(
    action: str, db: Any
) -> None:
    a_tree(db, action)
    orphan = ("update", {"id": 3, "boss": 1, "name": "e"})
    moves = [("delete", {"id": 1}), orphan, ("insert", {"id": 5, "boss": 2, "name": "a"})]
    assert refused(db, moves, schema=LINKS) == {1: BOSS[db.kind][0]}
    assert (5, 2, "a", None) in db.rows("SELECT * FROM people")
    assert db.rows("SELECT * FROM people WHERE id = 1 OR boss = 1") == []


@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
def test_the_parent_of_another_table_lets_the_deletes_go_first(db: Any) -> None:
    db.table("CREATE TABLE firms (id int PRIMARY KEY)", "firms")
    db.table(
        "CREATE TABLE people (id int PRIMARY KEY, boss int, FOREIGN KEY (boss) REFERENCES firms (id) ON DELETE CASCADE)"
    )
    db.run("INSERT INTO firms VALUES (1)")
    with opened(db.sink(), a_task(BOSSES)) as sink:
        assert sink._writer.table.cascades == frozenset()
        assert deliver(sink, a_task(BOSSES), people({"id": 1, "boss": 1})) == [DELIVERED]


@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
def test_a_batch_of_bad_rows_is_refused_row_by_row(db: Any) -> None:
    db.table(people_of(db, "CHECK (name <> 'bad')"))
    assert len(refused(db, people(*(person(number, "bad") for number in range(500))))) == 500


@pytest.mark.guarantee("SQL databases")
def test_a_unique_value_may_move_from_one_row_to_another_in_a_batch(db: Any) -> None:
    db.table(people_of(db, "UNIQUE (name)"))
    assert refused(db, people(person(1, "a"), person(2, "b"), person(3, "c"))) == {}
    changes = [
        ("update", person(2, "c")),
        ("delete", {"id": 3}),
        ("update", person(1, "b")),
        ("insert", person(4, "a")),
    ]
    found = refused(db, changes, fence=2)
    if db.kind == "duckdb":  # which looks at the values before the batch: it takes a second run
        found = refused(db, [changes[row] for row in found], fence=3)
    assert found == {}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(1, "b"), (2, "c"), (4, "a")]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
def test_a_row_whose_unique_value_belongs_to_another_key_is_rejected_and_the_other_row_stays(
    mode: Mode, db: Any
) -> None:
    db.table(people_of(db, "UNIQUE (name)"))
    db.run("INSERT INTO people VALUES (1, 'Ada', 9), (2, 'Bob', 9)")
    changes = people(person(9, "Ada"), person(2, "Ada"), person(8, "Cy"))
    expected = {Mode.MIRROR: {0, 1}, Mode.INSERT_ONLY: {0}, Mode.UPDATE_ONLY: {0, 1, 2}}[mode]
    found = refused(db, changes, mode=mode)
    assert set(found) == expected
    assert {row for row, reason in found.items() if reason == NO_ROW} == ({0, 2} if mode is Mode.UPDATE_ONLY else set())
    kept = [(1, "Ada", 9.0), (2, "Bob", 9.0)]
    assert db.rows("SELECT * FROM people ORDER BY id") == [*kept, *([(8, "Cy", 1.5)] if 2 not in expected else [])]


# Tables in which two texts are one, the other text, and whether the key itself is one for both.
SPELLINGS: list[tuple[str, str, str, str, bool]] = [
    ("postgres", "id citext PRIMARY KEY, name text", "", "ADA", True),
    *(
        ("mysql", "id varchar(9) PRIMARY KEY, name varchar(9)", f"CHARACTER SET {charset} COLLATE {charset}_{how}", other, True)
        for charset, how, other in (
            ("utf8mb4", "general_ci", "ADA"),
            ("utf8mb4", "unicode_ci", "Áda"),
            ("utf8mb4", "bin", "Ada "),
            ("utf8mb3", "general_ci", "ada"),
        )
    ),
    ("sqlite", "id TEXT COLLATE NOCASE, name TEXT, UNIQUE (id COLLATE BINARY)", "", "ADA", False),
    ("duckdb", "id varchar COLLATE NOCASE PRIMARY KEY, name varchar", "", "ADA", True),
]  # fmt: skip
spellings = pytest.mark.parametrize(("db", "columns", "end", "other", "merges"), SPELLINGS, indirect=["db"])


def a_table_that_merges(db: Any, columns: str, end: str) -> None:
    if db.kind == "postgres":
        db.run(CITEXT)
    db.table(f"CREATE TABLE people ({columns}) {end}")


@pytest.mark.guarantee("SQL databases")
@spellings
def test_two_keys_that_are_one_to_the_table_never_overwrite_each_other(
    columns: str, end: str, other: str, merges: bool, db: Any
) -> None:
    a_table_that_merges(db, columns, end)
    ada, second, bob = ({"id": "Ada", "name": "first"}, {"id": other, "name": "second"}, {"id": "Bob", "name": "b"})
    # DuckDB holds two that come in one batch.
    first = people(ada, bob) if db.kind == "duckdb" else people(ada, second, bob)
    assert refused(db, first, schema=TEXTS) == ({1: OTHER_SPELLING} if len(first) == 3 and merges else {})
    for fence, mode in enumerate((Mode.MIRROR, Mode.INSERT_ONLY), 2):
        found = refused(db, people(second), schema=TEXTS, mode=mode, fence=fence)
        assert found == ({0: OTHER_SPELLING} if merges else {})
    both = [] if merges else [(other, "second")]
    assert set(db.rows(f"SELECT {text(db)}, name FROM people")) == {("Ada", "first"), ("Bob", "b"), *both}


@pytest.mark.guarantee("SQL databases")
@spellings
def test_a_delete_or_update_of_another_spelling_touches_no_row(
    columns: str, end: str, other: str, merges: bool, db: Any
) -> None:
    a_table_that_merges(db, columns, end)
    ada = {"id": "Ada", "name": "first"}
    assert refused(db, people(ada), schema=TEXTS) == {}
    assert refused(db, [("delete", {"id": other})], schema=TEXTS, fence=2) == {}
    update = [("update", {**ada, "id": other})]
    assert refused(db, update, schema=TEXTS, mode=Mode.UPDATE_ONLY, fence=3) == {0: NO_ROW}
    assert db.rows(f"SELECT {text(db)}, name FROM people") == [("Ada", "first")]
    renamed = [("insert", {"id": other, "name": "renamed"}), ("delete", {"id": "Ada"})]
    assert refused(db, renamed, schema=TEXTS, fence=4) == {}
    assert db.rows(f"SELECT {text(db)}, name FROM people") == [(other, "renamed")]


def text(db: Any) -> str:
    return "id::text" if db.kind == "postgres" else "id"


@pytest.mark.guarantee("SQL databases", "A row that a trigger swallows is not delivered")
@pytest.mark.parametrize("db", ["postgres", "sqlite"], indirect=True)
def test_a_row_or_delete_that_a_trigger_ignores_is_rejected_alone(people_db: Any) -> None:
    for event, row in (("INSERT", "new"), ("DELETE", "old")):
        if people_db.kind == "postgres":
            body = f"BEGIN RETURN CASE WHEN {row}.id <> 7 THEN {row} END; END"
            people_db.run(f"CREATE FUNCTION f{event}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
            does = f"FOR EACH ROW EXECUTE FUNCTION f{event}()"
        else:
            does = f"WHEN {row}.id = 7 BEGIN SELECT RAISE(IGNORE); END"
        people_db.run(f"CREATE TRIGGER t{event} BEFORE {event} ON people {does}")
    assert refused(people_db, people(person(1), person(7), person(8))) == {1: IGNORED}
    people_db.run("DROP TRIGGER tINSERT ON people" if people_db.kind == "postgres" else "DROP TRIGGER tINSERT")
    people_db.run("INSERT INTO people (id) VALUES (7)")
    assert refused(people_db, [("delete", {"id": 1}), ("delete", {"id": 7})], fence=2) == {1: IGNORED}
    assert people_db.rows("SELECT id FROM people ORDER BY id") == [(7,), (8,)]


LOWERS = {
    "mysql": ("SET new.id = lower(new.id)", "BEFORE {} ON people FOR EACH ROW"),
    "sqlite": (
        "BEGIN UPDATE people SET id = lower(new.id) WHERE id = new.id; END",
        "AFTER {} ON people WHEN new.id <> lower(new.id)",
    ),
}


def lowers_keys(db: Any) -> None:
    end = f"{UTF8} COLLATE utf8mb4_bin" if db.kind == "mysql" else ""
    db.table(f"CREATE TABLE people (id varchar(9) PRIMARY KEY, name varchar(9), CHECK (name <> 'bad')) {end}")
    db.run("INSERT INTO people VALUES ('Bob', 'old'), ('ada', 'old'), ('dan', 'old')")
    does, when = LOWERS[db.kind]
    for event in ("INSERT", "UPDATE"):
        db.run(f"CREATE TRIGGER t{event} {when.format(event)} {does}")


IN_THE_WAY = {"mysql": OTHER_SPELLING, "sqlite": "UNIQUE constraint failed: people.id"}


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("bad", [False, True], ids=["alone", "beside a refused row"])
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
@pytest.mark.parametrize("db", ["mysql", "sqlite"], indirect=True)
def test_a_row_that_a_trigger_stores_under_another_key_is_rejected_and_changes_no_other_row(
    mode: Mode, bad: bool, db: Any
) -> None:
    lowers_keys(db)
    first = "Bob" if mode is Mode.UPDATE_ONLY else "Cy"
    rows = people(*({"id": key, "name": "new"} for key in (first, "eve", "dan")))
    rows += people({"id": "ada", "name": "bad"} if mode is not Mode.INSERT_ONLY else {"id": "gus", "name": "bad"}) * bad
    found = refused(db, rows, schema=TEXTS, mode=mode)
    assert set(found) == {0} | ({1} if mode is Mode.UPDATE_ONLY else set()) | ({3} if bad else set())
    assert found[0] == OTHER_KEY
    expected = {"Bob": "old", "ada": "old", "dan": "old" if mode is Mode.INSERT_ONLY else "new"}
    assert dict(db.rows("SELECT id, name FROM people")) == expected | (
        {} if mode is Mode.UPDATE_ONLY else {"eve": "new"}
    )


@pytest.mark.parametrize("db", ["mysql", "sqlite"], indirect=True)
def test_a_key_whose_other_spelling_by_a_trigger_is_there_is_rejected_and_the_row_there_stays(db: Any) -> None:
    lowers_keys(db)
    rows = people(*({"id": key, "name": "new"} for key in ("Ada", "Cy", "cy")))
    assert refused(db, rows, schema=TEXTS) == {0: IN_THE_WAY[db.kind], 1: OTHER_KEY}
    assert set(db.rows("SELECT * FROM people")) >= {("ada", "old"), ("cy", "new")}


RAISES = {
    "postgres": (
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF new.name = 'canary' THEN "
        "RAISE EXCEPTION 'no %', new.name USING CONSTRAINT = new.name; END IF; RETURN new; END$$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()",
        "raise exception (P0001)",
    ),
    "mysql": (
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW IF new.name = 'canary' THEN SET @said = concat('key ''', "
        "new.name, ''''); SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = @said; END IF",
        "refused by a trigger (1644)",
    ),
    "sqlite": (
        "CREATE TRIGGER t BEFORE INSERT ON people WHEN new.name = 'canary' "
        "BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed: canary'); END",
        "a constraint or trigger of the table refused the row",
    ),
}


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
def test_a_trigger_that_raises_rejects_its_row_and_its_text_stays_inside(people_db: Any) -> None:
    trigger, reason = RAISES[people_db.kind]
    people_db.run(trigger)
    assert refused(people_db, people(person(1), person(2, "canary"), person(3))) == {1: reason}


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@pytest.mark.parametrize("does", ["RAISE EXCEPTION USING ERRCODE = 'U0001'", "RAISE SQLSTATE 'ABC01'", "ASSERT false"])
def test_an_sqlstate_that_a_trigger_made_up_refuses_its_row_alone(people_db: Any, does: str) -> None:
    trigger = RAISES["postgres"][0].replace("RAISE EXCEPTION 'no %', new.name USING CONSTRAINT = new.name", does)
    people_db.run(trigger)
    assert [*refused(people_db, people(person(1), person(2, "canary"), person(3)))] == [1]
    assert people_db.rows("SELECT id FROM people ORDER BY id") == [(1,), (3,)]


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@pytest.mark.parametrize("first", ["Ada", "refused"])
@pytest.mark.parametrize(
    ("state", "fails"),
    [
        ("42P01", "EXECUTE 'SELECT FROM nowhere'"),
        ("55000", "PERFORM currval('numbers')"),
        ("0A000", "EXECUTE 'SELECT count(DISTINCT 1) OVER ()'"),
    ],
)
def test_an_error_of_no_row_that_a_trigger_meets_and_does_not_raise_stops_the_sync(
    people_db: Any, state: str, fails: str, first: str
) -> None:
    body = (
        "BEGIN CASE new.name WHEN 'refused' THEN RAISE SQLSTATE 'U0001'; "
        f"WHEN 'canary' THEN {fails}; ELSE NULL; END CASE; RETURN new; END"
    )
    people_db.run("CREATE SEQUENCE numbers; GRANT SELECT ON numbers TO crm_push")
    people_db.run(f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    people_db.run("CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()")
    task = a_task()
    with opened(people_db.sink(), task) as sink:
        delivery = sink.deliver(batch_of(task, people(person(1, first), person(2, "canary"), person(3))))
    assert outcomes(delivery, 3) == [FATAL] * 3
    assert state in delivery.results[0].reason
    assert people_db.rows("SELECT id FROM people") == []


@pytest.mark.guarantee("SQL databases", "A row with a NULL in any part of its key is refused alone")
def test_a_row_with_a_null_in_any_part_of_its_key_would_come_in_again_with_each_repeat_and_is_refused(db: Any) -> None:
    db.table(
        f"CREATE TABLE people (a int, b varchar(9), v varchar(9), UNIQUE (a, b)) {UTF8 if db.kind == 'mysql' else ''}"
    )
    task = a_task(pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.string())]), key=("a", "b"))
    rows = people({"a": 1, "b": "x", "v": "1"}, {"a": 1, "b": None, "v": "2"}, {"a": None, "b": "x", "v": "3"})
    with opened(db.sink(), task) as sink:
        for _ in range(2):
            delivery = sink.deliver(batch_of(task, rows))
            assert outcomes(delivery, 3) == [DELIVERED, REJECTED, REJECTED]
            assert NULL_KEY in delivery.results[0].reason
        assert outcomes(sink.deliver(batch_of(task, [("delete", {"a": 1, "b": None})])), 1) == [REJECTED]
    assert db.rows("SELECT * FROM people") == [(1, "x", "1")]


KEY_TYPES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int64(), "bigint", 7),
    (pa.date32(), "date", date(2024, 2, 29)),
    (pa.string(), "varchar(9)", "x"),
    (pa.binary(), "{bytes}", b"\0\xff"),
    (pa.timestamp("us", "UTC"), "{moment}", datetime(2024, 2, 29, 12, 0, 0, 1, timezone.utc)),
    (pa.decimal128(10, 2), "{decimal}", Decimal("1.50")),
]
WORDS = {
    "postgres": {"bytes": "bytea", "moment": "timestamptz", "decimal": "numeric(10, 2)"},
    "mysql": {"bytes": "varbinary(9)", "moment": "datetime(6)", "decimal": "numeric(10, 2)"},
    "sqlite": {"bytes": "BLOB", "moment": "TEXT", "decimal": "TEXT"},
    "duckdb": {"bytes": "BLOB", "moment": "timestamptz", "decimal": "numeric(10, 2)"},
}


@pytest.mark.guarantee("SQL databases")
def test_a_composite_key_of_any_plain_types_finds_its_row(db: Any) -> None:
    fields = [(f"k{at}", kind) for at, (kind, *_) in enumerate(KEY_TYPES)]
    columns = [f"k{at} {column.format(**WORDS[db.kind])}" for at, (_, column, _) in enumerate(KEY_TYPES)]
    keys = ", ".join(name for name, _ in fields)
    end = UTF8 if db.kind == "mysql" else ""
    db.table(f"CREATE TABLE people ({', '.join(columns)}, v varchar(9), PRIMARY KEY ({keys})) {end}")
    task = a_task(pa.schema([*fields, ("v", pa.string())]), key=tuple(name for name, _ in fields))
    one = {f"k{at}": value for at, (*_, value) in enumerate(KEY_TYPES)}
    rows = [one | {"k0": number, "v": "a"} for number in range(700)]
    with opened(db.sink(), task) as sink:
        assert set(deliver(sink, task, people(*rows))) == {DELIVERED}
        assert deliver(sink, task, [("update", rows[1] | {"v": "b"}), ("delete", rows[2])]) == [DELIVERED] * 2
    assert db.rows("SELECT v, count(*) FROM people GROUP BY v ORDER BY v") == [("a", 698), ("b", 1)]


def test_columns_that_are_not_mapped_keep_their_values_or_get_their_default(db: Any) -> None:
    db.table(people_of(db, "note varchar(9) NOT NULL DEFAULT 'none'"))
    db.run("INSERT INTO people VALUES (1, 'x', 1, 'kept')")
    assert refused(db, people(person(1, "Grace"), person(2))) == {}
    assert db.rows("SELECT name, note FROM people ORDER BY id") == [("Grace", "kept"), ("Ada", "none")]


@pytest.mark.parametrize("db", ["mysql", "sqlite", "duckdb"], indirect=True)
def test_columns_are_found_whatever_their_case(db: Any) -> None:
    db.table(people_of(db).replace("id", "ID", 1).replace("name", "Name"))
    assert refused(db, people(person(1, "ada"))) == {}
    assert refused(db, [("update", person(1, "b")), ("delete", {"id": 7})], fence=2) == {}
    assert db.rows("SELECT * FROM people") == [(1, "b", 1.5)]
