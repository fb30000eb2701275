"""Triggers that log the changed keys of a table, and the changelogs that read such a log."""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.support.dbt.project import Project
from tests.support.servers.loopback import port_of
from tests.support.servers.mysql import new_database as new_mysql_database
from tests.support.servers.postgres import PASSWORD, ROLE, Database, new_database

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))


@pytest.fixture
def shop() -> Database:
    """A database with a table whose names need quotes."""
    database = new_database()
    database.run(
        'create schema "Sh""op"; create table "Sh""op"."Or\'ders" (id int, "pa""rt" text, value text, primary key (id, "pa""rt"))'
    )
    return database


def ddl(project: Project, capsys: pytest.CaptureFixture[str], **arguments: Any) -> str:
    """What the operation prints."""
    capsys.readouterr()
    result = project.dbt("run-operation", "change_table_ddl", "--args", json.dumps(arguments))
    assert result.success, result.text
    return capsys.readouterr().out


TABLE, LOG = '"Sh""op"."Or\'ders"', '"Sh""op"."Or\'ders_reverse_etl_log"'


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_triggers_of_postgres_log_every_changed_key_and_a_change_table_changelog_equals_the_table_over_jdbc(
    project: Project, shop: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    project._quiet = True
    script = ddl(project, capsys, dialect="postgres", table=['Sh"op', "Or'ders"], key=["id", 'pa"rt'])
    shop.run(script)
    shop.run(script)  # it may be run again
    shop.run(f'grant usage on schema "Sh""op" to {ROLE}; grant select on {TABLE}, {LOG} to {ROLE}')
    number = int(next(Path(shop.socket).glob(".s.PGSQL.*[0-9]")).suffix[1:])
    with port_of(str(Path(shop.socket) / f".s.PGSQL.{number}")) as port:
        for name, table in {"orders": TABLE, "orders_log": LOG}.items():
            quoted = table.replace("\\", "\\\\").replace("'", "\\'")
            project.spark.sql(
                f"create table {project.schema}.{name} using jdbc options (url 'jdbc:postgresql://127.0.0.1:{port}/{shop.name}', "
                f"dbtable '{quoted}', driver 'org.postgresql.Driver', user '{ROLE}', password '{PASSWORD}')"
            )
        project.properties(
            "sources",
            {
                "sources": [
                    {"name": "app", "schema": project.schema, "tables": [{"name": "orders"}, {"name": "orders_log"}]}
                ]
            },
        )
        query = "-- depends_on: {{ source('app', 'orders_log') }}\nselect id, `pa\"rt` as part, value from {{ source('app', 'orders') }}"
        capture = {
            "strategy": "change_table",
            "table": "app.orders_log",
            "sequence": "log_sequence",
            "overlap": 50,
            "key": {"part": 'pa"rt'},
            "full_above": 1,
        }
        project.changelog("orders_changelog", query, key=["id", "part"], settings={"capture": capture})
        rng, many = random.Random(SEED), f"insert into {TABLE} select n, 'a', 'x' from generate_series(100, 299) n"
        shop.run(f"{many}; {changes(rng, 60)}")
        capture_equals(project, shop)

        rows = shop.rows(f"select count(*) from {TABLE}")
        shop.run(f"truncate {TABLE}; {many}; insert into {TABLE} values (98, 'late', 'y')")
        assert shop.rows(f"select count(*) from {LOG} where log_operation = 'T'") == rows
        with shop.owner() as open_one, open_one.transaction():
            open_one.execute(f"insert into {TABLE} values (99, 'late', 'x')".encode())
            open_one.execute(f"delete from {TABLE} where id = 98".encode())
            shop.run(changes(rng, 20))
            capture_equals(project, shop)  # the numbers of the open transaction are in the past by now
        shop.run(f"update {TABLE} set id = id + 300 where id in (100, 101, 102); {changes(rng, 3)}")
        assert "full compare" not in capture_equals(project, shop)
        kept = {(row[0], row[1]) for row in live(project)}
        assert (99, "late") in kept
        assert (98, "late") not in kept
        assert_writers_need_no_right_on_the_log(shop)


def changes(rng: random.Random, times: int) -> str:
    """Statements on keys below 20; those above are left to an open transaction."""
    statements = []
    for _ in range(times):
        key, part, value = rng.randrange(20), rng.choice(["a", "A", "ü'"]), rng.choice(["x", "y", "z"])
        part = part.replace("'", "''")
        statements.append(
            rng.choice(
                [
                    f"insert into {TABLE} values ({key}, '{part}', '{value}') on conflict (id, \"pa\"\"rt\") do update set value = excluded.value",
                    f"update {TABLE} set value = '{value}' where id = {key}",
                    f'update {TABLE} set "pa""rt" = upper("pa""rt") || \'{key}\' where id = {key} and "pa""rt" = \'a\'',
                    f"delete from {TABLE} where id = {key}",
                ]
            )
        )
    return "; ".join(statements)


def live(project: Project) -> list[tuple[Any, ...]]:
    newest = (
        "select *, row_number() over (partition by id, part order by _snapshot_id desc) as n from {s}.orders_changelog "
        "where _change in ('insert', 'update_postimage', 'delete')"
    )
    return sorted(
        tuple(row)
        for row in project.rows(f"select id, part, value from ({newest}) where n = 1 and _change <> 'delete'")
    )


def capture_equals(project: Project, shop: Database) -> str:
    result = project.run()
    assert result.success, result.text
    assert live(project) == sorted(shop.rows(f"select * from {TABLE}")), SEED
    return result.messages["orders_changelog"]


def assert_writers_need_no_right_on_the_log(shop: Database) -> None:
    shop.run(
        f'create role writer_{shop.name} login; grant usage on schema "Sh""op" to writer_{shop.name}; grant insert on {TABLE} to writer_{shop.name}'
    )
    before = shop.rows(f"select count(*) from {LOG}")[0][0]
    shop.run(f"set role writer_{shop.name}; insert into {TABLE} values (55, 'w', 'w')")
    assert shop.rows(f"select count(*) from {LOG}")[0][0] == before + 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.run(f"set role writer_{shop.name}; delete from {LOG}")


@pytest.mark.guarantee("Capture")
def test_triggers_of_mysql_log_every_changed_key_and_writers_need_no_right_on_the_log(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project._quiet = True
    shop = new_mysql_database()
    table, log = f"`{shop.name}`.`or``ders`", f"`{shop.name}`.`or``ders_reverse_etl_log`"
    shop.run(f"create table {table} (id int primary key, value text)")
    script = ddl(project, capsys, dialect="mysql", table=f"{shop.name}.or`ders", key="id")
    statements = [one for one in re.sub(r"^--.*$", "", script, flags=re.M).replace("\n", " ").split(";") if one.strip()]
    for _ in range(2):  # it may be run again
        for statement in statements:
            shop.run(statement.strip())
    shop.run(f"create user writer_{shop.name}@localhost identified by 'w'")
    shop.run(f"grant insert, update, delete, select on {table} to writer_{shop.name}@localhost")
    with closing(pymysql.connect(unix_socket=shop.server.socket, user=f"writer_{shop.name}", password="w")) as writer:
        with writer.cursor() as cursor:
            cursor.execute(f"insert into {table} values (1, 'a'), (2, 'b')")
            cursor.execute(f"update {table} set id = 3 where id = 1")
            cursor.execute(f"delete from {table} where id = 2")
        writer.rollback()
        with writer.cursor() as cursor:
            cursor.execute(f"insert into {table} values (4, 'a'), (5, 'b')")
            cursor.execute(f"update {table} set id = 6 where id = 4")
            cursor.execute(f"delete from {table} where id = 5")
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                cursor.execute(f"select * from {log}")
        writer.commit()
    logged = shop.rows(f"select log_operation, id from {log} order by log_sequence")
    assert logged == [("I", 4), ("I", 5), ("U", 4), ("U", 6), ("D", 5)]


def test_names_that_a_server_would_shorten_are_refused(project: Project) -> None:
    project._quiet = True
    for arguments, message in {
        '{"dialect": "oracle", "table": "a.b", "key": "id"}': "found 'oracle'; expected postgres or mysql",
        '{"dialect": "mysql", "table": "b", "key": "id"}': "expected schema.table",
        json.dumps({"dialect": "postgres", "table": "shop." + "ü" * 25, "key": "id"}): "at most 63 bytes",
        '{"dialect": "postgres", "table": "a.b", "key": "log_at"}': "found a key column 'log_at'",
    }.items():
        result = project.dbt("run-operation", "change_table_ddl", "--args", arguments)
        assert not result.success
        assert message in result.text, result.text
