"""Rows through SQLAlchemy on a DuckDB file and on a real Postgres server: which are refused and why, and that no other row is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES, IGNORED, NO_ROW, NULL_KEY, OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from dbt_reverse_etl.sinks.sql.sqlalchemy.values import NUL
from dbt_reverse_etl.testing import PEOPLE, batch_of, deliver, opened, person
from tests.support.delivery.world import FakeClock
from tests.support.servers.postgres import CITEXT, Database, new_database
from tests.support.sinks.people import a_task, people
from tests.support.sinks.sqlalchemy import duckdb_sink, postgres_sink

DELIVERED, REJECTED = Outcome.DELIVERED, Outcome.REJECTED
TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Place:
    """A database with somebody's table `people`."""

    sink: Callable[[], SqlalchemySink]
    table: Callable[[str], None]
    run: Callable[[str], None]
    rows: Callable[[str], Rows]
    dialect: str


def on_duckdb(folder: Path) -> Place:
    file = folder / "crm.duckdb"
    engine = sa.create_engine(f"duckdb:///{file}", poolclass=NullPool)

    def run(statement: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)

    def rows(query: str) -> Rows:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]

    return Place(lambda: duckdb_sink(file), run, run, rows, "duckdb")


@cache
def shared() -> Database:
    """Making a database takes longer than most tests."""
    return new_database()


def on_postgres() -> Place:
    db = shared()
    db.run(f"DROP TABLE IF EXISTS people; DROP TYPE IF EXISTS citext CASCADE; TRUNCATE {FENCES}, {CLAIMS}")
    return Place(lambda: postgres_sink(db), db.table, db.run, db.rows, "postgresql")


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return on_duckdb(tmp_path) if request.param == "duckdb" else on_postgres()


def delivered(sink: SqlalchemySink, task: SinkTask, changes: Sequence[tuple[str, dict[str, Any]]]) -> dict[int, str]:
    """Deliver as a run does; row -> reason of each that was not delivered."""
    engine = Engine(sink, task, Policy(), FakeClock(), lambda: True, random=lambda: 1.0)
    batch = batch_of(task, changes).rows
    table = batch.append_column("_key", batch.column(task.key[0]).cast(pa.string()))
    result = engine.deliver_wave("claim", table.append_column("_before_hash", pa.nulls(len(table), pa.int64())))
    for failure in result.failures.values():
        assert failure.outcome is (Outcome.NO_MATCH if failure.reason == NO_ROW else REJECTED)
    return {row: failure.reason for row, failure in result.failures.items()}


CONSTRAINTS = [
    (
        "name varchar NOT NULL",
        {"name": None},
        ("constraint violated (ConstraintException), name", "constraint violated (23502), name"),
    ),
    (
        "name varchar CONSTRAINT short CHECK (name <> 'bad')",
        {"name": "bad"},
        ("constraint violated (ConstraintException), name", "constraint violated (23514), short"),
    ),
    (
        "name varchar CONSTRAINT one UNIQUE",
        {"name": "Ada0"},
        ("constraint violated (ConstraintException), name", "constraint violated (23505), one"),
    ),
    ("name varchar", {"name": "a\0b"}, (None, f"field name: {NUL}")),
    ("name varchar(5)", {"name": "1234  "}, (None, "field name: longer than the 5 characters of its column")),
    ("score_ numeric(3)", {}, (None, None)),
]


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(("column", "bad", "reasons"), CONSTRAINTS, ids=lambda value: str(value)[:30])
def test_only_the_guilty_rows_are_rejected_and_the_reason_names_the_constraint(
    column: str, bad: dict[str, Any], reasons: tuple[str | None, str | None], place: Place
) -> None:
    name = "" if "name" in column else ", name varchar"
    place.table(f"CREATE TABLE people (id bigint PRIMARY KEY, {column}{name}, score double precision)")
    changes = people(*(person(number, f"Ada{number}"[:5]) for number in range(40)))
    changes[7] = ("insert", person(7) | bad)
    expected = reasons[place.dialect == "postgresql"]
    with opened(place.sink(), a_task()) as sink:
        found = delivered(sink, a_task(), changes)
    assert set(found) == ({7} if expected else set())
    assert found.get(7) == expected
    assert place.rows("SELECT count(*) FROM people") == [(40 - len(found),)]


