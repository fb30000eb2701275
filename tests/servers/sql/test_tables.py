"""Somebody's tables under the SQL sinks: which columns keep which values, what does not fit, and what mends it."""

from __future__ import annotations

import string
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.record import CLAIMS
from dbt_reverse_etl.sinks.sql.table import Name
from dbt_reverse_etl.testing import PEOPLE, deliver, next_run, opened, person
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, REJECTED
from tests.support.servers import mysql, postgres
from tests.support.sinks.databases import SERVERS, people_of, refused
from tests.support.sinks.people import a_task, people

servers = pytest.mark.parametrize("db", SERVERS, indirect=True)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
DECIMAL, TEXT, INTEGER, DOUBLE = pa.decimal128(9, 2), pa.string(), pa.int64(), pa.float64()


def ddl(db: Any, columns: list[str]) -> str:
    return f"CREATE TABLE people (id int PRIMARY KEY, {', '.join(columns)}){mysql_end(db)}"


def mysql_end(db: Any) -> str:
    return " CHARACTER SET utf8mb4" if db.kind == "mysql" else ""


# Arrow type, column, values. What a text column shows of a number is its text.
KINDS: dict[str, list[tuple[pa.DataType, str, list[Any]]]] = {
    "postgres": [
        (pa.list_(INTEGER), "int[]", [[1, None, 3], [], None]),
        (pa.list_(TEXT), "text[]", [["a,b", '"', "NULL", None, "{}\\"], None]),
        (pa.list_(DECIMAL), "numeric[]", [[Decimal("1.10"), None]]),
        (pa.list_(TEXT), "varchar(3)[]", [["abc", None], ["äö "], [], None]),
        (DECIMAL, "numeric(12, 4)", [Decimal("-1.10")]),
        (INTEGER, "text", [7]),
        (TEXT, "varchar(3)", ["abc", "äöü", "a  ", "", None]),
        (pa.struct([("a", pa.list_(INTEGER))]), "jsonb", [{"a": [1]}, {"a": None}]),
        (DOUBLE, "float8", [float("inf"), 1e-300]),
    ],
    "mysql": [
        (DECIMAL, "decimal(12, 4)", [Decimal("-1.1000")]),
        (pa.decimal128(38, 30), "decimal(38, 30)", [Decimal("12345678.0123456789012345678901234567")]),
        (DECIMAL, "varchar(20)", [Decimal("-0.10")]),
        (INTEGER, "text", [-7]),
        (pa.int32(), "double", [2**31 - 1]),
        (TEXT, "varchar(3)", ["abc", "äöü", "a  ", "", None, "\\", "'", "\0\x1a%", "😀"]),
        (TEXT, "char(3)", ["abc", " a", None]),
        (pa.float32(), "float", [0.5, -3.4028234663852886e38]),
        (DOUBLE, "double", [5e-324, 1e-300, 1.7976931348623157e308, 0.1, 123456789012345680.0, 1 / 3]),
        (pa.bool_(), "tinyint", [True, False]),
        (pa.date32(), "datetime", [datetime(2024, 2, 29)]),
        (pa.binary(), "varbinary(9)", [b"", b"\0\\'\xff", None]),
        (INTEGER, "tinyint unsigned", [0, 255]),
        (INTEGER, "int unsigned", [0, 2**32 - 1]),
        (INTEGER, "bigint unsigned", [0, 2**63 - 1]),
        (INTEGER, "decimal(3, 0)", [999, -999]),
        (INSTANT, "timestamp(6) NULL", [datetime(2024, 3, 31, 1, 30, 0, 7)]),
    ],
    "duckdb": [
        (DECIMAL, "DECIMAL(12, 4)", [Decimal("-1.1000")]),
        (INTEGER, "UBIGINT", [2**63 - 1]),
        (INTEGER, "HUGEINT", [2**63 - 1]),
        (pa.list_(INTEGER), "JSON", ["[1,null]", None]),
        (pa.float32(), "FLOAT", [0.5]),
        (DOUBLE, "DOUBLE", [5e-324, float("inf")]),
        (LOCAL, "TIMESTAMP", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    ],
}


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", KINDS, indirect=True)
def test_values_arrive_exactly_in_columns_of_other_types(db: Any) -> None:
    kinds = KINDS[db.kind]
    names = [f"c{at}" for at in range(len(kinds))]
    db.table(ddl(db, [f"{name} {column}" for name, (_, column, _) in zip(names, kinds, strict=True)]))
    schema = pa.schema([("id", INTEGER), *((name, kind) for name, (kind, *_) in zip(names, kinds, strict=True))])
    rows: list[dict[str, Any]] = [{"id": at} for at in range(max(len(values) for *_, values in kinds))]
    for name, (kind, _, values) in zip(names, kinds, strict=True):
        for row, value in zip(rows, values, strict=False):
            row[name] = [1, None] if value == "[1,null]" else value.date() if kind == pa.date32() else value
    assert refused(db, people(*rows), schema=schema) == {}
    for name, (_, column, values) in zip(names, kinds, strict=True):
        as_text = column in ("text", "varchar(20)")
        exact = f"{name} + 0e0" if db.kind == "mysql" and column in ("float", "double") else name
        found = [value for (value,) in db.rows(f"SELECT {exact} FROM people ORDER BY id")]
        expected = [str(value) if as_text and value is not None else value for value in values]
        assert found == expected + [None] * (len(rows) - len(values)), column


# Arrow type, column, a value outside of it.
RANGES: dict[str, list[tuple[pa.DataType, str, Any]]] = {
    "postgres": [(INTEGER, "smallint", 2**15), (DECIMAL, "numeric(5, 3)", Decimal(100))],
    "mysql": [
        (INTEGER, "tinyint", 128),
        (INTEGER, "tinyint unsigned", -1),
        (INTEGER, "int unsigned", 2**32),
        (INTEGER, "decimal(3, 0)", 1000),
        (DECIMAL, "decimal(5, 3)", Decimal("100.00")),
        (INSTANT, "timestamp(6) NULL", datetime(1960, 1, 1, tzinfo=timezone.utc)),
    ],
    "duckdb": [(INTEGER, "SMALLINT", 2**15), (DECIMAL, "DECIMAL(5, 3)", Decimal(100))],
}  # fmt: skip


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", RANGES, indirect=True)
def test_a_value_outside_the_range_of_its_column_refuses_its_row_and_is_never_clipped(db: Any) -> None:
    ranges = RANGES[db.kind]
    db.table(ddl(db, [f"c{at} {column}" for at, (_, column, _) in enumerate(ranges)]))
    schema = pa.schema([("id", INTEGER), *((f"c{at}", kind) for at, (kind, *_) in enumerate(ranges))])
    rows = [{"id": at, f"c{at}": value} for at, (*_, value) in enumerate(ranges)]
    found = refused(db, people(*rows, {"id": 99}), schema=schema)
    assert set(found) == set(range(len(ranges)))
    assert db.rows("SELECT id FROM people") == [(99,)]
    if db.kind == "mysql":
        assert all(reason.endswith(f", c{at}") for at, reason in found.items())


LISTED = ("numeric(9, 1)", "real", "timestamptz", "int", "name", "short")
WRONG: dict[str, list[tuple[pa.DataType, str]]] = {
    "postgres": [
        (DECIMAL, "numeric(9, 1)"),
        (DECIMAL, "float8"),
        (DOUBLE, "real"),
        (DOUBLE, "numeric"),
        (INSTANT, "timestamp"),
        (LOCAL, "timestamp(3)"),
        *((TEXT, column) for column in ("numeric(9, 1)", "bytea", "timestamptz", "name", '"char"', "tsvector")),
        *((TEXT, column) for column in ("point", "bit(3)", "money")),
        *((pa.list_(TEXT), f"{of}[]") for of in LISTED),
        (INTEGER, "float8"),
        (pa.list_(DOUBLE), "real[]"),
        (pa.list_(pa.list_(INTEGER)), "int[]"),
        (INTEGER, "int GENERATED ALWAYS AS IDENTITY"),
        (INTEGER, "int GENERATED ALWAYS AS (id) STORED"),
    ],
    "mysql": [
        (DECIMAL, "decimal(9, 1)"),
        (DECIMAL, "double"),
        (DOUBLE, "float"),
        (DOUBLE, "double(9, 2)"),
        (DOUBLE, "decimal(9, 2)"),
        (INSTANT, "timestamp(3) NULL"),
        (LOCAL, "datetime"),
        (LOCAL, "timestamp(6) NULL"),
        (INTEGER, "double"),
        (INTEGER, "bit(9)"),
        (INTEGER, "year"),
        (pa.bool_(), "int"),
        (pa.list_(INTEGER), "char(9)"),
        (pa.binary(), "text"),
        *((TEXT, column) for column in ("int", "blob", "datetime(6)", "enum('a')", "set('a')")),
        (TEXT, "varchar(9) CHARACTER SET latin1"),
        (INTEGER, "int AS (id) STORED"),
        (INTEGER, "int AS (id) VIRTUAL"),
        (INTEGER, "int AUTO_INCREMENT UNIQUE"),
    ],
    "sqlite": [
        (TEXT, "STRING"),
        (DOUBLE, "TEXT"),
        (INTEGER, "REAL"),
        (pa.decimal128(16, 2), "DECIMAL(38, 2)"),
        (DOUBLE, "REAL AS (id * 2)"),
    ],
    "duckdb": [
        (DECIMAL, "DECIMAL(9, 1)"),
        (DOUBLE, "REAL"),
        (TEXT, "INTEGER"),
        (TEXT, "UUID"),
        (INTEGER, "DOUBLE"),
        (INSTANT, "TIMESTAMP"),
        (LOCAL, "TIMESTAMP_MS"),
        (pa.list_(INTEGER), "INTEGER[]"),
        (DOUBLE, "DOUBLE AS (id * 2)"),
        (TEXT, "VARCHAR GENERATED ALWAYS AS (NULL) VIRTUAL"),
    ],
}


@pytest.mark.guarantee(
    "SQL databases", "A column that would change values or cannot be written is refused, and all of them at once"
)
def test_each_column_that_would_change_values_or_cannot_be_written_is_refused(db: Any) -> None:
    wrong = WRONG[db.kind]
    if db.kind == "postgres":
        db.run("CREATE DOMAIN short AS varchar(5)")
    db.table(ddl(db, [f"c{at} {column}" for at, (_, column) in enumerate(wrong)]))
    schema = pa.schema([("id", INTEGER), *((f"c{at}", kind) for at, (kind, _) in enumerate(wrong))])
    with pytest.raises(DestinationError) as caught:
        db.sink().open(a_task(schema))
    found = [problem.found for problem in caught.value.problems]
    assert len(found) == len(wrong)
    assert [f"c{at}" for at, words in enumerate(found) if f"c{at} " not in words] == []


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_on_postgres_a_refused_column_is_named_with_length_precision_and_scale(db: Any) -> None:
    db.run("CREATE DOMAIN price AS numeric(5, 1)")
    db.table(ddl(db, ["a timestamp(3)", "b numeric(5, 1)", "c numeric(5, 1)[]", "d price", "e bytea"]))
    kinds = {"a": LOCAL, "b": DECIMAL, "c": pa.list_(DECIMAL), "d": DECIMAL, "e": TEXT}
    with pytest.raises(DestinationError) as caught:
        db.sink().open(a_task(pa.schema([("id", INTEGER), *kinds.items()])))
    shown = ["timestamp(3) without time zone", "numeric(5,1)", "numeric(5,1)[]", "numeric(5,1)", "bytea"]
    assert [problem.found.partition(", which")[0] for problem in caught.value.problems] == [
        f"column {name} of type {kind}" for name, kind in zip(kinds, shown, strict=True)
    ]


@pytest.mark.parametrize("db", ["duckdb"], indirect=True)
def test_on_duckdb_a_generated_column_must_be_left_out_and_one_with_a_default_need_not(db: Any) -> None:
    columns = "id bigint PRIMARY KEY, a bigint DEFAULT 3, b bigint DEFAULT NULL, g bigint AS (id * 2)"
    db.run(f'CREATE SCHEMA "my ""crm"\nCREATE TABLE "my ""crm".people ({columns})')
    more = {"object": '"my ""crm".people', "schema": pa.schema([(name, INTEGER) for name in ("id", "a", "b", "g")])}
    with pytest.raises(DestinationError, match=r"found g is a generated column .*leave the field out") as caught:
        db.sink().open(a_task(**more))
    assert len(caught.value.problems) == 1
    rows = people({"id": 1, "a": 4, "b": 5})
    assert refused(db, rows, **more | {"schema": more["schema"].remove(3)}) == {}  # type: ignore[union-attr, operator]
    assert db.rows('SELECT * FROM "my ""crm".people') == [(1, 4, 5, 2)]


UNFIT = [
    ("CREATE TABLE people (id int, name {text}, score {double}){end}", "CREATE UNIQUE INDEX"),
    ("CREATE TABLE people (id int, name {text}, score {double}, UNIQUE (id, name)){end}", "unique index over id alone"),
    ("CREATE TABLE people (id int PRIMARY KEY, name {text}){end}", "ADD COLUMN"),
    ("CREATE TABLE people (id int PRIMARY KEY, name {text}, score {double}, x int NOT NULL){end}", "x is NOT NULL"),
    ("CREATE VIEW people AS SELECT 1 AS id, 'x' AS name, 1.0 AS score", "view"),
]
OF_ONE = [
    ("postgres", "CREATE TABLE people (id int UNIQUE DEFERRABLE, name text, score float)", "CREATE UNIQUE INDEX"),
    *(
        ("mysql", f"CREATE TABLE people (id int PRIMARY KEY, name text, score double) ENGINE={engine} CHARACTER SET utf8mb4", "ENGINE=InnoDB")
        for engine in ("MyISAM", "Aria")
    ),
    ("mysql", "CREATE TABLE people (id int NOT NULL, name varchar(9), score double, UNIQUE (name, id)) CHARACTER SET utf8mb4", "over id alone"),
    ("mysql", "CREATE TABLE people (id int PRIMARY KEY, name varchar(9), score double) WITH SYSTEM VERSIONING", "system-versioned"),
    (
        "sqlite",
        "CREATE TABLE people (id INTEGER, name TEXT, score REAL)\nCREATE UNIQUE INDEX i ON people (id) WHERE score > 0",
        "CREATE UNIQUE INDEX",
    ),
    ("sqlite", "CREATE TABLE people (id TEXT PRIMARY KEY COLLATE NOCASE, name TEXT, score REAL)", "COLLATE BINARY"),
    ("sqlite", "CREATE VIRTUAL TABLE people USING fts5(id, name, score)", "virtual"),
    ("duckdb", "CREATE TABLE people (id int, name varchar, score double)\nCREATE UNIQUE INDEX i ON people ((id + 1))", "over id alone"),
]  # fmt: skip
CASES = [
    *((kind, statement, words) for kind in ("postgres", "mysql", "sqlite", "duckdb") for statement, words in UNFIT),
    *OF_ONE,
]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("db", "statement", "words"), CASES, indirect=["db"])
def test_an_object_that_does_not_fit_is_refused_with_the_statement_that_mends_it(
    statement: str, words: str, db: Any
) -> None:
    types = {"text": "varchar(40)", "double": "double precision", "end": mysql_end(db)}
    made = statement.format(**types)
    (db.run if "\n" in made else db.table)(made)
    early = db.sink().rights(a_task(pa.schema([(name, TEXT) for name in PEOPLE.names]), known="names")).missing
    with pytest.raises(DestinationError) as caught:
        db.sink().open(a_task())
    assert words in str(caught.value)
    assert [problem.found for problem in early] == [problem.found for problem in caught.value.problems]
    advice = caught.value.problems[0].next_step
    if advice.startswith("run: ") and "DEFERRABLE" not in made:
        db.run(advice.removeprefix("run: "))
        assert refused(db, people(person(1)), schema=PEOPLE) == {}


