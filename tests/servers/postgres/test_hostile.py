"""A real Postgres server on which other users, triggers and whole batches of bad rows work against the sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.postgres.settings import PostgresOptions
from dbt_reverse_etl.sinks.sql.postgres.statements import search
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.postgres import CITEXT, Database, new_database
from tests.support.sinks.people import a_task, people

DELIVERED = Outcome.DELIVERED
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
@pytest.mark.parametrize("options", [PostgresOptions(), PostgresOptions(soft_delete="gone")], ids=["delete", "soft"])
def test_no_function_or_operator_of_another_user_runs_with_our_rights(
    key: str, options: PostgresOptions, ambushed: Database
) -> None:
    db = ambushed
    ddl = f"CREATE TABLE people (id {key} PRIMARY KEY, v text CHECK (v IS DISTINCT FROM 'no'), gone timestamptz)"
    db.table(ddl)
    task = a_task(TEXTS, options=options)
    rows = people({"id": "ok", "v": "1"}, {"id": "bad", "v": "no"})
    with opened(db.sink(), task) as sink:
        assert deliver(sink, task, rows) == [DELIVERED, Outcome.REJECTED]
        assert deliver(sink, task, [("delete", {"id": "ok"})]) == [DELIVERED]
    updating = a_task(TEXTS, mode=Mode.UPDATE_ONLY, fence=2, first=False)
    with opened(db.sink(), updating) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": False}
        deliver(sink, updating, [("update", {"id": "ok", "v": "2"})])
        sink.finish()
    assert db.sink().missing(next_run(updating)) is None
    assert db.rows("SELECT DISTINCT what FROM loot") == []


@pytest.mark.guarantee("Full loads")
@pytest.mark.parametrize("owner", ["crm_push", "postgres"])
def test_nothing_of_another_user_runs_in_a_full_load_whether_it_renames_or_replaces(
    owner: str, ambushed: Database
) -> None:
    db = ambushed
    db.table("CREATE TABLE people (id text PRIMARY KEY, v varchar(9) UNIQUE, w text)")
    db.run(f"ALTER TABLE people OWNER TO {owner}")
    db.may_load()
    task = replace(a_task(TEXTS), full_load=True)
    with opened(db.sink(), task) as sink:
        deliver(sink, task, people({"id": "a", "v": "1"}, {"id": "b", "v": "1"}), last=False)
        sink.swap("claim-1")
    assert db.rows("SELECT id FROM people") == [("a",)]
    assert db.rows("SELECT DISTINCT what FROM loot") == []


def test_a_key_of_a_type_outside_postgres_is_compared_by_the_operator_beside_the_type(db: Database) -> None:
    db.run(f"CREATE SCHEMA extensions; SET search_path = extensions, pg_catalog; {CITEXT}")
    db.run("GRANT USAGE ON SCHEMA extensions TO crm_push")
    db.table("CREATE TABLE people (id extensions.citext PRIMARY KEY, v text)")
    with opened(db.sink(), a_task(TEXTS)) as sink:
        assert deliver(sink, a_task(TEXTS), people({"id": "Ada", "v": "1"})) == [DELIVERED]
        assert deliver(sink, a_task(TEXTS), [("delete", {"id": "Ada"})]) == [DELIVERED]
    assert db.rows("SELECT count(*) FROM people") == [(0,)]


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


BOSSES = pa.schema([("id", pa.int64()), ("boss", pa.int64())])


def refused(db: Database, rows: Sequence[dict[str, int | None]]) -> list[int]:
    db.table("CREATE TABLE people (id int PRIMARY KEY, boss int REFERENCES people)")
    task = a_task(BOSSES)
    with opened(db.sink(), task) as sink:
        return [result.index for result in sink.deliver(batch_of(task, people(*rows))).results]


def test_a_batch_of_bad_rows_is_searched_in_slices_for_the_search_copies_its_list_for_each_row(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(*given: Any, **more: Any) -> Any:
        asked.append(len(given[1]))
        return search(*given, **more)

    monkeypatch.setattr("dbt_reverse_etl.sinks.sql.postgres.rows.search", noted)
    assert refused(db, [{"id": number, "boss": -1} for number in range(1200)]) == list(range(1200))
    assert max(asked) == 500


def test_rows_that_wait_for_each_other_find_each_other_over_the_slices(db: Database) -> None:
    chain = [{"id": number, "boss": number + 1 if number < 1199 else None} for number in range(1200)]
    assert refused(db, [*chain, {"id": -2, "boss": -1}]) == [1200]
    assert db.rows("SELECT count(*) FROM people") == [(1200,)]
