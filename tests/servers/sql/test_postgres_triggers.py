"""What a trigger of a Postgres table does to a row: it ignores it, it raises, it stores it under another key."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.refusals import NO_ROW
from dbt_reverse_etl.sinks.sql.dialects.postgres.rows import PostgresWriter
from dbt_reverse_etl.sinks.sql.rows import IGNORED, OTHER_KEY, OTHER_SPELLING
from dbt_reverse_etl.testing import batch_of, opened, person
from tests.support.servers.postgres import CITEXT, Database, new_database
from tests.support.sinks.databases import people_of, refused
from tests.support.sinks.people import a_task, people

TEXTS = pa.schema([("id", pa.string()), ("v", pa.string())])


@pytest.fixture
def db() -> Database:
    return new_database()


@pytest.mark.parametrize("given", ["CONSTRAINT", "COLUMN"])
@pytest.mark.parametrize("condition", ["unique_violation", "check_violation", "not_null_violation"])
def test_what_a_trigger_gives_for_the_name_of_a_constraint_or_column_is_not_shown(
    condition: str, given: str, db: Database
) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text, score float)")
    db.run(
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN RAISE {condition} USING {given} = new.name; END$$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    longer = "people_pkey".ljust(63, "x") + "canary"
    db.run(f'CREATE UNIQUE INDEX "{longer[:63]}" ON people (score)')
    rows = people(person(1, "canary-row"), person(2, longer), person(3, "people_pkey"), person(4, "score"))
    with opened(db.sink(), a_task()) as sink:
        said = [result.reason for result in sink.deliver(batch_of(a_task(), rows)).results]
    bare = said[0]
    named = [bare + ", constraint people_pkey", bare] if given == "CONSTRAINT" else [bare, bare + ", column score"]
    assert said == [bare, bare, *named]
    assert bare.startswith(condition.replace("_", " "))


@pytest.mark.guarantee("Refusals and outages")
def test_an_update_that_a_trigger_ignores_is_rejected_and_one_of_a_missing_row_has_no_match(db: Database) -> None:
    db.table(people_of(db, "CHECK (name <> 'bad')"))
    db.run(
        "INSERT INTO people SELECT n, 'old' FROM generate_series(1, 4) n;"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN CASE WHEN new.name <> 'gone' THEN new END; END$$;"
        "CREATE TRIGGER t BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    names = {1: "new", 2: "gone", 3: "bad", 4: "new", 5: "new", 6: "gone", 7: "bad"}
    rows = [("update", person(number, name)) for number, name in names.items()]
    found = refused(db, rows, mode=Mode.UPDATE_ONLY)
    assert found.pop(2).startswith("check violation (23514)")
    assert found == {1: IGNORED, 4: NO_ROW, 5: NO_ROW, 6: NO_ROW}
    assert db.rows("SELECT id, name FROM people ORDER BY 1") == [(1, "new"), (2, "old"), (3, "old"), (4, "new")]


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize(
    "body",
    [
        "IF new.name = 'bad' THEN SELECT relname INTO STRICT new.name FROM pg_catalog.pg_class WHERE false; END IF; RETURN new;",
        "IF new.name = 'bad' THEN SELECT relname INTO STRICT new.name FROM pg_catalog.pg_class; END IF; RETURN new;",
        "ASSERT new.name <> 'bad'; RETURN new;",
    ],
)
def test_whatever_an_error_in_a_trigger_is_called_it_is_that_of_its_row_alone(body: str, db: Database) -> None:
    db.table(people_of(db))
    db.run(
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    found = refused(db, people(person(1, "a"), person(2, "bad"), person(3, "c")))
    assert [*found] == [1]
    assert "(P000" in found[1]
    assert db.rows("SELECT id FROM people ORDER BY 1") == [(1,), (3,)]


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY])
def test_a_row_that_a_trigger_ignores_is_not_told_to_be_misspelt_beside_one_that_is(mode: Mode, db: Database) -> None:
    db.run(CITEXT)
    db.table("CREATE TABLE people (id citext PRIMARY KEY, v text CHECK (v <> 'bad'))")
    db.run(
        "INSERT INTO people VALUES ('Ada', 'a');"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN CASE WHEN new.v <> 'no' THEN new END; END$$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()"
    )
    rows = people({"id": "Bob", "v": "no"}, {"id": "ADA", "v": "b"}, {"id": "Cy", "v": "c"})
    assert refused(db, rows, schema=TEXTS, mode=mode) == {0: IGNORED, 1: OTHER_SPELLING}
    found = refused(db, [*rows, *people({"id": "Dan", "v": "bad"})], schema=TEXTS, mode=mode, fence=2)
    assert found.pop(3).startswith("check violation (23514)")
    assert found == {0: IGNORED, 1: OTHER_SPELLING}


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.UPDATE_ONLY])
def test_a_write_that_a_trigger_ignores_because_the_row_is_there_as_it_is_counts_as_delivered(
    mode: Mode, db: Database
) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text, tags text[], CHECK (name <> 'bad'))")
    db.run("INSERT INTO people VALUES (1, 'a', '{x}'), (2, null, null), (3, 'c', '{}'), (4, 'd', null)")
    db.run(
        "CREATE TRIGGER t BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
    rows = [(1, "a", ["x"]), (2, None, None), (3, "new", []), (4, "bad", None)]
    changes = people(*({"id": id_, "name": name, "tags": tags} for id_, name, tags in rows))
    assert [*refused(db, changes, schema=schema, mode=mode)] == [3]
    db.run("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
    db.run("CREATE TRIGGER u BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION f()")
    rows = [(1, "a", ["y"]), (2, "b", None), (3, "new", [])]
    changes = people(*({"id": id_, "name": name, "tags": tags} for id_, name, tags in rows))
    assert [*refused(db, changes, schema=schema, mode=mode)] == [0, 1], "this one ignored changes"


@pytest.mark.guarantee("Refusals and outages")
def test_a_number_that_is_there_with_more_digits_is_there_as_it_should_be_where_a_trigger_ignores_it(
    db: Database,
) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, d numeric(10, 2), n numeric(10, 2), many numeric(10, 2)[])")
    does = "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    db.run(f"CREATE TRIGGER t BEFORE UPDATE ON people {does}")
    one_digit, number = pa.decimal128(10, 1), pa.int64()
    schema = pa.schema([("id", number), ("d", one_digit), ("n", number), ("many", pa.list_(one_digit))])
    half = Decimal("1.5")
    values: list[tuple[Any, ...]] = [(half, 7, [half, None]), (None, None, None), (half, None, [])]
    rows = people(*({"id": at, "d": d, "n": n, "many": many} for at, (d, n, many) in enumerate(values)))
    assert refused(db, rows, schema=schema) == {}
    assert refused(db, rows, schema=schema, fence=2) == {}
    db.run("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
    db.run("CREATE TRIGGER u BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION f()")
    changed = people(*({**row, "d": Decimal("2.5")} for _, row in rows))
    assert refused(db, changed, schema=schema, fence=3) == dict.fromkeys(range(3), IGNORED)


def lowers_keys(db: Database, events: str, table: str = "people") -> None:
    db.run(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN new.id := lower(new.id); RETURN new; END$$;"
        f"CREATE TRIGGER t {events} ON {table} FOR EACH ROW EXECUTE FUNCTION f()"
    )


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY])
@pytest.mark.parametrize("where", ["table", "partition"])
def test_a_row_that_a_trigger_stores_under_another_key_is_rejected_and_changes_no_other_row(
    where: str, mode: Mode, db: Database
) -> None:
    ddl = "CREATE TABLE people (id text PRIMARY KEY, v text, CHECK (v <> 'bad'))"
    if where == "partition":
        ddl += " PARTITION BY LIST (id); CREATE TABLE part PARTITION OF people DEFAULT"
    db.table(ddl)
    before = [("Bob", "old"), ("ada", "old"), ("dan", "old")]
    db.run(f"INSERT INTO people VALUES {', '.join(map(str, before))}")
    lowers_keys(db, "BEFORE INSERT OR UPDATE", "people" if where == "table" else "part")
    first = "Bob" if mode is Mode.UPDATE_ONLY else "Ada"
    rows = people(*({"id": key, "v": "new"} for key in (first, "Cy", "cy", "dan")))
    expected = {
        Mode.MIRROR: {0: OTHER_KEY, 1: OTHER_KEY},
        Mode.INSERT_ONLY: {0: IGNORED, 1: OTHER_KEY},  # the table has the other key: nothing was stored
        Mode.UPDATE_ONLY: {0: OTHER_KEY, 1: NO_ROW, 2: NO_ROW},
    }[mode]
    assert refused(db, rows, schema=TEXTS, mode=mode) == expected
    db.run("DELETE FROM people WHERE id = 'cy'")
    found = refused(db, [*rows[:3], *people({"id": "dan", "v": "bad"})], schema=TEXTS, mode=mode, fence=2)
    assert found.pop(3).startswith("check violation (23514)")
    assert found == expected
    assert set(db.rows("SELECT id, v FROM people WHERE id <> 'dan'")) >= set(before[:2])


@pytest.mark.parametrize("events", ["AFTER INSERT OR UPDATE", "BEFORE DELETE", "BEFORE INSERT"])
def test_a_table_without_a_trigger_that_may_change_a_key_pays_for_no_question(
    events: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.table("CREATE TABLE people (id text PRIMARY KEY, v text)")
    lowers_keys(db, events)
    if events == "BEFORE INSERT":
        db.run("ALTER TABLE people DISABLE TRIGGER t")
    monkeypatch.setattr(PostgresWriter, "absent", None)
    assert refused(db, people({"id": "Ada", "v": "a"}), schema=TEXTS) == {}
