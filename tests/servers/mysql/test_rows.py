"""Rows on a real MariaDB server: which are refused and why, what their columns may be, and that no other row is touched."""

from __future__ import annotations

import string
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import NO_ROW, OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.mysql.catalog import Column, Name, object_name, quoted
from dbt_reverse_etl.sinks.sql.mysql.session import run
from dbt_reverse_etl.sinks.sql.mysql.values import (
    BLANK_AT_END,
    NOT_FINITE,
    OUTSIDE_CHARSET,
    REQUIRED,
    TOO_LARGE,
    staged,
)
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.effort import scaled
from tests.support.servers.mysql import Database, new_database
from tests.support.sinks.people import a_task, people

DELIVERED, REJECTED = Outcome.DELIVERED, Outcome.REJECTED
on_one_database = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(25)
)
TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])
UTF8 = "CHARACTER SET utf8mb4"


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


CONSTRAINTS: list[tuple[str, Any, str]] = [
    ("name varchar(9) NOT NULL", None, f"field name: {REQUIRED}"),
    ("name varchar(9), CONSTRAINT short CHECK (name <> 'bad')", "bad", "check constraint violated (4025), short"),
    ("name varchar(9) CHECK (name <> 'bad')", "bad", "check constraint violated (4025), name"),
    ("name varchar(9), UNIQUE one (name)", "Ada0", "duplicate entry (1062), one"),
    ("name varchar(5)", "123456", "field name: longer than the 5 characters of its column"),
    ("name varchar(5)", "1234  ", "field name: longer than the 5 characters of its column"),
    ("name char(5)", "1234 ", f"field name: {BLANK_AT_END}"),
    ("name tinytext", "é" * 128, "field name: longer than the 255 bytes of its column"),
    ("name varchar(9) CHARACTER SET utf8mb3", "😀", f"field name: {OUTSIDE_CHARSET}"),
    ("name varchar(9) CHARACTER SET ascii", "é", f"field name: {OUTSIDE_CHARSET}"),
    ("name json", "{", "check constraint violated (4025), name"),
]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("column", "bad", "reason"), CONSTRAINTS, ids=lambda value: str(value)[:40])
def test_only_the_guilty_rows_are_rejected_and_the_reason_names_the_constraint(
    column: str, bad: Any, reason: str, db: Database
) -> None:
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, {column}, score double) {UTF8}")
    rows = people(*(person(number, f'"{number}"' if "json" in column else f"Ada{number}") for number in range(40)))
    rows[7] = ("insert", person(7) | {"name": bad})
    rows[39] = ("insert", person(39) | {"name": bad})
    assert reasons(db, rows) == {7: reason, 39: reason}
    assert db.rows("SELECT count(*) FROM people") == [(38,)]


NUMBERS: list[tuple[pa.DataType, str, list[Any], Any]] = [
    (pa.int64(), "tinyint", [-128, 127], 128),
    (pa.int64(), "tinyint unsigned", [0, 255], -1),
    (pa.int64(), "int unsigned", [0, 2**32 - 1], 2**32),
    (pa.uint64(), "bigint unsigned", [0, 2**64 - 1], None),
    (pa.uint64(), "bigint", [0, 2**63 - 1], 2**63),
    (pa.int64(), "decimal(3, 0)", [999, -999], 1000),
    (pa.decimal128(9, 2), "decimal(5, 3)", [Decimal("-99.99")], Decimal("100.00")),
    (
        pa.timestamp("us", "UTC"),
        "timestamp(6)",
        [datetime(2024, 3, 31, 1, 30, 0, 7, timezone.utc)],
        datetime(1960, 1, 1),
    ),
]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("kind", "column", "good", "bad"), NUMBERS, ids=lambda value: str(value)[:24])
def test_a_value_outside_the_range_of_its_column_refuses_its_row_and_is_never_clipped(
    kind: pa.DataType, column: str, good: list[Any], bad: Any, db: Database
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, v {column} NULL)")
    values = [*good, *([] if bad is None else [bad])]
    said = reasons(db, people(*({"id": at, "v": value} for at, value in enumerate(values))), schema=schema)
    assert set(said) == ({len(good)} if bad is not None else set())
    assert all(reason.endswith(", v") for reason in said.values())
    shown = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in good]
    with db.owner() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("SELECT v FROM people ORDER BY id")
        assert [v for (v,) in cursor.fetchall()] == shown


