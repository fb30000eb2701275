"""What only Postgres has: operators of other users, deferred constraints, cascades, policies, libpq's environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.refusals import NO_ROW
from dbt_reverse_etl.sinks.sql.dialects.postgres.rows import search
from dbt_reverse_etl.sinks.sql.dialects.postgres.session import connect
from dbt_reverse_etl.sinks.sql.rows import OTHER_SPELLING
from dbt_reverse_etl.sinks.sql.settings import PostgresSettings, SoftDeleteOptions
from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.support.outcomes import DELIVERED, REJECTED
from tests.support.servers.postgres import CITEXT, PASSWORD, Database, new_database
from tests.support.sinks.databases import people_of, refused
from tests.support.sinks.people import a_task, people

TEXTS = pa.schema([("id", pa.string()), ("v", pa.string())])


@pytest.fixture
def db() -> Database:
    return new_database()


# Of another user, in a schema where everybody may create: each fits our arguments better than what Postgres has.
EVIL_OPERATORS = [
    ("=", "varchar", "varchar", "bool", "$1::text OPERATOR(pg_catalog.=) $2::text"),
    ("=", "mood", "mood", "bool", "$1::text OPERATOR(pg_catalog.=) $2::text"),
    ("=", "oid", "int2", "bool", "$1 OPERATOR(pg_catalog.=) $2::oid"),
    ("=", "oid", "int4", "bool", "$1 OPERATOR(pg_catalog.=) $2::oid"),
    ("=", "numeric", "int4", "bool", "$1 OPERATOR(pg_catalog.=) $2::numeric"),
    ("=", "oid", "regclass", "bool", "$1 OPERATOR(pg_catalog.=) $2::oid"),
    ("<>", "oid", "regclass", "bool", "$1 OPERATOR(pg_catalog.<>) $2::oid"),
    ("<>", "oid", "int4", "bool", "$1 OPERATOR(pg_catalog.<>) $2::oid"),
    ("=", "name", "varchar", "bool", "$1::text OPERATOR(pg_catalog.=) $2::text"),
    ("||", "int[]", "int4", "int[]", "pg_catalog.array_append($1, $2)"),
]
EVIL_FUNCTIONS = [
    ("cardinality", "int[]", "int4", "pg_catalog.cardinality($1)"),
    ("array_cat", "int[], int[]", "int[]", "pg_catalog.array_cat($1, $2)"),
]


def ambush(db: Database) -> None:
    """Functions and operators that note who runs them."""
    db.run(
        "CREATE ROLE evil; GRANT CREATE, USAGE ON SCHEMA public TO evil; CREATE TABLE loot (who name, what text);"
        "GRANT INSERT ON loot TO PUBLIC; CREATE TYPE mood AS ENUM ('ok', 'bad')"
    )
    body = "LANGUAGE plpgsql AS $f$BEGIN INSERT INTO public.loot VALUES (current_user, '{}'); RETURN {}; END$f$"
    with db.owner() as evil:
        evil.execute("SET ROLE evil")
        for number, (operator, left, right, gives, does) in enumerate(EVIL_OPERATORS):
            says = body.format(f"{left} {operator} {right}", does)
            evil.execute(f"CREATE FUNCTION f{number}({left}, {right}) RETURNS {gives} {says}".encode())
            arguments = f"LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = f{number}"
            evil.execute(f"CREATE OPERATOR public.{operator} ({arguments})".encode())
        for name, takes, gives, does in EVIL_FUNCTIONS:
            evil.execute(f"CREATE FUNCTION {name}({takes}) RETURNS {gives} {body.format(name, does)}".encode())


@pytest.fixture
def ambushed(db: Database) -> Any:
    ambush(db)
    yield db
    db.run("DROP OWNED BY evil; DROP ROLE evil")


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("key", ["varchar(20)", "mood", "text"])
@pytest.mark.parametrize(
    "options", [SoftDeleteOptions(), SoftDeleteOptions(soft_delete="gone")], ids=["delete", "soft"]
)
def test_no_function_or_operator_of_another_user_runs_with_our_rights(
    key: str, options: SoftDeleteOptions, ambushed: Database
) -> None:
    db = ambushed
    ddl = f"CREATE TABLE people (id {key} PRIMARY KEY, v text CHECK (v IS DISTINCT FROM 'no'), gone timestamptz)"
    db.table(ddl)
    task = a_task(TEXTS, options=options)
    rows = people({"id": "ok", "v": "1"}, {"id": "bad", "v": "no"})
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, rows) == [DELIVERED, REJECTED]
        assert deliver(sink, task, [("delete", {"id": "ok"})]) == [DELIVERED]
    updating = a_task(TEXTS, mode=Mode.UPDATE_ONLY, fence=2, first=False)
    with opened(db.sink(), updating) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": False}
        deliver(sink, updating, [("update", {"id": "ok", "v": "2"})])
        sink.finish()
    assert db.sink().missing(next_run(updating)) is None
    assert db.rows("SELECT DISTINCT what FROM loot") == []


def test_a_key_of_a_type_outside_postgres_is_compared_by_the_operator_beside_the_type(db: Database) -> None:
    db.run(f"CREATE SCHEMA extensions; SET search_path = extensions, pg_catalog; {CITEXT}")
    db.run("GRANT USAGE ON SCHEMA extensions TO crm_push")
    db.table("CREATE TABLE people (id extensions.citext PRIMARY KEY, v text)")
    with opened(db.sink(), a_task(TEXTS)) as sink:
        assert deliver(sink, a_task(TEXTS), people({"id": "Ada", "v": "1"})) == [DELIVERED]
        assert deliver(sink, a_task(TEXTS), [("delete", {"id": "Ada"})]) == [DELIVERED]
    assert db.rows("SELECT count(*) FROM people") == [(0,)]


@pytest.mark.guarantee("Postgres")
def test_a_batch_of_bad_rows_is_searched_in_slices_for_the_search_copies_its_list_for_each_row(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(statement: str, ranges: Sequence[range], check: str) -> str:
        asked.append(len(ranges))
        return search(statement, ranges, check)

    monkeypatch.setattr("dbt_reverse_etl.sinks.sql.dialects.postgres.rows.search", noted)
    db.table("CREATE TABLE people (id int PRIMARY KEY, boss int REFERENCES people)")
    bosses = pa.schema([("id", pa.int64()), ("boss", pa.int64())])
    rows = people(*({"id": number, "boss": -1} for number in range(1200)))
    assert [*refused(db, rows, schema=bosses)] == list(range(1200))
    assert max(asked) == 500


def test_a_constraint_that_is_checked_at_the_commit_refuses_its_row_alone(db: Database) -> None:
    db.table(people_of(db, "CONSTRAINT one UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"))
    found = refused(db, people(person(1, "a"), person(2, "b"), person(3, "a")))
    assert set(found.values()) == {"unique violation (23505), constraint one"}
    assert db.rows("SELECT count(*) FROM people") == [(2,)]


def test_a_uuid_key_is_taken_only_in_the_form_in_which_the_table_shows_it(db: Database) -> None:
    db.table("CREATE TABLE people (id uuid PRIMARY KEY, v text)")
    key = "6ecd8c99-4036-403d-bf84-cf8400f67836"
    rows = people({"id": key, "v": "a"}, {"id": key.upper(), "v": "b"}, {"id": "x", "v": "c"})
    assert refused(db, rows, schema=TEXTS) == {1: OTHER_SPELLING, 2: "invalid text representation (22P02)"}
    assert db.rows("SELECT id::text, v FROM people") == [(key, "a")]


def test_an_inet_key_is_taken_only_as_the_table_shows_it_as_a_text(db: Database) -> None:
    db.table("CREATE TABLE people (id inet PRIMARY KEY, v text)")
    rows = people({"id": "10.0.0.1/32", "v": "a"}, {"id": "10.0.0.2", "v": "b"})
    assert refused(db, rows, schema=TEXTS) == {1: OTHER_SPELLING}
    assert db.rows("SELECT id::text, v FROM people") == [("10.0.0.1/32", "a")]


JOINS = ("nestloop", "mergejoin", "indexscan", "bitmapscan")


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("is_empty", [True, False])
def test_an_update_of_a_key_that_the_table_shows_in_another_spelling_is_rejected_not_without_a_match(
    is_empty: bool, db: Database
) -> None:
    db.table("CREATE TABLE people (id uuid PRIMARY KEY, v text CHECK (v <> 'bad'))")
    key = "6ecd8c99-4036-403d-bf84-cf8400f67836"
    if is_empty:  # a plan that reads no staged row where the table has none
        db.run("; ".join(f"ALTER ROLE crm_push IN DATABASE {db.name} SET enable_{name} = off" for name in JOINS))
    else:
        db.run(f"INSERT INTO people VALUES ('{key}', 'a')")
    rows = people({"id": key.upper(), "v": "b"}, {"id": key.replace("6", "7"), "v": "b"})
    said = {0: OTHER_SPELLING, 1: NO_ROW}
    assert refused(db, rows, schema=TEXTS, mode=Mode.UPDATE_ONLY) == said
    found = refused(db, [*rows, *people({"id": "x", "v": "b"})], schema=TEXTS, mode=Mode.UPDATE_ONLY, fence=2)
    assert found == {**said, 2: "invalid text representation (22P02)"}
    assert db.rows("SELECT v FROM people") == ([] if is_empty else [("a",)])


@pytest.mark.guarantee("Postgres")
def test_a_text_that_is_longer_than_its_column_by_blanks_is_refused_and_deletes_no_other_row(db: Database) -> None:
    schema = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string()))])
    db.table("CREATE TABLE people (id varchar(3) PRIMARY KEY, tags varchar(3)[])")
    rows = people({"id": "a  ", "tags": ["äöü"]}, {"id": "b", "tags": [None, "abc "]}, {"id": "a   ", "tags": None})
    said = {row: f"field {name}: longer than the 3 characters of its column" for row, name in ((1, "tags"), (2, "id"))}
    assert refused(db, rows, schema=schema) == said
    assert refused(db, [("delete", {"id": "a   "})], schema=schema, fence=2) == {}
    assert db.rows("SELECT id, tags FROM people") == [("a  ", ["äöü"])]


ENVIRONMENT = {
    "PGHOST": "203.0.113.1",
    "PGHOSTADDR": "203.0.113.1",
    "PGPORT": "1",
    "PGDATABASE": "elsewhere",
    "PGUSER": "postgres",
    "PGPASSWORD": "wrong",
    "PGSSLMODE": "verify-full",
    "PGREQUIREAUTH": "none",
    "PGOPTIONS": "-c no.such=1 -c junk",
    "PGTARGETSESSIONATTRS": "standby",
    "PGCONNECT_TIMEOUT": "x",
    "PGREQUIREPEER": "nobody",
    "PGCHANNELBINDING": "require",
    "PGMINPROTOCOLVERSION": "3.2",
    "PGSERVICE": "elsewhere",
    "PGCLIENTENCODING": "LATIN1",
    "PGDATESTYLE": "German",
    "PGTZ": "Asia/Tokyo",
}


@pytest.mark.guarantee("Postgres")
def test_nothing_of_the_environment_changes_where_and_how_we_connect(
    people_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    service = tmp_path / "services"
    service.write_text("[elsewhere]\nhost=203.0.113.1\ndbname=elsewhere\nuser=postgres\npassword=wrong\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "zwölf"))) == [DELIVERED]
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    assert people_db.rows("SELECT name FROM people") == [("zwölf",)]


@pytest.mark.guarantee("Postgres")
def test_no_password_file_gives_a_password(
    people_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passfile = tmp_path / ".pgpass"
    passfile.write_text(f"*:*:*:*:{PASSWORD}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(psycopg.OperationalError):
        connect(PostgresSettings.model_validate(people_db.settings(password=None)))
    assert os.environ["PGPASSWORD"] == PASSWORD


BOSSES = pa.schema([("id", pa.int64()), ("boss", pa.int64()), ("name", pa.string())])


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_a_row_that_gets_another_parent_stays_where_the_delete_of_the_old_one_cascades(
    action: str, db: Database
) -> None:
    key = f"FOREIGN KEY (firm, boss) REFERENCES people (firm, id) ON DELETE {action}"
    more = f"firm int DEFAULT 7, note text, UNIQUE (firm, id), {key}"
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, boss int, name text UNIQUE, {more})")
    db.run("INSERT INTO people VALUES (1, null, 'a', 8, 'old'), (2, 1, 'b', 8, 'kept'), (3, null, 'c', 8, 'new')")
    moves = [("delete", {"id": 1}), ("update", {"id": 2, "boss": 3, "name": "b"})]
    assert refused(db, moves, schema=BOSSES) == {}
    assert db.rows("SELECT * FROM people WHERE id = 2") == [(2, 3, "b", 8, "kept")]


@pytest.mark.guarantee("Postgres")
def test_a_write_that_a_cascading_delete_undoes_is_refused_and_a_unique_value_may_still_move(db: Database) -> None:
    key = "boss int REFERENCES people ON DELETE CASCADE"
    db.table(f"CREATE TABLE people (id int PRIMARY KEY, {key}, name text UNIQUE DEFERRABLE)")
    db.run("INSERT INTO people VALUES (1, null, 'a'), (2, null, 'b'), (3, null, 'c'), (4, 3, 'd')")
    names = {2: "c", 3: "b", 5: "a"}  # a swap among them, which only one statement after the delete can do
    moves = [("update", {"id": id_, "boss": None, "name": name}) for id_, name in names.items()]
    assert refused(db, [("delete", {"id": 1}), *moves], schema=BOSSES) == {}
    assert dict(db.rows("SELECT id, name FROM people")) == {**names, 4: "d"}
    orphan = [("delete", {"id": 3}), ("update", {"id": 4, "boss": 3, "name": "d"})]
    assert refused(db, orphan, schema=BOSSES, fence=2) == {
        1: "foreign key violation (23503), constraint people_boss_fkey"
    }


@pytest.mark.guarantee("Postgres")
def test_policies_that_hide_rows_are_refused_because_a_hidden_row_looks_deleted(people_db: Database) -> None:
    hides = "CREATE POLICY p ON people USING (name <> 'hidden')"
    people_db.run(f"INSERT INTO people VALUES (1, 'hidden'), (2, 'seen'); {hides}")
    people_db.run("ALTER TABLE people ENABLE ROW LEVEL SECURITY")
    with pytest.raises(DestinationError, match="BYPASSRLS"):
        people_db.sink().open(a_task())
    with pytest.raises(DestinationError, match="BYPASSRLS"):
        list(people_db.sink().read(a_task()))
    people_db.run("ALTER TABLE people DISABLE ROW LEVEL SECURITY")
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), [("delete", person(1))]) == [DELIVERED]
    assert people_db.rows("SELECT id FROM people") == [(2,)]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")])
def test_what_was_delivered_outlives_a_crash_of_the_server_whatever_the_role_says(
    given: str, used: str, people_db: Database
) -> None:
    tells = "BEGIN new.name := current_setting('synchronous_commit'); RETURN new; END"
    people_db.run(
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $${tells}$$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f();"
        f"ALTER ROLE crm_push IN DATABASE {people_db.name} SET synchronous_commit = {given}"
    )
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    assert people_db.rows("SELECT name FROM people") == [(used,)]


def test_a_table_from_which_others_inherit_and_a_database_without_every_character_are_refused(db: Database) -> None:
    db.table(people_of(db))
    db.run("CREATE TABLE people_2024 () INHERITS (people)")
    with pytest.raises(DestinationError, match="inherit"):
        db.sink().open(a_task())
    for encoding in ("LATIN1", "SQL_ASCII"):
        other = f"{db.name}_{encoding.lower()}"
        db.run(f"CREATE DATABASE {other} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        sink = db.sink(database=other)
        for look in (sink.check, lambda sink=sink: sink.open(a_task())):
            with pytest.raises(DestinationError, match=f"encoding {encoding}"):
                look()


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("event", ["DELETE", "INSERT", "UPDATE"])
def test_a_rule_that_does_something_else_instead_is_refused_and_one_that_does_it_too_is_not(
    event: str, people_db: Database
) -> None:
    people_db.run("INSERT INTO people VALUES (1, 'a'); CREATE TABLE lg (id int); GRANT ALL ON lg TO crm_push")
    people_db.run(f"CREATE RULE r AS ON {event} TO people DO INSTEAD DELETE FROM lg")
    with pytest.raises(DestinationError, match="found a rule with DO INSTEAD"):
        people_db.sink().open(a_task())
    if event == "DELETE":  # which an upsert sends none
        assert refused(people_db, people(person(2)), mode=Mode.UPSERT) == {}
        people_db.run("DROP RULE r ON people; DELETE FROM people WHERE id = 2")
        people_db.run("CREATE RULE r AS ON DELETE TO people DO INSTEAD NOTHING")
    people_db.run(
        "ALTER TABLE people ENABLE REPLICA RULE r; CREATE RULE s AS ON DELETE TO people DO ALSO INSERT INTO lg VALUES (OLD.id)"
    )
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), [("delete", person(1))]) == [DELIVERED]
    assert people_db.rows("SELECT id FROM people") == []
    assert people_db.rows("SELECT id FROM lg") == [(1,)]


PARTITIONED = "CREATE TABLE people (id int PRIMARY KEY, name text, score float) PARTITION BY RANGE (id)"
LOGGED = "CREATE TABLE part1 PARTITION OF people FOR VALUES FROM (0) TO (9)"
EMPTIED = "CREATE UNLOGGED TABLE part2 PARTITION OF people FOR VALUES FROM (9) TO (99)"


@pytest.mark.guarantee("Postgres")
def test_a_table_or_partition_that_a_crash_of_the_server_empties_is_refused_until_it_is_logged(db: Database) -> None:
    plain = people_of(db).replace("TABLE", "UNLOGGED TABLE")
    for statements, unlogged in (([plain], "people"), ([PARTITIONED, LOGGED, EMPTIED], "part2")):
        db.run("DROP TABLE IF EXISTS people")
        db.table(";".join(statements))
        with pytest.raises(DestinationError, match="which a crash of the server empties") as caught:
            db.sink().open(a_task())
        assert "SET LOGGED" in caught.value.problems[0].next_step
        db.run(f"ALTER TABLE {unlogged} SET LOGGED")
        assert refused(db, people(person(1), person(10))) == {}


def test_a_row_without_a_partition_is_refused_with_words_that_name_partitions(db: Database) -> None:
    db.table(f"{PARTITIONED};{LOGGED}; ALTER TABLE people ADD CONSTRAINT nobody CHECK (name <> 'bad')")
    found = refused(db, people(person(1), person(10), person(2, "bad")))
    assert found == {
        1: "check violation (23514): no partition takes the row, or a trigger refused it",
        2: "check violation (23514), constraint nobody",
    }


def test_a_temporary_table_is_refused_because_it_ends_with_its_session(db: Database) -> None:
    with db.owner() as other:
        other.execute("CREATE TEMPORARY TABLE people (id int PRIMARY KEY, name text, score float)")
        schema = db.rows("SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'people'")[0][0]
        db.run(f"GRANT USAGE ON SCHEMA {schema} TO crm_push")
        with pytest.raises(DestinationError, match="a temporary table, which ends with its session"):
            db.sink(state_schema="public").open(a_task(object=f"{schema}.people"))