@pytest.mark.guarantee("SQLAlchemy")
def test_a_row_whose_unique_value_belongs_to_another_key_is_rejected_and_the_other_row_stays(place: Place) -> None:
    place.table(
        "CREATE TABLE people (id bigint PRIMARY KEY, name varchar CONSTRAINT one UNIQUE, score double precision)"
    )
    place.run("INSERT INTO people VALUES (1, 'Ada', 9), (2, 'Grace', 9)")
    with opened(place.sink(), a_task()) as sink:
        changes = [("insert", person(3, "Ada")), ("update", person(2, "Ada")), ("insert", person(4, "Joan"))]
        assert set(delivered(sink, a_task(), changes)) == {0, 1}
    assert place.rows("SELECT id, name, score FROM people ORDER BY id") == [
        (1, "Ada", 9.0),
        (2, "Grace", 9.0),
        (4, "Joan", 1.5),
    ]


@pytest.mark.guarantee("SQLAlchemy")
def test_a_key_that_the_table_takes_for_another_spelling_touches_neither_row(place: Place) -> None:
    if place.dialect == "duckdb":
        place.table("CREATE TABLE people (id varchar COLLATE NOCASE PRIMARY KEY, name varchar)")
    else:
        place.run(CITEXT)
        place.table("CREATE TABLE people (id citext PRIMARY KEY, name varchar)")
    place.run("INSERT INTO people VALUES ('ada', 'theirs')")
    task = a_task(TEXTS)
    for operation in ("insert", "update", "delete"):
        with opened(place.sink(), task) as sink:
            changes = [(operation, {"id": "ADA", "name": "ours"}), ("insert", {"id": operation, "name": "ours"})]
            assert delivered(sink, task, changes) == {0: OTHER_SPELLING}
    update_only = a_task(TEXTS, mode=Mode.UPDATE_ONLY)
    with opened(place.sink(), update_only) as sink:
        assert delivered(sink, update_only, [("update", {"id": "ADA", "name": "ours"})]) == {0: OTHER_SPELLING}
    assert place.rows("SELECT id, name FROM people WHERE name = 'theirs'") == [("ada", "theirs")]
    assert place.rows("SELECT count(*) FROM people") == [(4,)]


@pytest.mark.guarantee("SQLAlchemy")
def test_of_two_keys_of_a_batch_that_are_one_to_the_table_only_one_arrives() -> None:
    place = on_postgres()
    place.run(CITEXT)
    place.table("CREATE TABLE people (id citext PRIMARY KEY, name varchar)")
    changes = [("insert", {"id": "ada", "name": "a"}), ("insert", {"id": "ADA", "name": "b"})]
    for mode, reason in ((Mode.MIRROR, OTHER_SPELLING), (Mode.UPDATE_ONLY, NO_ROW)):
        task = a_task(TEXTS, mode=mode)
        with opened(place.sink(), task) as sink:
            assert delivered(sink, task, changes) == {1: reason}
        assert place.rows("SELECT id, name FROM people") == [("ada", "a")]


@pytest.mark.guarantee("SQLAlchemy")
def test_a_refused_batch_leaves_nothing_and_its_reason_quotes_no_value(place: Place) -> None:
    place.table("CREATE TABLE people (id bigint PRIMARY KEY, name varchar UNIQUE, score double precision)")
    with opened(place.sink(), a_task()) as sink:
        delivery = sink.deliver(batch_of(a_task(), people(person(1, "canary-1"), person(2, "canary-1"))))
        assert delivery.refused_whole
        assert not [result for result in delivery.results if "canary" in result.reason]
        assert place.rows("SELECT count(*) FROM people") == [(0,)]
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED], "the next batch is not hindered"