@pytest.mark.guarantee("MySQL and MariaDB")
@on_one_database
@given(bad=st.sets(st.integers(0, 99), max_size=12), missing=st.sets(st.integers(0, 99), max_size=5))
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
def test_any_set_of_guilty_rows_is_found_exactly(mode: Mode, bad: set[int], missing: set[int], db: Database) -> None:
    db.table(
        "DROP TABLE IF EXISTS people\n"
        "CREATE TABLE people (id int PRIMARY KEY, name varchar(9), score double, UNIQUE (name, id), CHECK (name <> 'bad')) "
        + UTF8
    )
    absent = missing if mode is Mode.UPDATE_ONLY else set[int]()
    if mode is Mode.UPDATE_ONLY:
        kept = ", ".join(f"({number})" for number in range(100) if number not in absent)
        db.run(f"INSERT INTO people (id) VALUES {kept}")
    rows = people(*(person(number, "bad" if number in bad else "good") for number in range(100)))
    found = reasons(db, rows, mode=mode)
    guilty = bad - absent  # nothing is wrong with a row that changes nothing
    assert set(found) == guilty | absent
    assert {row for (row,) in db.rows("SELECT id FROM people WHERE name = 'good'")} == set(range(100)) - bad - absent
    assert {found[row] for row in absent} <= {NO_ROW}


def test_an_update_that_changes_nothing_is_delivered(db: Database) -> None:
    db.make(a_task())
    assert reasons(db, people(person(1))) == {}
    assert reasons(db, [("update", person(1)), ("update", person(2))], mode=Mode.UPDATE_ONLY, fence=2) == {1: NO_ROW}


def test_a_row_that_appears_while_its_update_finds_none_is_sent_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.make(a_task())

    def appears(connection: Any, query: Any) -> Any:
        if "NOT EXISTS" in str(query):
            db.run("INSERT INTO people VALUES (1, 'foreign', 0)")
        return run(connection, query)

    monkeypatch.setattr("dbt_reverse_etl.sinks.sql.mysql.rows.run", appears)
    task = a_task(mode=Mode.UPDATE_ONLY)
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, [("update", person(1))]) == [Outcome.RETRYABLE]
        assert deliver(sink, task, [("update", person(1))]) == [DELIVERED]
    assert db.rows("SELECT name FROM people") == [("Ada",)]


def test_a_foreign_key_is_kept_and_a_parent_may_come_later_in_the_batch(db: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("boss", pa.int64())])
    db.table(
        "CREATE TABLE people (id int PRIMARY KEY, boss int, CONSTRAINT boss_fk FOREIGN KEY (boss) REFERENCES people (id))"
    )
    rows = [("insert", {"id": number, "boss": number + 1 if number < 9 else None}) for number in range(10)]
    said = {10: "no referenced row 2 (1452), boss_fk"}
    assert reasons(db, [*rows, ("insert", {"id": 10, "boss": 99})], schema=schema) == said
    assert reasons(db, [("delete", {"id": 9})], schema=schema, fence=2) == {0: "row is referenced 2 (1451), boss_fk"}


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_unique_value_may_move_from_one_row_to_another_in_a_batch(db: Database) -> None:
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, name varchar(9) UNIQUE, score double) {UTF8}")
    assert reasons(db, people(person(1, "a"), person(2, "b"), person(3, "c"))) == {}
    changes = [
        ("update", person(2, "c")),
        ("delete", {"id": 3}),
        ("update", person(1, "b")),
        ("insert", person(4, "a")),
    ]
    assert reasons(db, changes, fence=2) == {}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(1, "b"), (2, "c"), (4, "a")]


