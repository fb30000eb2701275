"""What a table of somebody else does by itself: defaults in local time, triggers that refuse or fill, keys that it makes, limits."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.sinks.refusals import NO_ROW
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import connect, run
from dbt_reverse_etl.sinks.sql.dialects.postgres import rows as postgres_rows
from dbt_reverse_etl.sinks.sql.rows import OTHER_KEY
from dbt_reverse_etl.sinks.sql.settings import SoftDeleteOptions
from dbt_reverse_etl.testing import deliver, opened, person
from tests.support.outcomes import DELIVERED, FATAL, NO_MATCH, REJECTED, RETRYABLE
from tests.support.sinks.databases import SERVERS, TYPES, people_of, refused
from tests.support.sinks.people import a_task, people

servers = pytest.mark.parametrize("db", SERVERS, indirect=True)
of_postgres = pytest.mark.parametrize("db", ["postgres"], indirect=True)
of_mysql = pytest.mark.parametrize("db", ["mysql"], indirect=True)
NOON = datetime(2024, 7, 1, 12, tzinfo=timezone.utc)
INSTANT = pa.timestamp("us", "UTC")


@pytest.fixture
def zoned(db: Any) -> Any:
    """Nine hours after UTC by its own clock."""
    if db.kind == "postgres":
        db.run(f"ALTER DATABASE {db.name} SET timezone = 'Asia/Tokyo'")
        yield db
        return
    db.run("SET GLOBAL time_zone = '+09:00'")
    yield db
    db.run("SET GLOBAL time_zone = 'SYSTEM'")


def hours(db: Any, column: str) -> int:
    """How far a local time that was just written is from UTC."""
    ((found,),) = db.rows(f"SELECT DISTINCT {column} FROM people WHERE {column} IS NOT NULL")
    return round((found - datetime.now(timezone.utc).replace(tzinfo=None)) / timedelta(hours=1))


@pytest.mark.guarantee(
    "What is sent", "A column that is not mapped gets the local time that the server's own default gives"
)
@servers
def test_a_default_writes_the_local_time_of_the_server(zoned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    local = "timestamp" if zoned.kind == "postgres" else "datetime"
    zoned.table(people_of(zoned, f"made {local} DEFAULT CURRENT_TIMESTAMP"))
    assert refused(zoned, people(person(1))) == {}
    assert hours(zoned, "made") == 9
    if zoned.kind == "postgres":
        zoned.run("DELETE FROM people")
        monkeypatch.setenv("PGTZ", "America/New_York")
        assert refused(zoned, people(person(1)), fence=2) == {}
        assert hours(zoned, "made") == 0, "nothing of the environment is read"


@pytest.mark.guarantee("What is sent")
@servers
def test_in_whatever_zone_the_server_is_what_is_sent_and_marked_is_in_utc(zoned: Any) -> None:
    postgres = zoned.kind == "postgres"
    local, instant = ("timestamp", "timestamptz") if postgres else ("datetime(6)", "timestamp(6) NULL")
    others = [] if postgres else [(instant, local), (local, local)]
    for fence, (soft, at) in enumerate([(local, instant), (instant, instant), *others], 1):
        many = ", many timestamptz[]" if postgres else ""
        zoned.table(f"CREATE TABLE people (id bigint PRIMARY KEY, at {at}{many}, gone {soft})")
        columns = [("id", pa.int64()), ("at", INSTANT), *([("many", pa.list_(INSTANT))] if postgres else [])]
        task = a_task(pa.schema(columns), fence=fence, options=SoftDeleteOptions(soft_delete="gone"))
        row = {"id": 1, "at": NOON, **({"many": [NOON]} if postgres else {})}
        with opened(zoned.sink(), task) as sink:
            assert deliver(sink, task, people(row, row | {"id": 2})) == [DELIVERED] * 2
            assert [one for part in sink.read(task) for one in part.select(["at"]).to_pylist()] == [{"at": NOON}] * 2
            assert deliver(sink, task, [("delete", {"id": 2})]) == [DELIVERED]
        if postgres:
            assert zoned.rows("SELECT at, many[1] FROM people WHERE id = 1") == [(NOON, NOON)]
        shown = "gone AT TIME ZONE 'UTC'" if postgres else "CONVERT_TZ(gone, '+09:00', '+00:00')"
        assert hours(zoned, "gone" if soft == local else f"({shown})") == 0
        zoned.run("DROP TABLE people")


def before(db: Any, body: str, events: str = "INSERT OR UPDATE", name: str = "t", argument: str = "") -> None:
    body = f"BEGIN {body} RETURN coalesce(new, old); END"
    db.run(
        f"CREATE OR REPLACE FUNCTION f_{name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$;"
        f"CREATE OR REPLACE TRIGGER {name} BEFORE {events} ON people FOR EACH ROW EXECUTE FUNCTION f_{name}({argument})"
    )


@pytest.mark.guarantee(
    "Refusals and outages", "A row that a trigger refuses with a state of the server's own stops no other row"
)
@pytest.mark.parametrize("state", ["38000", "XX000", "0A000", "42501", "55000", "28000", "53400", "57014", "58030"])
@of_postgres
def test_a_row_that_a_trigger_refuses_is_refused_alone_whatever_state_it_gives(state: str, db: Any) -> None:
    db.table(people_of(db))
    db.run("INSERT INTO people (id, name) VALUES (7, 'bad'), (8, 'bad')")
    deny = f"BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END"
    db.run(f"CREATE FUNCTION deny() RETURNS void LANGUAGE plpgsql AS $${deny}$$")
    before(db, "IF (coalesce(new, old)).name = 'bad' THEN PERFORM deny(); END IF;", "INSERT OR UPDATE OR DELETE")
    rows = [*people(person(1, "a"), person(2, "bad"), person(3, "c")), ("delete", person(7)), ("delete", person(8))]
    found = refused(db, rows)
    assert [*found] == [1, 3, 4]
    assert all(state in reason for reason in found.values())
    assert db.rows("SELECT id FROM people ORDER BY 1") == [(1,), (3,), (7,), (8,)]
    with opened(db.sink(), task := a_task(fence=2)) as sink:
        for again in (rows[1:2], rows[3:]):
            assert deliver(sink, task, again) == [REJECTED] * len(again), "no other row of the batch arrives"


@of_postgres
def test_what_a_trigger_raises_is_known_wherever_the_language_of_the_server_puts_the_word(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "RAISED", "at RAIS")  # as if a word came after it
    db.table(people_of(db))
    before(db, "IF new.name = 'bad' THEN RAISE insufficient_privilege; END IF;")
    assert [*refused(db, people(person(1, "a"), person(2, "bad")))] == [1]


@of_postgres
def test_the_word_raise_in_a_statement_of_a_trigger_stops_the_sync_for_a_missing_right(db: Any) -> None:
    db.table(people_of(db))
    db.run('CREATE TABLE "FUNDRAISERS" (id bigint)')  # nobody may write to it
    before(db, """EXECUTE format('INSERT INTO "FUNDRAISERS" SELECT 1 WHERE %L IS NOT NULL', 'RAISE');""")
    with opened(db.sink(), task := a_task()) as sink:
        assert deliver(sink, task, people(person(1, "a"), person(2, "b"))) == [FATAL] * 2


@pytest.mark.parametrize("state", ["40001", "55P03", "08006", "57P03"])
@of_postgres
def test_what_a_trigger_raises_with_a_state_that_asks_for_a_repeat_is_retried(state: str, db: Any) -> None:
    db.table(people_of(db))
    before(db, f"IF new.name = 'bad' THEN RAISE EXCEPTION USING ERRCODE = '{state}'; END IF;")
    before(db, "IF new.name = 'worse' THEN new.score := 1 / 0; END IF;", name="u")
    worse, bad = people(person(1, "worse")), people(person(2, "bad"))
    with opened(db.sink(), task := a_task()) as sink:
        assert deliver(sink, task, bad) == [RETRYABLE]
        assert deliver(sink, task, [*worse, *bad]) == [RETRYABLE] * 2, "also when the rows are searched"


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("state", ["38000", "XX000"])
@of_postgres
def test_an_error_of_another_language_refuses_its_row_also_if_no_other_is_in_its_batch(
    state: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "RAISED", "of Perl")
    db.table(people_of(db))
    db.run("INSERT INTO people (id, name) VALUES (7, 'bad'), (8, 'bad'), (9, 'good')")
    fails = f"RAISE EXCEPTION USING ERRCODE = '{state}'"
    before(db, f"IF (coalesce(new, old)).name = 'bad' THEN {fails}; END IF;", "INSERT OR UPDATE OR DELETE")
    bad, good = people(person(1, "bad"), person(2, "bad")), people(person(3, "a"))
    gone = [("delete", person(key)) for key in (7, 8, 9)]
    with opened(db.sink(), task := a_task()) as sink:
        assert deliver(sink, task, [*bad, *good, *gone]) == [REJECTED, REJECTED, DELIVERED] * 2
        for again in (bad, gone[:2]):
            assert deliver(sink, task, again) == [REJECTED] * 2, "as they come in later pushes"


@of_postgres
def test_an_internal_error_that_nobody_raised_refuses_its_row(db: Any) -> None:
    db.table(people_of(db))
    before(db, "IF new.name = 'bad' THEN PERFORM array_in('{1}', 1, -1); END IF;")
    found = refused(db, people(person(1, "a"), person(2, "bad"), person(3, "c")))
    assert [*found] == [1]
    assert "XX000" in found[1]


@pytest.mark.guarantee("Refusals and outages")
@of_postgres
def test_a_right_that_a_push_lacks_stops_it_and_refuses_no_row(db: Any) -> None:
    db.table(people_of(db))
    db.run("INSERT INTO people (id, name) VALUES (9, 'x'); REVOKE DELETE ON people FROM crm_push")
    rows = [*people(person(1), person(2)), ("delete", person(9))]
    with opened(db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), rows) == [FATAL] * 3, "although the writes would go well"
    db.run("GRANT DELETE ON people TO crm_push; CREATE TABLE log (id int)")
    for fence, who in enumerate(("true", "new.id = 1", "new.id = 2"), 2):
        before(db, f"IF {who} THEN INSERT INTO log VALUES (1); END IF;")
        with opened(db.sink(), task := a_task(fence=fence)) as sink:
            assert deliver(sink, task, rows[:2]) == [FATAL] * 2, "also if another row does not meet it"
    assert db.rows("SELECT id FROM people") == [(9,)]


@pytest.mark.guarantee("Refusals and outages")
@of_postgres
def test_the_delete_of_a_key_that_its_column_cannot_hold_is_done_and_one_that_a_trigger_refuses_is_not(db: Any) -> None:
    db.table("CREATE TABLE people (id int PRIMARY KEY, name text)")
    db.run("INSERT INTO people VALUES (1, 'a'), (2, 'b')")
    before(db, "IF old.id = 2 THEN old.id := 1 / 0; END IF;", "DELETE")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows = [("delete", {"id": key}) for key in (3_000_000_000, 1, 2)]
    found = refused(db, rows, schema=schema)
    assert [*found] == [2]
    assert "22012" in found[2]
    assert db.rows("SELECT id FROM people") == [(2,)]
    db.run("DROP TABLE people")
    db.table("CREATE TABLE people (id uuid PRIMARY KEY, name text)")
    texts = pa.schema([("id", pa.string()), ("name", pa.string())])
    gone = [("delete", {"id": key}) for key in ("n/a", "a\0b")]
    assert refused(db, gone, schema=texts, fence=2) == {}


@of_postgres
def test_a_column_that_a_trigger_fills_need_not_be_mapped(db: Any) -> None:
    db.table(people_of(db, "x int NOT NULL"))
    before(db, "new.x := 7;", "UPDATE")
    with pytest.raises(DestinationError, match="x is NOT NULL"):
        db.sink().open(a_task())
    before(db, "New.X := 7;", "INSERT")
    assert refused(db, people(person(1)), fence=2) == {}
    assert db.rows("SELECT id, x FROM people") == [(1, 7)]
    db.run("ALTER TABLE people ENABLE REPLICA TRIGGER t")
    with pytest.raises(DestinationError, match="x is NOT NULL"):
        db.sink().open(a_task(fence=3))
    by_name = "new := jsonb_populate_record(new, jsonb_build_object(TG_ARGV[0], 8));"
    before(db, by_name, "INSERT", name="u", argument="'x'")
    assert refused(db, people(person(2)), fence=4) == {}
    assert db.rows("SELECT x FROM people WHERE id = 2") == [(8,)]


@of_postgres
def test_a_column_of_a_domain_that_takes_no_null_is_required_unless_there_is_a_default(db: Any) -> None:
    db.run("CREATE DOMAIN needed AS int NOT NULL; CREATE DOMAIN filled AS int NOT NULL DEFAULT 1")
    db.table(people_of(db, "a needed", "b needed DEFAULT 2", "c filled"))
    with pytest.raises(DestinationError, match="column a is NOT NULL, has no default and is not mapped") as caught:
        db.sink().open(a_task())
    assert len(caught.value.problems) == 1


@pytest.mark.guarantee("Configuration", "A required column that no trigger fills is named before anything is sent")
@of_postgres
def test_a_required_column_that_no_trigger_names_stops_the_sync_unless_one_is_in_another_language(db: Any) -> None:
    db.table(people_of(db, "required int NOT NULL", "updated_at timestamptz", "words tsvector"))
    before(db, "new.updated_at := now();")
    with pytest.raises(DestinationError, match="found column required is NOT NULL, has no default and is not mapped"):
        db.sink().open(a_task())
    with pytest.raises(
        DestinationError, match="required, or give it a default, or name it in the function of the trigger"
    ):
        db.sink().open(a_task())
    of_c = "tsvector_update_trigger(words, 'pg_catalog.english', name)"
    db.run(f"CREATE TRIGGER w BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION {of_c}")
    assert [*refused(db, people(person(1)), fence=2)] == [0], "nobody knows what it fills"


GENERATED = {
    "postgres": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "n bigint, id bigint AS (n) STORED UNIQUE",
    "sqlite": "n bigint, id bigint AS (n) STORED UNIQUE",
}


@pytest.mark.parametrize("db", [*GENERATED], indirect=True)
def test_update_only_finds_rows_by_a_key_that_the_table_makes(db: Any) -> None:
    n = "" if db.kind == "postgres" else "n, "
    end = " CHARACTER SET utf8mb4" if db.kind == "mysql" else ""
    db.table(f"CREATE TABLE people ({GENERATED[db.kind]}, name varchar(9), score {TYPES[db.kind]['double']}){end}")
    db.run(f"INSERT INTO people ({n}name) VALUES ({'1, ' if n else ''}'old')")
    task = a_task(mode=Mode.UPDATE_ONLY)
    assert not db.sink().rights(a_task(pa.schema([("id", pa.string())]), mode=Mode.UPDATE_ONLY, known="key")).missing
    with opened(db.sink(), task) as sink:
        rows = [("update", person(1, "new")), ("update", person(5, "new"))]
        assert deliver(sink, task, rows) == [DELIVERED, NO_MATCH]
    assert db.rows("SELECT id, name FROM people") == [(1, "new")]
    for other in (a_task(fence=2), a_task(pa.schema([("id", pa.int64())]), mode=Mode.UPDATE_ONLY, fence=3)):
        with pytest.raises(DestinationError, match="id is a generated column"):
            db.sink().open(other)


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize("bad", [False, True], ids=["alone", "beside a refused row"])
@pytest.mark.parametrize("db", [*GENERATED], indirect=True)
def test_an_update_that_moves_its_row_to_another_generated_key_is_refused(bad: bool, db: Any) -> None:
    text = TYPES[db.kind]["text"]
    end = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if db.kind == "mysql" else ""
    own = f"id {text} GENERATED ALWAYS AS (lower(email)) STORED UNIQUE, name {text}, CHECK (name <> 'bad')"
    db.table(f"CREATE TABLE people (email {text}, {own}){end}")
    db.run("INSERT INTO people (email, name) VALUES ('a@x', 'old'), ('b@x', 'old'), ('d@x', 'old')")
    schema = pa.schema([(name, pa.string()) for name in ("id", "email", "name")])
    values = [("a@x", "c@x", "new"), ("b@x", "B@x", "new"), *[("d@x", "d@x", "bad")] * bad]
    rows = [("update", dict(zip(schema.names, row, strict=True))) for row in values]
    found = refused(db, rows, schema=schema, mode=Mode.UPDATE_ONLY)
    assert [*found] == [0, 2][: 1 + bad]
    assert found[0] == OTHER_KEY
    left = [("a@x", "a@x", "old"), ("b@x", "B@x", "new"), ("d@x", "d@x", "old")]
    assert db.rows("SELECT id, email, name FROM people ORDER BY 1") == left


@pytest.mark.guarantee("Configuration")
@of_postgres
def test_the_rights_on_the_sequence_of_a_default_and_on_the_schema_of_a_type_are_named_and_cure_it(db: Any) -> None:
    db.run("CREATE SCHEMA ext; CREATE TYPE ext.mood AS ENUM ('Ada'); CREATE SCHEMA seq; CREATE SEQUENCE seq.taken")
    db.run("CREATE DOMAIN inner_mood AS ext.mood; CREATE DOMAIN mood AS inner_mood")
    own = "n serial, m int DEFAULT nextval('seq.taken'), i int GENERATED ALWAYS AS IDENTITY"
    db.table(f"CREATE TABLE people (id serial PRIMARY KEY, name mood, score float, {own})")

    def lacks(**task: Any) -> list[tuple[str, str]]:
        return [(one.found, one.next_step) for one in db.sink().rights(a_task(**task)).missing]

    (schema, of_schema), *sequences = lacks(known="names")
    assert schema == "no right USAGE on schema ext, of a type"
    names = [found for found, _ in sequences]
    assert names == [f"no right USAGE on sequence {name}" for name in ("public.people_n_seq", "seq.taken")]
    assert len(lacks(known="names", mode=Mode.UPDATE_ONLY)) == 1
    assert lacks(known="key", schema=pa.schema([("id", pa.int64())])) == [], "the model may have the other columns"
    with opened(db.sink(), task := a_task()) as sink:
        assert deliver(sink, task, people(person(1))) == [FATAL]
        db.run(of_schema)
        assert deliver(sink, task, people(person(1))) == [FATAL]
        for _, grant in sequences:
            db.run(grant)
        assert lacks(known="names") == []
        assert deliver(sink, task, people(person(1))) == [DELIVERED]


@of_mysql
def test_an_old_default_of_a_date_of_zeros_refuses_no_row(db: Any) -> None:
    end = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    ddl = f"CREATE TABLE people (id bigint PRIMARY KEY, name text, score double, z datetime NOT NULL DEFAULT 0) {end}"
    db.table(f"SET SESSION sql_mode = ''\n{ddl}")
    assert refused(db, people(person(1))) == {}
    assert db.rows("SELECT CAST(z AS char) FROM people") == [("0000-00-00 00:00:00",)]


@pytest.mark.guarantee("MySQL and MariaDB")
@of_mysql
def test_no_limit_of_the_server_cuts_our_answers_or_ends_long_statements(db: Any) -> None:
    db.make(a_task())
    try:
        db.run("SET GLOBAL sql_select_limit = 2\nSET GLOBAL max_statement_time = 0.2")
        with closing(connect(db.sink()._settings)) as connection:
            assert len(run(connection, "SELECT 1 UNION SELECT 2 UNION SELECT 3").fetchall()) == 3
            assert run(connection, "SELECT SLEEP(0.5)").fetchone() == (0,)
        found = refused(db, [("update", person(key)) for key in range(5)], mode=Mode.UPDATE_ONLY)
        assert found == dict.fromkeys(range(5), NO_ROW)
    finally:
        db.run(f"SET GLOBAL sql_select_limit = {2**64 - 1}\nSET GLOBAL max_statement_time = 0")


@pytest.mark.guarantee("MySQL and MariaDB")
@of_mysql
def test_bytes_that_the_server_cannot_show_in_one_packet_are_unreadable_not_null(db: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary())])
    db.table("CREATE TABLE people (id int PRIMARY KEY, data longblob)")
    db.run("INSERT INTO people VALUES (1, REPEAT('x', 600000)), (2, 'ab'), (3, NULL)")
    ((before,),) = db.rows("SELECT @@max_allowed_packet")
    try:
        db.run(f"SET GLOBAL max_allowed_packet = {2**20}")
        with closing(db.sink()) as sink:
            (part,) = sink.read(a_task(schema))
    finally:
        db.run(f"SET GLOBAL max_allowed_packet = {before}")
    read = {row["id"]: (row["data"], row[UNREADABLE]) for row in part.to_pylist()}
    assert read == {1: (None, True), 2: (b"ab", False), 3: (None, False)}