def test_a_composite_key_of_any_plain_types_finds_its_row(place: Place) -> None:
    schema = pa.schema(
        [
            *(("id", pa.int64()), ("day", pa.date32()), ("tenant", pa.string()), ("code", pa.binary())),
            *(("moment", pa.timestamp("us", "UTC")), ("price", pa.decimal128(10, 2)), ("name", pa.string())),
        ]
    )
    types = ("bigint", "date", "varchar", "bytea", "timestamptz", "numeric(10, 2)", "varchar")
    names = [field.name for field in schema]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    place.table(f"CREATE TABLE people ({columns}, PRIMARY KEY ({', '.join(names[:-1])}))")
    day, price = date(2024, 2, 29), Decimal("1.50")
    at = datetime(2024, 2, 29, 12, 0, 0, 1, timezone.utc)
    task = a_task(schema, key=tuple(names[:-1]))
    rows = [
        {"id": number, "day": day, "tenant": "x", "code": b"\0\xff", "moment": at, "price": price, "name": "a"}
        for number in range(700)  # more than one question for keys
    ]
    with opened(place.sink(), task) as sink:
        assert set(deliver(sink, task, people(*rows))) == {DELIVERED}
        assert deliver(sink, task, [("update", rows[1] | {"name": "b"}), ("delete", rows[2])]) == [DELIVERED] * 2
    assert place.rows("SELECT count(*), sum(CASE name WHEN 'b' THEN 1 ELSE 0 END) FROM people") == [(699, 1)]


def test_a_unique_value_moves_from_one_row_to_another_in_two_runs_at_most(place: Place) -> None:
    place.table("CREATE TABLE people (id bigint PRIMARY KEY, name varchar UNIQUE, score double precision)")
    changes = [("update", person(1, "b")), ("update", person(2, "c"))]
    with opened(place.sink(), a_task()) as sink:
        assert not delivered(sink, a_task(), people(person(1, "a"), person(2, "b")))
        refused = delivered(sink, a_task(), changes)
        assert refused.keys() <= {0}
        assert not delivered(sink, a_task(), [changes[row] for row in refused])
    assert place.rows("SELECT id, name FROM people ORDER BY id") == [(1, "b"), (2, "c")]


def test_a_constraint_that_is_checked_at_the_commit_refuses_its_row_alone() -> None:
    place = on_postgres()
    unique = "UNIQUE DEFERRABLE INITIALLY DEFERRED"
    place.table(
        f"CREATE TABLE people (id bigint PRIMARY KEY, name varchar CONSTRAINT one {unique}, score double precision)"
    )
    with opened(place.sink(), a_task()) as sink:
        found = delivered(sink, a_task(), people(person(1, "a"), person(2, "b"), person(3, "a")))
    assert set(found.values()) == {"constraint violated (23505), one"}
    assert place.rows("SELECT count(*) FROM people") == [(2,)]


def test_a_null_in_the_key_is_rejected(place: Place) -> None:
    place.table("CREATE TABLE people (id bigint PRIMARY KEY, name varchar, score double precision)")
    with opened(place.sink(), a_task()) as sink:
        found = delivered(sink, a_task(), [("insert", person(1) | {"id": None}), ("insert", person(2))])
    assert found == {0: f"field id: {NULL_KEY}"}