UNIQUES = [
    "UNIQUE other (name), PRIMARY KEY (id)",
    "PRIMARY KEY (n), UNIQUE other (name), UNIQUE k (id)",
]  # the other one is looked at last, and first


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize("indexes", UNIQUES)
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
def test_another_unique_key_never_lets_a_row_overwrite_the_row_of_another_key(
    mode: Mode, indexes: str, db: Database
) -> None:
    ddl = f"CREATE TABLE people (n int AUTO_INCREMENT, id int NOT NULL, name varchar(9) NOT NULL, score double, {indexes}, KEY (n))"
    db.table(f"{ddl} {UTF8}")
    db.run("INSERT INTO people (id, name, score) VALUES (1, 'Ada', 1), (2, 'Bob', 2)")
    before = db.rows("SELECT n, id, name, score FROM people ORDER BY id")
    rows = people(person(9, "Ada", 0.0), person(2, "Ada", 0.0), person(8, "Cy", 0.0))
    said = reasons(db, rows, mode=mode)
    taken = "duplicate entry (1062), other"
    expected = {
        Mode.MIRROR: {0: taken, 1: taken},
        Mode.INSERT_ONLY: {0: taken, 1: taken} if "UNIQUE other (name), UNIQUE k" in indexes else {0: taken},
        Mode.UPDATE_ONLY: {0: NO_ROW, 1: taken, 2: NO_ROW},
    }
    assert said == expected[mode]
    assert db.rows("SELECT n, id, name, score FROM people WHERE id IN (1, 2) ORDER BY id") == before
    assert db.rows("SELECT count(*) FROM people") == [(2 if mode is Mode.UPDATE_ONLY else 3,)]


COLLATIONS = [
    ("utf8mb4_general_ci", "ADA"),
    ("utf8mb4_unicode_ci", "Áda"),
    ("utf8mb4_bin", "Ada "),
    ("utf8mb3_general_ci", "ada"),
]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("collation", "other"), COLLATIONS)
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY])
def test_two_keys_that_are_one_to_the_table_never_overwrite_each_other(
    mode: Mode, collation: str, other: str, db: Database
) -> None:
    charset = collation.partition("_")[0]
    db.table(
        f"CREATE TABLE people (id varchar(9) PRIMARY KEY, name varchar(9)) CHARACTER SET {charset} COLLATE {collation}"
    )
    first = people({"id": "Ada", "name": "first"}, {"id": other, "name": "second"}, {"id": "Bob", "name": "b"})
    assert reasons(db, first, schema=TEXTS, mode=mode) == {1: OTHER_SPELLING}
    assert reasons(db, people({"id": other, "name": "x"}), schema=TEXTS, mode=mode, fence=2) == {0: OTHER_SPELLING}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [("Ada", "first"), ("Bob", "b")]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("collation", "other"), COLLATIONS)
def test_a_delete_or_update_of_another_spelling_touches_no_row(collation: str, other: str, db: Database) -> None:
    charset = collation.partition("_")[0]
    db.table(
        f"CREATE TABLE people (id varchar(9) PRIMARY KEY, name varchar(9)) CHARACTER SET {charset} COLLATE {collation}"
    )
    ada = {"id": "Ada", "name": "first"}
    assert reasons(db, people(ada), schema=TEXTS) == {}
    assert reasons(db, [("delete", {"id": other})], schema=TEXTS, fence=2) == {}
    assert reasons(db, [("update", {**ada, "id": other})], schema=TEXTS, mode=Mode.UPDATE_ONLY, fence=3) == {0: NO_ROW}
    assert db.rows("SELECT id, name FROM people") == [("Ada", "first")]
    renamed = [("insert", {"id": other, "name": "renamed"}), ("delete", {"id": "Ada"})]
    assert reasons(db, renamed, schema=TEXTS, fence=4) == {}
    assert db.rows("SELECT id, name FROM people") == [(other, "renamed")]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_key_that_the_table_cannot_hold_is_refused_and_its_delete_deletes_no_other_row(db: Database) -> None:
    db.table("CREATE TABLE people (id varchar(3) CHARACTER SET ascii PRIMARY KEY, name varchar(9))" + UTF8)
    rows = people(
        {"id": "?", "name": "a"}, {"id": "é", "name": "b"}, {"id": "abc", "name": "c"}, {"id": "abc ", "name": "d"}
    )
    said = {1: f"field id: {OUTSIDE_CHARSET}", 3: "field id: longer than the 3 characters of its column"}
    assert reasons(db, rows, schema=TEXTS) == said
    assert reasons(db, [("delete", {"id": key}) for key in ("é", "😀", "abc ")], schema=TEXTS, fence=2) == {}
    assert db.rows("SELECT id, name FROM people ORDER BY 2") == [("?", "a"), ("abc", "c")]


