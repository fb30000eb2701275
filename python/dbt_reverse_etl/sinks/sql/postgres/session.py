"""Connections to Postgres, transactions, and what an error of the server means. Never the server's own text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection, pq, sql

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.postgres.rows import condition
from dbt_reverse_etl.sinks.sql.postgres.settings import PostgresSettings

LOST = "the connection to the server was lost"
OLDEST_SERVER = 12

# SQLSTATEs and classes after which the transaction is surely rolled back and a later attempt may succeed.
RETRYABLE_STATES = frozenset({"25006", "25P03", "25P04", "40001", "40003", "40P01", "55P03", "57014"})
RETRYABLE_CLASSES = frozenset({"08", "53", "57", "58"})
# Defaults of libpq that an empty text does not stand for.
NOT_EMPTY = {
    "sslcertmode": "allow",
    "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
    "require_auth": "scram-sha-256,md5,password,gss,sspi,none",
}
# Why a connection was not made, where a repeat would not help. Without SQLSTATE: English texts of the server and of libpq.
REFUSALS = (
    ("password authentication failed", "the password or the user is wrong"),
    ("authentication failed", "the login was refused"),
    ("no password supplied", "the server asks for a password, and there is none"),
    (
        "authentication method requirement|server requested a|did not complete authentication",
        "the server wants another login than SCRAM, which only a verified server gets: name its CA as sslrootcert",
    ),
    ("no pg_hba.conf entry", "the server accepts no such connection from here (pg_hba.conf)"),
    ('role "" does not exist', "no such user"),
    ('database "" does not exist', "no such database"),
    ("is not permitted to log in", "the user is not permitted to log in"),
    ("permission denied for database", "the user may not connect to the database"),
    ("certificate|unknown ca", "the server's certificate could not be verified, or ours was refused"),
    ("does not support SSL", "the server offers no TLS"),
    ("SSL (?!SYSCALL|connection has been closed|error: unexpected eof)", "TLS failed"),
)
# What is quoted is a name that somebody chose: a host, a user, a database.
_NAMES = re.compile(r""""[^"\n]*"|host:? '[^'\n]*'""")


class NotConnected(psycopg.OperationalError):
    """No connection was made; the text is that of libpq and is never shown."""


def connect(settings: PostgresSettings) -> Connection[Any]:
    """A new connection that commits only what a transaction commits. Raises psycopg.Error."""
    given = settings.parameters()
    # What is left out, libpq would take from the environment.
    for option in pq.Conninfo.get_defaults():
        name = option.keyword.decode()
        # A service, which cannot be switched off, only fills what is left out.
        if option.envvar and name not in given and name != "service":
            given[name] = NOT_EMPTY.get(name, (option.compiled or b"").decode())
    try:
        return psycopg.connect("", autocommit=True, prepare_threshold=None, **given)  # type: ignore[arg-type]
    except psycopg.OperationalError as error:
        raise NotConnected(str(error)) from None


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
        sql.SQL("pg_catalog.set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
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


def is_doubtful(error: psycopg.Error) -> bool:
    """Whether a COMMIT that failed so may have been carried out although the connection stands.

    A pooler may have lost the server's answer, and a server that is shut down may say so after the answer."""
    state = error.sqlstate
    if state is None or state[:2] == "08" or state == "40003":
        return True
    return error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def failure(error: psycopg.Error) -> tuple[Outcome, str]:
    """What an error means for a transaction that was surely not committed."""
    state = error.sqlstate
    if isinstance(error, NotConnected):
        return connect_failure(str(error))
    if state is not None:
        retryable = state in RETRYABLE_STATES or state[:2] in RETRYABLE_CLASSES
        return Outcome.RETRYABLE if retryable else Outcome.FATAL, condition(state)
    if not isinstance(error, psycopg.OperationalError):
        return Outcome.FATAL, f"Postgres failed: {type(error).__name__}"
    return Outcome.RETRYABLE, LOST


def connect_failure(text: str) -> tuple[Outcome, str]:
    """What libpq's text about a connection that was not made means."""
    said = _NAMES.sub('""', text)
    found = ((Outcome.FATAL, reason) for pattern, reason in REFUSALS if re.search(pattern, said))
    return next(found, (Outcome.RETRYABLE, "the server cannot be reached"))
