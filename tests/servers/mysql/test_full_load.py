"""What a full load leaves of a MariaDB table: all of it but the rows, whatever hangs on it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.mysql import Database, new_database
from tests.support.sinks.full_loading import FULL, is_renamed
from tests.support.sinks.people import a_task, people

UTF8 = "CHARACTER SET utf8mb4"
PLAIN = f"CREATE TABLE people (id int PRIMARY KEY, name varchar(40), score double) {UTF8}"


@pytest.fixture
def db() -> Database:
    return new_database()


def definition(db: Database) -> list[Any]:
    """What the server says of the table, its triggers, views and rights."""
    said: list[Any] = [re.sub(r" AUTO_INCREMENT=\d+", "", ddl) for _, ddl in db.rows("SHOW CREATE TABLE people")]
    said += [row[:5] for row in db.rows("SHOW TRIGGERS")]
    said += db.rows(f"SELECT * FROM information_schema.VIEWS WHERE table_schema = '{db.name}'")
    return said + db.rows("SHOW GRANTS FOR crm_push")


def prepared(db: Database, ddl: str, *, renames: bool = True) -> list[Any]:
    """The table with two rows; its definition."""
    db.table(ddl)
    db.may_load(renames=renames)
    with opened(db.sink(), a_task()) as sink:
        deliver(sink, a_task(), people(person(1, "old"), person(2, "old")))
    return definition(db)


RICH = (
    "CREATE TABLE people (score double, id int COMMENT 'who', "
    "made date NOT NULL DEFAULT '2024-01-01', name varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
    "up varchar(40) AS (upper(name)) STORED, low varchar(40) AS (lower(name)) VIRTUAL, PRIMARY KEY (id), "
    "UNIQUE KEY pair (name, id), KEY by_name (name(3), score), CONSTRAINT positive CHECK (score > 0)) "
    f"{UTF8} COMMENT 'whom we know' ROW_FORMAT=DYNAMIC"
)


@pytest.mark.guarantee("Full loads")
def test_a_table_is_swapped_by_a_rename_and_keeps_everything_that_it_was(db: Database) -> None:
    before = prepared(db, f"{RICH}\nCREATE VIEW v AS SELECT id, up FROM people")
    assert is_renamed(db)
    assert definition(db) == before
    assert db.rows("SELECT v.up, made + 0 FROM v JOIN people USING (id)") == [("NEW", 20240101)] * 2
    with opened(db.sink(), next_run(a_task(), 3)) as sink:
        (refused,) = sink.deliver(batch_of(FULL, people(person(4, "new", -1.0)))).results
        assert refused.reason == "check constraint violated (4025), positive"


ATTACHED = {
    "a trigger": f"{PLAIN}\nCREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW SET @seen = new.id",
    "a foreign key": "CREATE TABLE people (id int PRIMARY KEY, name text, score double, town int, "
    f"FOREIGN KEY (town) REFERENCES town (n)) {UTF8}",
    "a number that counts": "CREATE TABLE people (n int AUTO_INCREMENT UNIQUE, id int PRIMARY KEY, name text, score double) "
    f"{UTF8}",
    "partitions": f"{PLAIN} PARTITION BY HASH (id) PARTITIONS 3",
}


@pytest.mark.guarantee("Full loads")
@pytest.mark.parametrize("attached", ATTACHED)
def test_what_hangs_on_a_table_is_kept(attached: str, db: Database) -> None:
    db.run(f"CREATE TABLE town (n int PRIMARY KEY)\nGRANT REFERENCES ON {db.name}.town TO crm_push")
    before = prepared(db, ATTACHED[attached])
    assert is_renamed(db) is (attached == "partitions"), "LIKE makes partitions too"
    assert definition(db) == before
    with opened(db.sink(), next_run(a_task(), 3)) as sink:
        assert sink.settle(["whole"]) == {"whole": True}
        assert deliver(sink, a_task(), people(person(9))) == [Outcome.DELIVERED]


def test_without_the_right_to_see_triggers_nothing_is_renamed(db: Database) -> None:
    prepared(db, ATTACHED["a trigger"])
    db.run("REVOKE TRIGGER ON people FROM crm_push")
    before = definition(db)
    assert not is_renamed(db)
    assert definition(db) == before


def test_with_half_of_the_rights_to_rename_the_rows_are_replaced(db: Database) -> None:
    prepared(db, PLAIN)
    db.run("REVOKE ALTER ON people FROM crm_push")
    assert not is_renamed(db)


ORDERS = (
    "CREATE TABLE orders (person int, FOREIGN KEY (person) REFERENCES people (id) ON DELETE CASCADE)\n"
    "INSERT INTO orders VALUES (2)"
)


@pytest.mark.guarantee("Full loads")
def test_a_row_that_stays_keeps_the_rows_that_point_at_it(db: Database) -> None:
    prepared(db, PLAIN, renames=False)
    db.run(ORDERS)
    assert not is_renamed(db)
    assert db.rows("SELECT person FROM orders") == [(2,)]


@pytest.mark.guarantee("Full loads")
def test_a_rename_is_taken_back_where_a_foreign_key_that_we_cannot_see_points_at_the_table(db: Database) -> None:
    prepared(db, PLAIN)
    db.run(ORDERS)
    before = definition(db), db.rows("SHOW CREATE TABLE orders")
    with opened(db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new")), "whole", last=False)
        with pytest.raises(DestinationError, match="a foreign key points at"):
            sink.swap("whole")
    assert (definition(db), db.rows("SHOW CREATE TABLE orders")) == before
    assert db.rows("SELECT id, name FROM people ORDER BY id") == [(1, "old"), (2, "old")]
    with opened(db.sink(), next_run(a_task(), 3)) as sink:
        assert sink.settle(["whole"]) == {"whole": None}


TOWNS = pa.schema([("id", pa.int64()), ("town", pa.int64())])


@pytest.mark.guarantee("Full loads")
def test_a_row_without_its_parent_is_found_while_loading(db: Database) -> None:
    db.run("CREATE TABLE town (n int PRIMARY KEY)\nINSERT INTO town VALUES (1)")
    db.table("CREATE TABLE people (id int PRIMARY KEY, town int, FOREIGN KEY (town) REFERENCES town (n))")
    db.may_load()
    task = replace(a_task(TOWNS), full_load=True)
    with pytest.raises(DestinationError, match="REFERENCES on"), opened(db.sink(), task):
        pass
    db.run(f"GRANT REFERENCES ON {db.name}.town TO crm_push")
    with opened(db.sink(), task) as sink:
        rows: Any = people({"id": 1, "town": 1}, {"id": 2, "town": 9})
        (refused,) = sink.deliver(batch_of(task, rows, "whole", last=False)).results
        assert refused.index == 1
        assert refused.reason.startswith("no referenced row 2 (1452)")
        sink.swap("whole")
    assert db.rows("SELECT * FROM people") == [(1, 1)]


@pytest.mark.guarantee("Full loads")
def test_a_trigger_that_refuses_a_row_stops_the_swap_and_the_object_is_as_it_was(db: Database) -> None:
    body = "IF new.id = 3 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'canary'; END IF"
    prepared(db, f"{PLAIN}\nCREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW {body}")
    with opened(db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new"), person(3, "canary")), "whole", last=False)
        with pytest.raises(DestinationError, match="refused by a trigger") as caught:
            sink.swap("whole")
    assert "canary" not in f"{caught.value!r} {caught.value}"
    assert db.rows("SELECT id, name FROM people ORDER BY id") == [(1, "old"), (2, "old")]


def test_a_key_in_another_spelling_is_replaced_as_a_whole(db: Database) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    db.table(f"CREATE TABLE people (id varchar(9) PRIMARY KEY, v int) {UTF8}")
    db.may_load()
    db.run("INSERT INTO people VALUES ('ADA', 1), ('bob', 1)")
    task = replace(a_task(schema), full_load=True)
    with opened(db.sink(), task) as sink:
        deliver(sink, task, people({"id": "Ada", "v": 2}), "whole", last=False)
        sink.swap("whole")
    assert db.rows("SELECT id, v FROM people") == [("Ada", 2)]