def test_the_delete_of_a_key_that_its_column_cannot_hold_is_not_even_sent() -> None:
    id_ = Column("id", "varchar", False, 3, 3, None, None, "ascii", "ascii_bin", True, False, False, False)
    task = a_task(pa.schema([("id", pa.string())]))
    rows = batch_of(task, [("delete", {"id": key}) for key in ("é", "abcd", "abc")]).rows
    changes = staged(rows, {"id": id_}, ("id",), packet=2**20)
    assert (changes.writes, changes.deletes, changes.refused) == (0, 1, {})
    assert [bytes(piece) for piece in changes.values] == [b"(2,1,'abc')"]


def test_an_update_that_a_trigger_refuses_by_an_overflow_inserts_nothing(db: Database) -> None:
    db.make(a_task())
    db.run("CREATE TRIGGER t BEFORE UPDATE ON people FOR EACH ROW SET new.score = exp(new.score)")
    assert reasons(db, people(person(1))) == {}
    changes = [("update", person(1, score=1e6)), ("update", person(2, score=1e6))]
    said = reasons(db, changes, mode=Mode.UPDATE_ONLY, fence=2)
    assert said == {0: "out of range (1690)", 1: NO_ROW}
    assert db.rows("SELECT id, score FROM people") == [(1, 1.5)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_an_integer_key_in_a_text_column_is_compared_as_text(db: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    db.table("CREATE TABLE people (id varchar(20) PRIMARY KEY, v int) CHARACTER SET utf8mb4")
    db.run("INSERT INTO people VALUES ('1abc', 0), ('01', 0), ('9007199254740993', 0), ('9007199254740992', 0)")
    changes = [("update", {"id": 1, "v": 1}), ("update", {"id": 2**53 + 1, "v": 1}), ("delete", {"id": 2**53})]
    assert reasons(db, changes, schema=schema) == {}
    assert db.rows("SELECT id, v FROM people ORDER BY 1") == [("01", 0), ("1", 1), ("1abc", 0), ("9007199254740993", 1)]


def test_a_key_of_bytes_is_exact(db: Database) -> None:
    schema = pa.schema([("id", pa.binary()), ("v", pa.int64())])
    db.table("CREATE TABLE people (id binary(2) PRIMARY KEY, v int)")
    rows = people({"id": b"a\0", "v": 1}, {"id": b"a", "v": 2}, {"id": b"'\\", "v": 3})
    assert reasons(db, rows, schema=schema) == {1: "field id: not as long as the 2 bytes of its column"}
    assert reasons(db, [("delete", {"id": b"a"}), ("delete", {"id": b"'\\"})], schema=schema, fence=2) == {}
    assert db.rows("SELECT id, v FROM people") == [(b"a\0", 1)]


def test_zero_is_a_key_of_an_auto_increment_column_as_any_other(db: Database) -> None:
    db.table(f"CREATE TABLE people (id int AUTO_INCREMENT PRIMARY KEY, name varchar(9), score double) {UTF8}")
    assert reasons(db, people(person(5), person(0))) == {}
    assert db.rows("SELECT id FROM people ORDER BY 1") == [(0,), (5,)]


def test_nan_and_infinity_refuse_their_row(db: Database) -> None:
    db.make(a_task())
    rows = people(
        person(1, score=float("nan")), person(2, score=-0.0), person(3, score=float("-inf")), person(4, score=1e300)
    )
    assert reasons(db, rows) == dict.fromkeys((0, 2), f"field score: {NOT_FINITE}")
    assert db.rows("SELECT id, score FROM people ORDER BY id") == [(2, 0.0), (4, 1e300)]


def test_a_row_that_is_larger_than_a_packet_of_the_server_is_refused_and_the_rest_goes_in_several(db: Database) -> None:
    db.make(a_task())
    rows = people(*(person(number, "'" * 700_000) for number in range(14)), person(14, "x" * 17_000_000))
    assert reasons(db, rows) == {14: TOO_LARGE}
    assert db.rows("SELECT count(*), min(length(name)) FROM people") == [(14, 700_000)]


KINDS: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.decimal128(9, 2), "decimal(12, 4)", [Decimal("-1.1000")]),
    (pa.decimal128(38, 30), "decimal(38, 30)", [Decimal("12345678.0123456789012345678901234567")]),
    (pa.decimal128(9, 2), "varchar(20)", [Decimal("-0.10")]),
    (pa.int64(), "text", [-7]),
    (pa.int32(), "double", [2**31 - 1]),
    (pa.string(), "varchar(3)", ["abc", "äöü", "a  ", "", None, "\\", "'", "\0\x1a%", "😀"]),
    (pa.string(), "char(3)", ["abc", " a", None]),
    (pa.float32(), "float", [0.5, -3.4028234663852886e38]),
    (pa.float64(), "double", [5e-324, 1e-300, 1.7976931348623157e308, 0.1, 123456789012345680.0, 1 / 3]),
    (pa.bool_(), "tinyint", [True, False]),
    (pa.date32(), "datetime", [date(2024, 2, 29)]),
    (pa.binary(), "varbinary(9)", [b"", b"\0\\'\xff", None]),
    (pa.null(), "int", [None]),
    (pa.dictionary(pa.int8(), pa.string()), "text", ["a", None]),
]


