"""Triggers of Postgres that log changed keys: several logs of one table, and triggers that an earlier build named."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros
from tests.support.servers.postgres import Database, new_database

TABLE = '"sh""op"."or\'ders"'


@pytest.fixture
def shop() -> Database:
    database = new_database()
    database.run(f'create schema "sh""op"; create table {TABLE} (id int primary key)')
    return database


def ddl(log: str) -> str:
    """What the operation prints."""
    printed: list[str] = []
    context: dict[str, Any] = {
        "print": printed.append,
        "local_md5": lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
    }
    Macros(**context).change_table_ddl("postgres", ['sh"op', "or'ders"], "id", log=log)
    return printed[0]


def ddl_of_an_earlier_build(log: str) -> str:
    """The same with the names that every log's triggers had."""
    script = ddl(log)
    for suffix, former in (("_change", "reverse_etl_log"), ("_trunc", "reverse_etl_log_truncate")):
        script = script.replace(f'trigger "{log}{suffix}"', f"trigger {former}")
    return script


def logged(shop: Database, log: str) -> list[tuple[Any, ...]]:
    return shop.rows(f'select log_operation, id from "sh""op"."{log}" order by log_sequence')


def triggers(shop: Database) -> list[str]:
    rows = shop.rows("select tgname from pg_trigger where not tgisinternal order by tgname")
    return [row[0] for row in rows]


@pytest.mark.guarantee("Capture")
def test_two_logs_of_one_table_go_on_side_by_side(shop: Database) -> None:
    for log in ("prod_log", "dev_log", "dev_log"):
        shop.run(ddl(log))
    shop.run(f"insert into {TABLE} values (1); truncate {TABLE}")
    assert logged(shop, "prod_log") == logged(shop, "dev_log") == [("I", 1), ("T", 1)]


def test_the_ddl_replaces_the_triggers_that_an_earlier_build_made_for_its_log(shop: Database) -> None:
    shop.run(ddl_of_an_earlier_build("prod_log"))
    assert triggers(shop) == ["reverse_etl_log", "reverse_etl_log_truncate"]
    shop.run(ddl("prod_log"))
    shop.run(f"insert into {TABLE} values (1); truncate {TABLE}")
    assert logged(shop, "prod_log") == [("I", 1), ("T", 1)]
    assert triggers(shop) == ["prod_log_change", "prod_log_trunc"]


def test_the_ddl_leaves_the_triggers_of_another_log_and_of_another_table_alone(shop: Database) -> None:
    shop.run(ddl_of_an_earlier_build("prod_log"))
    shop.run('create table "sh""op".other (id int)')
    shop.run(
        'create trigger reverse_etl_log after insert on "sh""op".other for each row execute function "sh""op".prod_log()'
    )
    shop.run(ddl("dev_log"))
    shop.run(f"insert into {TABLE} values (1); truncate {TABLE}")
    assert logged(shop, "prod_log") == logged(shop, "dev_log") == [("I", 1), ("T", 1)]
    shop.run(ddl("prod_log"))
    assert triggers(shop) == ["dev_log_change", "dev_log_trunc", "prod_log_change", "prod_log_trunc", "reverse_etl_log"]


def test_names_that_postgres_would_shorten_are_refused(shop: Database) -> None:
    shop.run(ddl("l" * 56))
    assert max(map(len, triggers(shop))) == 63
    with pytest.raises(CompilationError, match="at most 63 bytes"):
        ddl("l" * 57)
