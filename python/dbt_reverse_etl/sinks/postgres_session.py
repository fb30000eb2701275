"""Connections to Postgres, transactions, and what an error of the server means. Never the server's own text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection, pq, sql

from dbt_reverse_etl.outcome import Outcome
from dbt_reverse_etl.sinks.postgres_rows import condition
from dbt_reverse_etl.sinks.postgres_settings import PostgresSettings

LOST = "the connection to the server was lost"
OLDEST_SERVER = 12

# SQLSTATEs and classes after which the transaction is surely rolled back and a later attempt may succeed.
RETRYABLE_STATES = frozenset({"25006", "25P03", "25P04", "40001", "40P01", "55P03", "57014"})
RETRYABLE_CLASSES = frozenset({"08", "53", "57", "58"})
# Defaults of libpq that an empty text does not stand for.
NOT_EMPTY = {
    "sslcertmode": "allow",
    "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
    "require_auth": "scram-sha-256,md5,password,gss,sspi,none",
}
# A refused login carries no SQLSTATE: English texts of the server and of libpq.
REFUSED_LOGIN = (
    ("password authentication failed", "the password or the user is wrong"),
    ("authentication failed", "the login was refused"),
    ("no password supplied", "the server asks for a password, and there is none"),
    ("no pg_hba.conf entry", "the server accepts no such connection from here (pg_hba.conf)"),
    ("certificate", "the server's certificate could not be verified, or ours was refused"),
    ("does not support SSL", "the server offers no TLS"),
    ("SSL", "TLS failed"),
    ("is not permitted to log in", "the user is not permitted to log in"),
    ("permission denied for database", "the user may not connect to the database"),
)


def connect(settings: PostgresSettings) -> Connection[Any]:
    """A new connection that commits only what a transaction commits. Raises psycopg.Error."""
    given = settings.parameters()
    # What is left out, libpq would take from the environment.
    for option in pq.Conninfo.get_defaults():
        name = option.keyword.decode()
        # A service, which cannot be switched off, only fills what is left out.
        if option.envvar and name not in given and name != "service":
            given[name] = NOT_EMPTY.get(name, (option.compiled or b"").decode())
    return psycopg.connect("", autocommit=True, prepare_threshold=None, **given)  # type: ignore[arg-type]


def begin(connection: Connection[Any], settings: PostgresSettings, *, read_only: bool = False) -> None:
    """Start a transaction; its settings end with it, so that a connection pooler may stand between."""
    # Never READ WRITE: on a standby that is another error than the one of a write.
    access = sql.SQL("READ ONLY" if read_only else "")
    connection.execute(sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED {}").format(access))
    wanted = {
        "lock_timeout": f"{round(settings.lock_timeout * 1000)}ms",
        "statement_timeout": f"{round(settings.statement_timeout * 1000)}ms",
        "TimeZone": "UTC",
        "DateStyle": "ISO, YMD",
    }
    calls = sql.SQL(", ").join(
        sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
        for name, value in wanted.items()
    )
    connection.execute(sql.SQL("SELECT {}").format(calls))


@contextmanager
def rollback_on_error(connection: Connection[Any]) -> Iterator[None]:
    """Leaves no transaction open behind an error."""
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        raise


@contextmanager
def transaction(
    connection: Connection[Any], settings: PostgresSettings, *, read_only: bool = False
) -> Iterator[Connection[Any]]:
    """One transaction."""
    with rollback_on_error(connection):
        begin(connection, settings, read_only=read_only)
        yield connection
        connection.execute("COMMIT")


def failure(error: psycopg.Error) -> tuple[Outcome, str]:
    """What an error means for a transaction that was surely not committed."""
    state = error.sqlstate
    if state is not None:
        retryable = state in RETRYABLE_STATES or state[:2] in RETRYABLE_CLASSES
        return Outcome.RETRYABLE if retryable else Outcome.FATAL, condition(state)
    if not isinstance(error, psycopg.OperationalError):
        return Outcome.FATAL, f"Postgres failed: {type(error).__name__}"
    text = str(error)
    for part, reason in REFUSED_LOGIN:
        if part in text:
            return Outcome.FATAL, reason
    if 'database "' in text and "does not exist" in text:
        return Outcome.FATAL, "no such database"
    return Outcome.RETRYABLE, LOST if "lost" in text or "closed" in text else "the server cannot be reached"