@pytest.mark.parametrize(("kind", "column", "values"), KINDS, ids=lambda value: str(value)[:20])
def test_values_arrive_exactly_in_columns_of_other_types(
    kind: pa.DataType, column: str, values: list[Any], db: Database
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, v {column}) {UTF8}")
    assert reasons(db, people(*({"id": at, "v": value} for at, value in enumerate(values))), schema=schema) == {}
    shown = [str(value) if column in ("text", "varchar(20)") and value is not None else value for value in values]
    shown = [datetime(v.year, v.month, v.day) if isinstance(v, date) else v for v in shown]
    exact = "v + 0e0" if column in ("float", "double") else "v"
    assert [v for (v,) in db.rows(f"SELECT {exact} FROM people ORDER BY id")] == shown


WRONG: list[tuple[pa.DataType, str]] = [
    (pa.decimal128(9, 2), "decimal(9, 1)"),
    (pa.decimal128(9, 2), "double"),
    (pa.float64(), "float"),
    (pa.float64(), "double(9, 2)"),
    (pa.float64(), "decimal(9, 2)"),
    (pa.timestamp("us", "UTC"), "timestamp(3)"),
    (pa.timestamp("us"), "datetime"),
    (pa.timestamp("us"), "timestamp(6)"),
    (pa.time64("us"), "time"),
    (pa.int64(), "double"),
    (pa.int64(), "bit(9)"),
    (pa.int64(), "year"),
    (pa.bool_(), "int"),
    (pa.list_(pa.int64()), "char(9)"),
    (pa.binary(), "text"),
    *(
        (pa.string(), column)
        for column in ("int", "blob", "datetime(6)", "enum('a')", "set('a')", "varchar(9) CHARACTER SET latin1")
    ),
    (pa.int64(), "int AS (id) STORED"),
    (pa.int64(), "int AS (id) VIRTUAL"),
    (pa.int64(), "int AUTO_INCREMENT UNIQUE"),
]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("kind", "column"), WRONG, ids=str)
def test_a_column_that_would_change_values_or_cannot_be_written_is_refused(
    kind: pa.DataType, column: str, db: Database
) -> None:
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, v {column}) {UTF8}")
    with pytest.raises(DestinationError, match=r"column v|v is "):
        reasons(db, [], schema=pa.schema([("id", pa.int64()), ("v", kind)]))


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(
    ("ddl", "named"),
    [
        ("CREATE TABLE people (id int, name text, score double) ENGINE=InnoDB CHARACTER SET utf8mb4", "ADD UNIQUE"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text CHARACTER SET utf8mb4)", "ADD COLUMN"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text, score double, must int NOT NULL)", "must is NOT NULL"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text, score double) ENGINE=MyISAM", "ENGINE=InnoDB"),
        ("CREATE TABLE people (id int PRIMARY KEY, name text, score double) ENGINE=Aria", "ENGINE=InnoDB"),
        ("CREATE VIEW people AS SELECT 1 AS id, 'x' AS name, 1.0e0 AS score", "no table"),
    ],
)
def test_an_object_that_does_not_fit_is_refused_with_the_statement_that_mends_it(
    ddl: str, named: str, db: Database
) -> None:
    db.table(ddl)
    with pytest.raises(DestinationError, match=named):
        reasons(db, [])


