"""What only MySQL and MariaDB have: guarded upserts, columns that cut or convert, packets, defaults of the server."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.sinks.refusals import NO_ROW
from dbt_reverse_etl.sinks.sql.checks import table_problems
from dbt_reverse_etl.sinks.sql.dialects.mysql.kinds import NOT_FINITE, TEXT
from dbt_reverse_etl.sinks.sql.dialects.mysql.rows import TOO_LARGE, MysqlWriter
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import READ_ONLY, connect, failure, run
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import OUTSIDE_CHARSET, MysqlDialect
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import MysqlColumn, MysqlTable
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings
from dbt_reverse_etl.sinks.sql.table import Name
from dbt_reverse_etl.testing import batch_of, deliver, opened, person
from tests.support.outcomes import DELIVERED, REJECTED, RETRYABLE
from tests.support.servers.mysql import Database, new_database
from tests.support.sinks.databases import refused
from tests.support.sinks.people import a_task, people

TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])
UTF8 = "CHARACTER SET utf8mb4"
DIALECT = MysqlDialect(MysqlSettings(host="/nowhere", database="d", user="u"))


@pytest.fixture
def db() -> Database:
    return new_database()


def test_a_row_that_appears_while_its_update_finds_none_is_updated_after_all(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.make(a_task())

    rows = ["(1, 'foreign', 0)"]

    def appears(connection: Any, query: Any, values: Any = None) -> Any:
        if "NOT EXISTS" in str(query) and rows:
            db.run(f"INSERT INTO people VALUES {rows.pop()}")
        return run(connection, query, values)

    monkeypatch.setattr("dbt_reverse_etl.sinks.sql.dialects.mysql.session.run", appears)
    task = a_task(mode=Mode.UPDATE_ONLY)
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, [("update", person(1))]) == [DELIVERED]
    assert db.rows("SELECT name FROM people") == [("Ada",)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_row_that_appears_while_refused_rows_are_searched_is_not_called_delivered(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, name varchar(9), score double CHECK (score < 5)) {UTF8}")
    db.run("INSERT INTO people VALUES (2, 'Bob', 2)")
    rows = ["(1, 'foreign', 0)"]

    def appears(connection: Any, query: Any, values: Any = None) -> Any:
        if "NOT EXISTS" in str(query) and rows:
            db.run(f"INSERT INTO people VALUES {rows.pop()}")
        return run(connection, query, values)

    monkeypatch.setattr("dbt_reverse_etl.sinks.sql.dialects.mysql.session.run", appears)
    batch = [("update", person(1, "Ada", 0.0)), ("update", person(2, "Bobby", 9.0))]
    with opened(db.sink(), task := a_task(mode=Mode.UPDATE_ONLY)) as sink:
        assert deliver(sink, task, batch) == [RETRYABLE] * 2
        assert deliver(sink, task, batch) == [DELIVERED, REJECTED]
    assert db.rows("SELECT name FROM people ORDER BY id") == [("Ada",), ("Bob",)]


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
    said = refused(db, rows, mode=mode)
    taken = "duplicate entry (1062), other"
    expected = {
        Mode.MIRROR: {0: taken, 1: taken},
        Mode.INSERT_ONLY: {0: taken, 1: taken} if "UNIQUE other (name), UNIQUE k" in indexes else {0: taken},
        Mode.UPDATE_ONLY: {0: NO_ROW, 1: taken, 2: NO_ROW},
    }
    assert said == expected[mode]
    assert db.rows("SELECT n, id, name, score FROM people WHERE id IN (1, 2) ORDER BY id") == before
    assert db.rows("SELECT count(*) FROM people") == [(2 if mode is Mode.UPDATE_ONLY else 3,)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_key_that_the_table_cannot_hold_is_refused_and_its_delete_deletes_no_other_row(db: Database) -> None:
    db.table("CREATE TABLE people (id varchar(3) CHARACTER SET ascii PRIMARY KEY, name varchar(9))" + UTF8)
    rows = people(
        {"id": "?", "name": "a"}, {"id": "é", "name": "b"}, {"id": "abc", "name": "c"}, {"id": "abc ", "name": "d"}
    )
    said = {1: f"field id: {OUTSIDE_CHARSET}", 3: "field id: longer than the 3 characters of its column"}
    assert refused(db, rows, schema=TEXTS) == said
    assert refused(db, [("delete", {"id": key}) for key in ("é", "😀", "abc ")], schema=TEXTS, fence=2) == {}
    assert db.rows("SELECT id, name FROM people ORDER BY 2") == [("?", "a"), ("abc", "c")]


def test_the_delete_of_a_key_that_its_column_cannot_hold_is_not_even_sent() -> None:
    id_ = MysqlColumn("id", "varchar", True, False, True, False, 3, 3, None, None, "ascii", "ascii_bin")
    task = a_task(pa.schema([("id", pa.string())]))
    rows = batch_of(task, [("delete", {"id": key}) for key in ("é", "abcd", "abc")]).rows
    writer = MysqlWriter(DIALECT, task, Name("d", "people", "`"), MysqlTable({"id": id_}, set()), 2**20)
    changes = writer.changes(rows)
    assert (changes.writes, changes.deletes, changes.refused) == (0, 1, {})
    assert [bytes(piece) for piece in changes.data] == [b"(2,1,'abc'),"]


def test_an_update_that_a_trigger_refuses_by_an_overflow_inserts_nothing(db: Database) -> None:
    db.make(a_task())
    db.run("CREATE TRIGGER t BEFORE UPDATE ON people FOR EACH ROW SET new.score = exp(new.score)")
    assert refused(db, people(person(1))) == {}
    changes = [("update", person(1, score=1e6)), ("update", person(2, score=1e6))]
    said = refused(db, changes, mode=Mode.UPDATE_ONLY, fence=2)
    assert said == {0: "out of range (1690)", 1: NO_ROW}
    assert db.rows("SELECT id, score FROM people") == [(1, 1.5)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_trigger_that_counts_a_key_up_overwrites_no_row_of_the_next_one(db: Database) -> None:
    db.make(a_task())
    db.run("INSERT INTO people VALUES (5, 'five', 5), (6, 'six', 6)")
    db.run("CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW SET new.id = new.id + 1")
    assert set(refused(db, people(person(5), person(8)))) == {0, 1}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(5, "five"), (6, "six")]


@pytest.mark.parametrize("of", ["people", "*"])
@pytest.mark.parametrize("event", [None, "BEFORE INSERT", "BEFORE UPDATE", "AFTER INSERT", "BEFORE DELETE"])
def test_whoever_may_see_triggers_pays_for_no_question_where_none_may_change_a_key(
    event: str | None, of: str, db: Database
) -> None:
    db.make(a_task())
    db.run("CREATE TABLE others (id int)")
    if event:
        db.run(f"CREATE TRIGGER t {event} ON people FOR EACH ROW SET @x = 1")
    with opened(db.sink(), a_task()) as sink:
        assert sink._writer.table.rewrites, "without the right TRIGGER, none may be there or be hidden"
    db.run(f"GRANT TRIGGER ON {db.name}.others TO crm_push")
    with opened(db.sink(), a_task(fence=2)) as sink:
        assert sink._writer.table.rewrites, "the right on another table"
    db.run(f"GRANT TRIGGER ON {db.name}.{of} TO crm_push")
    with opened(db.sink(), a_task(fence=3)) as sink:
        assert sink._writer.table.rewrites is (event in ("BEFORE INSERT", "BEFORE UPDATE"))


@pytest.mark.guarantee("MySQL and MariaDB")
def test_an_integer_key_in_a_text_column_is_compared_as_text(db: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    db.table("CREATE TABLE people (id varchar(20) PRIMARY KEY, v int) CHARACTER SET utf8mb4")
    db.run("INSERT INTO people VALUES ('1abc', 0), ('01', 0), ('9007199254740993', 0), ('9007199254740992', 0)")
    changes = [("update", {"id": 1, "v": 1}), ("update", {"id": 2**53 + 1, "v": 1}), ("delete", {"id": 2**53})]
    assert refused(db, changes, schema=schema) == {}
    assert db.rows("SELECT id, v FROM people ORDER BY 1") == [("01", 0), ("1", 1), ("1abc", 0), ("9007199254740993", 1)]


def test_a_key_of_bytes_is_exact(db: Database) -> None:
    schema = pa.schema([("id", pa.binary()), ("v", pa.int64())])
    db.table("CREATE TABLE people (id binary(2) PRIMARY KEY, v int)")
    rows = people({"id": b"a\0", "v": 1}, {"id": b"a", "v": 2}, {"id": b"'\\", "v": 3})
    assert refused(db, rows, schema=schema) == {1: "field id: not as long as the 2 bytes of its column"}
    assert refused(db, [("delete", {"id": b"a"}), ("delete", {"id": b"'\\"})], schema=schema, fence=2) == {}
    assert db.rows("SELECT id, v FROM people") == [(b"a\0", 1)]


def test_zero_is_a_key_of_an_auto_increment_column_as_any_other(db: Database) -> None:
    db.table(f"CREATE TABLE people (id int AUTO_INCREMENT PRIMARY KEY, name varchar(9), score double) {UTF8}")
    assert refused(db, people(person(5), person(0))) == {}
    assert db.rows("SELECT id FROM people ORDER BY 1") == [(0,), (5,)]


def test_nan_and_infinity_refuse_their_row(db: Database) -> None:
    db.make(a_task())
    rows = people(
        person(1, score=float("nan")), person(2, score=-0.0), person(3, score=float("-inf")), person(4, score=1e300)
    )
    assert refused(db, rows) == dict.fromkeys((0, 2), f"field score: {NOT_FINITE}")
    assert db.rows("SELECT id, score FROM people ORDER BY id") == [(2, 0.0), (4, 1e300)]


def test_a_row_that_is_larger_than_a_packet_of_the_server_is_refused_and_the_rest_goes_in_several(db: Database) -> None:
    db.make(a_task())
    rows = people(*(person(number, "'" * 700_000) for number in range(14)), person(14, "x" * 17_000_000))
    assert refused(db, rows) == {14: TOO_LARGE}
    assert db.rows("SELECT count(*), min(length(name)) FROM people") == [(14, 700_000)]


def test_a_row_that_is_too_large_for_its_page_is_refused_alone(db: Database) -> None:
    names = [f"c{number}" for number in range(40)]
    # Texts of at most 255 bytes stay in the row; strict InnoDB would not make such a table.
    columns = ", ".join(f"{name} varchar(255) CHARACTER SET ascii" for name in names)
    db.table(f"SET SESSION innodb_strict_mode = 0\nCREATE TABLE people (id bigint PRIMARY KEY, {columns})")
    rows = [{"id": number} | dict.fromkeys(names, "x" * size) for number, size in enumerate((9, 255, 9))]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    assert refused(db, people(*rows), schema=schema) == {1: "the row is too large for its table (1118)"}
    assert db.rows("SELECT id FROM people ORDER BY 1") == [(0,), (2,)]


@pytest.mark.parametrize("key", ["UNIQUE (id(2))", "UNIQUE (id) USING HASH"])
def test_a_key_index_over_a_prefix_or_a_hash_is_not_enough(key: str, db: Database) -> None:
    length = "(2000)" if "HASH" in key else "(9)"
    db.table(f"CREATE TABLE people (id varchar{length} NOT NULL, name text, {key}) {UTF8}")
    with pytest.raises(DestinationError, match="no unique index over id"):
        refused(db, [], schema=TEXTS)


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_record_without_transactions_is_refused(db: Database) -> None:
    db.make(a_task())
    db.run("ALTER TABLE _dbt_reverse_etl_claims ENGINE=MyISAM")
    with pytest.raises(DestinationError, match="_dbt_reverse_etl_claims without transactions"):
        refused(db, [])


@pytest.mark.guarantee("MySQL and MariaDB")
def test_nothing_of_the_environment_and_of_option_files_changes_where_and_how_we_connect(
    people_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".my.cnf").write_text("[client]\nhost=203.0.113.1\nuser=root\npassword=wrong\nssl-ca=/none\n")
    elsewhere = {"HOME": str(tmp_path), "MYSQL_HOME": str(tmp_path), "MYSQL_HOST": "203.0.113.1", "MYSQL_PWD": "wrong"}
    elsewhere |= {"MYSQL_TCP_PORT": "1", "MYSQL_UNIX_PORT": "/none", "USER": "root", "LOGNAME": "root"}
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "zwölf 😀"))) == [DELIVERED]
        assert run(sink._connected(), "SELECT CURRENT_USER()").fetchone() == ("crm_push@%",)
    assert people_db.rows("SELECT name FROM people") == [("zwölf 😀",)]
    with pytest.raises(pymysql.err.OperationalError):
        connect(MysqlSettings.model_validate(people_db.settings(password=None)))


DEFAULTS = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
    "time_zone": "'-07:00'",
    "autocommit": "0",
    "completion_type": "2",
    "sql_safe_updates": "1",
    "foreign_key_checks": "0",
    "sql_quote_show_create": "0",
    "transaction_isolation": "'SERIALIZABLE'",
}


@pytest.mark.guarantee("MySQL and MariaDB")
def test_no_default_of_the_server_changes_what_a_batch_does(people_db: Database) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("boss", pa.int64())]
    )
    people_db.table(
        "CREATE TABLE staff (id int PRIMARY KEY, name text, at timestamp(6) NULL, boss int, "
        "FOREIGN KEY (boss) REFERENCES staff (id)) CHARACTER SET utf8mb4",
        "staff",
    )
    task, noon = a_task(schema, object="staff"), datetime(2024, 7, 1, 12, tzinfo=timezone.utc)
    row = {"id": 0, "name": 'it\'s \\ "x"', "at": noon, "boss": None}
    known = {"transaction_isolation": "tx_isolation"}  # until MariaDB 11
    before = {name: people_db.rows(f"SELECT @@GLOBAL.{known.get(name, name)}")[0][0] for name in DEFAULTS}
    try:
        for name, value in DEFAULTS.items():
            people_db.run(f"SET GLOBAL {known.get(name, name)} = {value}")
        with opened(people_db.sink(), task) as sink:
            for number in range(2):
                assert deliver(sink, task, people(row | {"id": number})) == [DELIVERED]
            assert deliver(sink, task, people(row | {"id": 2, "boss": 99})) == [REJECTED]
            assert deliver(sink, task, [("delete", {"id": 0})]) == [DELIVERED]
            assert "staff_ibfk_1" in sink._writer.table.names
    finally:
        for name, value in before.items():
            people_db.run(f"SET GLOBAL {known.get(name, name)} = {value!r}")
    instant = "UNIX_TIMESTAMP(at)"
    assert people_db.rows(f"SELECT id, name, {instant} FROM staff") == [(1, row["name"], noon.timestamp())]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_server_that_became_read_only_is_left_and_the_host_is_looked_up_again(people_db: Database) -> None:
    task = a_task()
    with opened(people_db.sink(), task) as sink:
        first = sink._connected().thread_id()
        people_db.run("SET GLOBAL read_only = 1")
        try:
            assert deliver(sink, task, people(person(1))) == [RETRYABLE]
        finally:
            people_db.run("SET GLOBAL read_only = 0")
        assert deliver(sink, task, people(person(1))) == [DELIVERED]
        assert sink._connected().thread_id() != first


DOUBLE, INTEGER = pa.float64(), pa.int64()
NESTED = [
    (pa.list_(DOUBLE), True),
    (pa.list_(pa.float32()), True),
    (pa.map_(pa.string(), DOUBLE), True),
    (pa.struct([("a", pa.list_(pa.struct([("b", DOUBLE)])))]), True),
    (pa.list_(INTEGER), False),
    (pa.map_(pa.string(), pa.decimal128(9, 2)), False),
    (pa.struct([("a", pa.string())]), False),
]


@pytest.mark.guarantee(
    "MySQL and MariaDB", "A nested value with a double never goes into MySQL's `json`, which changes it"
)
@pytest.mark.parametrize(("kind", "is_changed"), NESTED)
def test_a_nested_type_with_a_double_is_kept_from_the_json_of_mysql(kind: pa.DataType, is_changed: bool) -> None:
    assert DIALECT.column_type(kind) == (TEXT if is_changed else "json")
    key = MysqlColumn("id", "bigint", False, False, True, False, None, None, None, 0, None, None)
    json = MysqlColumn("data", "json", False, True, True, False, None, None, None, None, None, None)
    table = MysqlTable({"id": key, "data": json}, {frozenset({"id"})})
    task = a_task(pa.schema([("id", INTEGER), ("data", kind)]))
    problems = table_problems(table, Name("d", "people", "`"), task, DIALECT)
    assert [problem.found for problem in problems] == (
        [f"column data of type json, which changes values of type {kind}"] if is_changed else []
    )
    assert all(problem.expected == "a column of type longtext" for problem in problems)


def test_a_text_that_is_added_to_a_table_of_another_character_set_holds_every_text(db: Database) -> None:
    db.table("CREATE TABLE people (id bigint PRIMARY KEY) CHARACTER SET latin1")
    db.may_create()
    task = a_task(pa.schema([("id", INTEGER), ("name", pa.string())]))
    with opened(db.sink(create_object=True, on_new_column="add"), task) as sink:
        assert deliver(sink, task, people({"id": 1, "name": "Łódź 😀"})) == [DELIVERED]
    assert db.rows("SELECT name FROM people") == [("Łódź 😀",)]


def test_an_enum_of_another_character_set_is_refused_for_its_type_at_once() -> None:
    key = MysqlColumn("id", "bigint", False, False, True, False, None, None, None, 0, None, None)
    plan = MysqlColumn("plan", "enum", False, True, True, False, 4, 4, None, None, "latin1", "latin1_bin")
    table, task = (
        MysqlTable({"id": key, "plan": plan}, {frozenset({"id"})}),
        a_task(pa.schema([("id", INTEGER), ("plan", pa.string())])),
    )
    (problem,) = table_problems(table, Name("d", "people", "`"), task, DIALECT)
    assert problem.found == "column plan of type enum, which changes values of type string"


def test_a_nested_type_with_a_double_goes_into_the_json_of_mariadb_which_is_a_text(db: Database) -> None:
    db.table(f"CREATE TABLE people (id bigint PRIMARY KEY, data json) {UTF8}")
    schema = pa.schema([("id", INTEGER), ("data", pa.list_(DOUBLE))])
    assert refused(db, people({"id": 1, "data": [9088544342.689999]}), schema=schema) == {}
    assert db.rows("SELECT data FROM people") == [("[9088544342.689999]",)]


@pytest.mark.parametrize("number", sorted(READ_ONLY))
def test_a_server_that_takes_no_writes_is_tried_again(number: int) -> None:
    error = pymysql.err.OperationalError(number, "InnoDB is in read only mode")
    assert failure(error)[0] is RETRYABLE
    assert DIALECT.is_rolled_back(None, error)  # type: ignore[arg-type]
    assert {1290, 1792, 1836, 1874} == READ_ONLY


def test_numbers_that_are_shown_with_zeros_before_them_are_read_as_they_were_delivered(db: Database) -> None:
    db.table("CREATE TABLE people (id int(5) ZEROFILL PRIMARY KEY, price decimal(9, 2) ZEROFILL)")
    schema = pa.schema([("id", pa.int64()), ("price", pa.decimal128(9, 2))])
    task = a_task(schema=schema)
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, [("insert", {"id": 7, "price": Decimal("5.10")})]) == [DELIVERED]
        (read,) = sink.read(task)
    assert read.to_pylist() == [{"id": 7, "price": Decimal("5.10"), UNREADABLE: False}]