def test_all_that_does_not_fit_is_said_at_once(db: Any) -> None:
    db.table(f"CREATE TABLE people (id bigint, name integer, more integer NOT NULL){mysql_end(db)}")
    with pytest.raises(DestinationError) as caught:
        db.sink().open(a_task())
    assert len(caught.value.problems) == 4
    (early,) = db.sink().rights(a_task(pa.schema([("id", TEXT)]), known="key")).missing
    assert "no unique index over id alone" in early.found


IMPOSSIBLE = [
    ({"object": "_dbt_reverse_etl_fences"}, "reserved"),
    ({"object": "a\0b"}, "object"),
    ({"schema": pa.schema([("id", INTEGER), ("x\0", INTEGER)])}, "fields"),
    ({"schema": pa.schema([("id", pa.list_(INTEGER))])}, "nested type"),
    ({"schema": pa.schema([("id", DOUBLE)])}, "compared exactly"),
]


@pytest.mark.guarantee("SQL databases")
def test_what_can_never_work_is_refused_before_anything_is_sent(db: Any) -> None:
    own = {
        "postgres": [({"object": "a.b.c"}, "object"), ({"schema": pa.schema([("x" * 64, INTEGER)])}, "1 to 63 bytes")],
        "mysql": [
            ({"object": "a.b.c"}, "object"),
            ({"schema": pa.schema([("id", INTEGER), ("ID", INTEGER)])}, "upper and lower case"),
            ({"schema": pa.schema([("x" * 65, INTEGER)])}, "1 to 64 characters"),
            ({"schema": pa.schema([("id", pa.decimal128(38, 31))])}, "MySQL can hold exactly"),
        ],
        "sqlite": [({"object": "sqlite_x"}, "object"), ({"schema": pa.schema([("id", TEXT), ("ID", TEXT)])}, "case")],
        "duckdb": [({"object": "a..b"}, "object"), ({"schema": pa.schema([("id", TEXT), ("ID", TEXT)])}, "case")],
    }
    for changes, words in (*IMPOSSIBLE, *own[db.kind]):
        with pytest.raises(ConfigurationError, match=words):
            db.sink().validate(a_task(**changes))