def test_a_missing_table_is_named_with_its_ddl(db: Database) -> None:
    with pytest.raises(DestinationError, match=r"CREATE TABLE `crm_\d+`.`people`.*create_object"):
        reasons(db, [])


@pytest.mark.parametrize("key", ["UNIQUE (id(2))", "UNIQUE (id) USING HASH"])
def test_a_key_index_over_a_prefix_or_a_hash_is_not_enough(key: str, db: Database) -> None:
    length = "(2000)" if "HASH" in key else "(9)"
    db.table(f"CREATE TABLE people (id varchar{length} NOT NULL, name text, {key}) {UTF8}")
    with pytest.raises(DestinationError, match="no unique index over id"):
        reasons(db, [], schema=TEXTS)


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_record_without_transactions_is_refused(db: Database) -> None:
    db.make(a_task())
    db.run("ALTER TABLE _dbt_reverse_etl_claims ENGINE=MyISAM")
    with pytest.raises(DestinationError, match="_dbt_reverse_etl_claims without transactions"):
        reasons(db, [])


def test_identity_generated_and_default_columns_that_are_not_mapped_fill_themselves(db: Database) -> None:
    db.table(
        "CREATE TABLE people (n int AUTO_INCREMENT UNIQUE, id int PRIMARY KEY, name varchar(9), score double, "
        f"up varchar(9) AS (upper(name)) STORED, at date NOT NULL DEFAULT '2024-01-01') {UTF8}"
    )
    assert reasons(db, people(person(1, "ada"))) == {}
    assert db.rows("SELECT n, up, at FROM people") == [(1, "ADA", date(2024, 1, 1))]


def test_columns_are_found_whatever_their_case(db: Database) -> None:
    db.table(f"CREATE TABLE people (ID int PRIMARY KEY, Name varchar(9), SCORE double) {UTF8}")
    assert reasons(db, [*people(person(1, "ada"))]) == {}
    assert reasons(db, [("update", person(1, "b")), ("delete", {"id": 7})], fence=2) == {}
    assert db.rows("SELECT * FROM people") == [(1, "b", 1.5)]


def test_a_trigger_that_refuses_rows_is_seen_and_its_text_is_not_shown(db: Database) -> None:
    db.make(a_task())
    db.run(
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW IF new.name = 'secret' THEN SET @said = concat('key ''', "
        "new.name, ''''); SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = @said; END IF"
    )
    assert reasons(db, people(person(1), person(2, "secret"), person(3))) == {1: "refused by a trigger (1644)"}


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"object": "a.b.c"}, "object"),
    ({"object": "_dbt_reverse_etl_fences"}, "reserved"),
    ({"schema": pa.schema([("id", pa.int64()), ("ID", pa.int64())])}, "upper and lower case"),
    ({"schema": pa.schema([("id", pa.int64()), ("x" * 65, pa.int64())])}, "1 to 64 characters"),
    ({"schema": pa.schema([("id", pa.decimal256(70, 2))])}, "MySQL can hold exactly"),
    ({"schema": pa.schema([("id", pa.duration("s"))])}, "MySQL can hold exactly"),
    ({"schema": pa.schema([("id", pa.list_(pa.int64()))])}, "nested type"),
]