@pytest.mark.guarantee("SQLAlchemy")
def test_a_row_that_a_trigger_swallows_is_rejected_and_one_that_it_refuses_is_too() -> None:
    place = on_postgres()
    place.table("CREATE TABLE people (id bigint PRIMARY KEY, name varchar, score double precision)")
    place.run(
        "CREATE OR REPLACE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF new.name = 'swallow' THEN RETURN NULL; END IF; "
        "IF new.name = 'raise' THEN RAISE EXCEPTION 'no %', new.name; END IF; RETURN new; END $$;"
        "CREATE TRIGGER judge BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION judge()"
    )
    with opened(place.sink(), a_task()) as sink:
        changes = people(person(1, "swallow"), person(2, "raise"), person(3))
        assert delivered(sink, a_task(), changes) == {0: IGNORED, 1: "statement refused (P0001)"}
    assert place.rows("SELECT id FROM people") == [(3,)]


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("id bigint PRIMARY KEY, name varchar", "no column score"),
        ("id bigint PRIMARY KEY, name varchar, score real", "column score of type REAL"),
        ("id bigint PRIMARY KEY, name integer, score double precision", "column name of type INTEGER"),
        ("id double precision PRIMARY KEY, name varchar, score double precision", "column id of type"),
        (
            "id bigint, name varchar, score double precision",
            "no primary key, unique constraint or unique index over id",
        ),
        ("id bigint, name varchar, score double precision, UNIQUE (id, name)", "unique index over id alone"),
        (
            "id bigint PRIMARY KEY, name varchar, score double precision, more integer NOT NULL",
            "column more is NOT NULL",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_sent(columns: str, found: str, place: Place) -> None:
    place.table(f"CREATE TABLE people ({columns})")
    with pytest.raises(DestinationError, match=found):
        place.sink().open(a_task())


def test_all_that_does_not_fit_is_said_at_once(place: Place) -> None:
    place.table("CREATE TABLE people (id bigint, name integer, more integer NOT NULL)")
    with pytest.raises(DestinationError) as caught:
        place.sink().open(a_task())
    assert len(caught.value.problems) == 4


def test_a_task_that_no_table_could_serve_is_refused_at_once(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.float64()), ("ID", pa.string()), ("d", pa.decimal256(60, 2)), ("t", pa.duration("s"))]
    )
    with pytest.raises(ConfigurationError) as caught:
        duckdb_sink(tmp_path / "x").validate(a_task(schema, object="a..b"))
    assert len(caught.value.problems) == 5


def test_a_missing_table_is_made_on_request_only_and_its_ddl_is_shown() -> None:
    db = new_database()
    with pytest.raises(DestinationError, match=r"CREATE TABLE people \( id BIGINT NOT NULL, name TEXT, score DOUBLE"):
        postgres_sink(db).open(a_task())
    with pytest.raises(DestinationError, match=r"statement refused \(42501\)"):
        postgres_sink(db, create_object=True).open(a_task())


@pytest.mark.guarantee("SQLAlchemy", "Any name stays a name")
def test_names_of_any_kind_are_only_names(place: Place) -> None:
    name = 'co"l; drop table people --'
    quoted = name.replace('"', '""')
    place.table(f'CREATE TABLE people (id bigint PRIMARY KEY, "{quoted}" varchar, "%(x)s :y" varchar)')
    schema = pa.schema([("id", pa.int64()), (name, pa.string()), ("%(x)s :y", pa.string())])
    task = a_task(schema)
    with opened(place.sink(), task) as sink:
        changes = [("insert", {"id": 1, name: "'; drop table people --", "%(x)s :y": ":y"}), ("delete", {"id": 2})]
        assert deliver(sink, task, changes) == [DELIVERED] * 2
    assert place.rows("SELECT * FROM people") == [(1, "'; drop table people --", ":y")]


def test_columns_that_are_not_mapped_keep_their_values(place: Place) -> None:
    place.table("CREATE TABLE people (id bigint PRIMARY KEY, name varchar, score double precision, note varchar)")
    place.run("INSERT INTO people VALUES (1, 'x', 1, 'kept')")
    with opened(place.sink(), a_task(PEOPLE)) as sink:
        assert deliver(sink, a_task(), [("update", person(1, "Grace"))]) == [DELIVERED]
    assert place.rows("SELECT name, note FROM people") == [("Grace", "kept")]