letters = string.ascii_letters + "`\"'. $%;{}\\äé:?"
names = st.text(st.sampled_from(letters), min_size=1, max_size=20).filter(lambda name: not name.endswith(" "))


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("db", [*SERVERS, "duckdb"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(10))
@given(table=names, fields=st.lists(names, min_size=2, max_size=4, unique_by=lambda name: name.encode().lower()))
def test_any_name_stays_a_name(table: str, fields: list[str], db: Any) -> None:
    dialect = db.sink()._dialect
    written = dialect.quoted(table)
    task = a_task(pa.schema([(field, TEXT) for field in fields]), object=written, sync_id=table.encode().hex())
    row = dict.fromkeys(fields, "x")
    db.run(f"DROP TABLE IF EXISTS {dialect.quoted(table)}")
    db.make(task)
    for mode, operation in ((Mode.MIRROR, "insert"), (Mode.UPDATE_ONLY, "update"), (Mode.MIRROR, "delete")):
        with opened(db.sink(), a_task(task.schema, object=written, sync_id=task.sync_id, mode=mode)) as sink:
            assert deliver(sink, task, [(operation, row)]) == [DELIVERED]
    assert db.rows(f"SELECT count(*) FROM {dialect.quoted(table)}") == [(0,)]


@pytest.mark.guarantee("SQL databases")
def test_an_object_is_split_by_the_rules_of_quoting(tmp_path: Any) -> None:
    for dialect, own in ((postgres.DIALECT, "public"), (mysql.Database(None, "d").dialect, "d")):  # type: ignore[arg-type]
        quote = dialect.quote
        for text, parts in (
            ("people", (own, "people")),
            ("crm.People", ("crm", "People")),
            (f"{quote}weird.name{quote}.t", ("weird.name", "t")),
            (f"a.{quote}x{quote}{quote}y.z{quote}", ("a", f"x{quote}y.z")),
        ):
            assert dialect.object_name(text) == Name(*parts, quote)
        for wrong in ("", ".", "a.", ".a", "a.b.c", f"{quote}a", f"a{quote}b", f"{quote}{quote}", "a\0", "x" * 65):
            assert dialect.object_name(wrong) is None
    assert [mysql.Database(None, "d").dialect.object_name(wrong) for wrong in ("a ", "😀")] == [None, None]  # type: ignore[arg-type]


@servers
def test_a_table_is_made_and_columns_added_only_where_that_is_asked_for(db: Any) -> None:
    with pytest.raises(DestinationError, match=r"no table .*CREATE TABLE .*create_object: true"):
        db.sink().open(a_task())
    db.may_create()
    wider = a_task(pa.schema([*PEOPLE, ("more", DECIMAL)]), fence=2)
    with pytest.raises(DestinationError, match="a mode that inserts"):
        db.sink(create_object=True).open(a_task(mode=Mode.UPDATE_ONLY))
    with opened(db.sink(create_object=True), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    with pytest.raises(DestinationError, match="no column more"), opened(db.sink(create_object=True), wider):
        pass
    adding = db.sink(create_object=True, on_new_column="add")
    early = replace(wider, known="names")
    assert [len(one.rights(early).missing) for one in (adding, db.sink())] == [0, 1]
    with opened(adding, wider) as sink:
        assert deliver(sink, wider, [("update", {**person(1), "more": Decimal("1.50")})]) == [DELIVERED]
    assert db.rows("SELECT name, more FROM people") == [("Ada", Decimal("1.50"))]


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_on_postgres_a_name_in_another_case_is_named_and_no_second_column_or_table_is_made(db: Any) -> None:
    db.table("CREATE TABLE people (id bigint PRIMARY KEY, email text)")
    schema = pa.schema([("id", INTEGER), ("Email", TEXT)])
    sink = db.sink(create_object=True, on_new_column="add")
    with pytest.raises(DestinationError, match=r"no column Email, but email; .*Next: write email under `fields:`"):
        sink.open(a_task(schema))
    assert [one.found for one in sink.rights(a_task(schema, known="names")).missing] == ["no column Email, but email"]
    db.run("ALTER TABLE people OWNER TO crm_push")
    with opened(sink, a_task(pa.schema([*schema, ("email", TEXT)]))):
        pass
    assert db.rows('SELECT email, "Email" FROM people') == []
    with pytest.raises(DestinationError, match=r"no table public.People, but public.people; .*write object: public.p"):
        db.sink().open(a_task(object="People"))


@servers
def test_a_table_with_capitals_is_named_to_whom_writes_it_without_them_and_no_second_one_is_made(db: Any) -> None:
    name = db.sink()._dialect.quoted("CrmPeople")
    db.table(f"CREATE TABLE {name} (id bigint PRIMARY KEY, name varchar(9))", "CrmPeople")
    for written in ("crmpeople", "CRMPeople"):
        sink, task = db.sink(create_object=True), a_task(object=written)
        with pytest.raises(
            DestinationError, match=rf"no table \w+.{written}, but \w+.CrmPeople; .*write object: \w+.CrmP"
        ):
            sink.open(task)
        assert any("but" in one.found for one in sink.rights(task).missing)


@pytest.mark.guarantee("SQL databases")
@servers
def test_soft_delete_keeps_the_row_and_a_later_write_revives_it(people_db: Any) -> None:
    options = people_db.sink().options_model(soft_delete="deleted_at")
    people_db.run(f"ALTER TABLE people ADD COLUMN deleted_at {people_db.MOMENT}")
    assert refused(people_db, people(person(1), person(2)), options=options) == {}
    deletes = [("delete", {"id": 1}), ("delete", {"id": 9})]
    assert refused(people_db, deletes, options=options, fence=2) == {}
    first = people_db.rows("SELECT deleted_at FROM people WHERE id = 1")
    said = first[0][0].replace(tzinfo=first[0][0].tzinfo or timezone.utc)
    assert abs((datetime.now(timezone.utc) - said).total_seconds()) < 60
    assert refused(people_db, [("delete", {"id": 1})], options=options, fence=3) == {}
    assert people_db.rows("SELECT deleted_at FROM people WHERE id = 1") == first, "a repeat changes nothing"
    assert refused(people_db, people(person(1)), options=options, fence=4) == {}
    assert people_db.rows("SELECT count(*) FROM people WHERE deleted_at IS NULL") == [(2,)]


@servers
def test_soft_delete_needs_mirror_and_a_column_of_its_own(people_db: Any) -> None:
    options = people_db.sink().options_model
    for wrong in ({"mode": Mode.UPSERT}, {"options": options(soft_delete="name")}):
        task = a_task(**({"options": options(soft_delete="deleted_at")} | wrong))
        with pytest.raises(ConfigurationError, match="soft_delete"):
            people_db.sink().validate(task)
    with pytest.raises(DestinationError, match="no column deleted_at"):
        people_db.sink().open(a_task(options=options(soft_delete="deleted_at")))


@pytest.mark.parametrize("db", ["postgres", "mysql", "duckdb"], indirect=True)
def test_the_record_may_stand_in_a_place_of_its_own_and_the_object_in_another(db: Any) -> None:
    setting, state, crm = "state_schema", "state", "crm"
    if db.kind == "mysql":
        setting, state, crm = "state_database", mysql.new_database().name, db.name
    else:
        db.run("CREATE SCHEMA state")
        db.run("CREATE SCHEMA crm")
    if db.kind == "postgres":
        db.run("GRANT USAGE, CREATE ON SCHEMA state TO crm_push; GRANT USAGE ON SCHEMA crm TO crm_push")
    name = Name(crm, "people", db.sink()._dialect.quote)
    db.run(people_of(db).replace("people", name.sql, 1))
    if db.kind in SERVERS:
        db.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name.sql} TO crm_push")
    task = a_task(object=f"{crm}.people")
    with opened(db.sink(**{setting: state}), task) as sink:
        rows = people(person(1), person(1 << 40) | {"id": None})
        assert deliver(sink, task, rows) == [DELIVERED, REJECTED]
    assert db.rows(f"SELECT closed, left_out FROM {state}.{CLAIMS}") == [(True, 1)]
    assert db.rows(f"SELECT id FROM {crm}.people") == [(1,)]
    assert db.sink(**{setting: state}).missing(next_run(task)) is None
    missing = str(db.sink().missing(next_run(task)))
    assert missing.startswith("no record of this sync in ")
    assert missing.endswith(f" (was {setting} changed? then set it back)")


def test_identity_generated_and_default_columns_that_are_not_mapped_fill_themselves(db: Any) -> None:
    own = {
        "postgres": "n int GENERATED ALWAYS AS IDENTITY, up text GENERATED ALWAYS AS (upper(name)) STORED",
        "mysql": "n int AUTO_INCREMENT UNIQUE, up varchar(9) AS (upper(name)) STORED",
        "sqlite": "n INTEGER NOT NULL DEFAULT 1, up TEXT AS (upper(name)) STORED",
        "duckdb": "n int NOT NULL DEFAULT 1, up varchar AS (upper(name))",
    }
    db.table(people_of(db, own[db.kind], "day date NOT NULL DEFAULT '2024-01-01'"))
    assert refused(db, people(person(1, "ada"))) == {}
    day = "2024-01-01" if db.kind == "sqlite" else date(2024, 1, 1)
    assert db.rows("SELECT n, up, day FROM people") == [(1, "ADA", day)]