@pytest.mark.parametrize(("changes", "said"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_can_never_work_is_refused_before_anything_is_sent(
    changes: dict[str, Any], said: str, db: Database
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        db.sink().validate(a_task(**changes))


names = st.text(st.sampled_from(string.ascii_letters + "`\"'. $%;{}\\äé"), min_size=1, max_size=20).filter(
    lambda name: not name.endswith(" ")
)


@pytest.mark.guarantee("MySQL and MariaDB")
@on_one_database
@given(table=names, fields=st.lists(names, min_size=2, max_size=4, unique_by=str.lower))
def test_any_name_stays_a_name(table: str, fields: list[str], db: Database) -> None:
    schema = pa.schema([(field, pa.string()) for field in fields])
    task = a_task(schema, object=f"{quoted(db.name)}.{quoted(table)}")
    db.run(f"DROP TABLE IF EXISTS {quoted(table)}")
    db.make(task)
    with opened(db.sink(), task) as sink:
        row = dict.fromkeys(fields, "x")
        bad = row | {fields[0]: "y" * 256}
        assert deliver(sink, task, [("insert", row), ("insert", bad)]) == [DELIVERED, REJECTED]
        assert deliver(sink, task, [("delete", row)]) == [DELIVERED]
    assert db.rows(f"SELECT count(*) FROM {quoted(table)}") == [(0,)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_an_object_is_split_by_the_rules_of_quoting() -> None:
    assert object_name("people", "d") == Name("d", "people")
    assert object_name("crm.People", "d") == Name("crm", "People")
    assert object_name("`weird.name`.t", "d") == Name("weird.name", "t")
    assert object_name("a.`x``y.z`", "d") == Name("a", "x`y.z")
    for wrong in ("", ".", "a.", ".a", "a.b.c", "`a", "a`b", "``", "a\0", "x" * 65, "a ", "😀"):
        assert object_name(wrong, "d") is None


def test_the_record_may_stand_in_a_database_of_its_own_and_the_object_in_another(db: Database) -> None:
    state, crm = new_database(), new_database()
    task = a_task(object=f"{crm.name}.people")
    crm.make(task)
    with opened(db.sink(state_database=state.name), task) as sink:
        assert deliver(sink, task, people(person(1), person(2, score=float("nan")))) == [DELIVERED, REJECTED]
    assert state.rows("SELECT closed, left_out FROM _dbt_reverse_etl_claims") == [(1, 1)]
    assert crm.rows("SELECT id FROM people") == [(1,)]
    assert db.sink(state_database=state.name).missing(next_run(task)) is None


keys = st.tuples(st.integers(0, 3), st.sampled_from(["a", "A", "é", " "]))
states = st.lists(st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=6), min_size=1, max_size=6)


BOSSES = pa.schema([("id", pa.int64()), ("boss", pa.int64())])


def refused(db: Database, rows: Sequence[dict[str, int | None]]) -> list[int]:
    db.table("CREATE TABLE people (id int PRIMARY KEY, boss int, FOREIGN KEY (boss) REFERENCES people (id))")
    return sorted(reasons(db, people(*rows), schema=BOSSES))


def test_a_batch_of_bad_rows_is_refused_row_by_row(db: Database) -> None:
    assert refused(db, [{"id": number, "boss": -1} for number in range(500)]) == list(range(500))


def test_rows_that_wait_for_each_other_find_each_other(db: Database) -> None:
    chain = [{"id": number, "boss": number + 1 if number < 299 else None} for number in range(300)]
    assert refused(db, [*chain, {"id": -2, "boss": -1}]) == [300]
    assert db.rows("SELECT count(*) FROM people") == [(300,)]
