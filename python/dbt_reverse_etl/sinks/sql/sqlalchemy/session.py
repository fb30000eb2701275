"""Connections through SQLAlchemy, whose sessions depend on no default of the server where that matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.sinks.sql.sqlalchemy.settings import DUCKDB, SqlalchemySettings

CONNECT_TIMEOUT = 10  # seconds
PACKAGES = {DUCKDB: "duckdb-sqlalchemy", "postgresql": "psycopg[binary]", "mssql": "pyodbc", "oracle": "oracledb"}


def make_engine(settings: SqlalchemySettings) -> Engine:
    """An engine that connects anew each time and never shows a value; no I/O.

    Raises:
        ConfigurationError: the driver is not installed.
    """
    url, dialect = settings.address, settings.dialect
    more: dict[str, Any] = {} if dialect == DUCKDB else {"isolation_level": "READ COMMITTED"}
    if url.drivername in ("mssql", "mssql+pyodbc"):
        more["fast_executemany"] = True
    if "psycopg" in url.drivername and "connect_timeout" not in url.query:
        more["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT}
    try:
        engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, **more)
    except (ModuleNotFoundError, NoSuchModuleError):
        expected = f"the package of this driver, such as {PACKAGES[dialect]}"
        found = f"no package for {url.drivername}"
        raise ConfigurationError(
            Problem("destination of type sqlalchemy", found, expected, f"pip install '{PACKAGES[dialect]}'")
        ) from None
    if engine.dialect.is_async:
        found, next_step = f"the asynchronous driver {url.drivername}", f"use one such as {PACKAGES[dialect]}"
        raise ConfigurationError(Problem("destination of type sqlalchemy", found, "a synchronous one", next_step))
    sa.event.listen(engine, "connect", lambda connection, _: _configure(connection, dialect, settings.timeout))
    return engine


def _configure(connection: Any, dialect: str, timeout: int) -> None:
    if dialect == "oracle":
        connection.call_timeout = timeout * 1000
    statements = {
        "postgresql": ["SET TIME ZONE 'UTC'", f"SET statement_timeout = '{timeout}s'"],
        "mssql": [f"SET LOCK_TIMEOUT {timeout * 1000}", "SET XACT_ABORT ON"],
        "oracle": ["ALTER SESSION SET TIME_ZONE = 'UTC'"],
        DUCKDB: ["SET TimeZone = 'UTC'"],
    }
    cursor = connection.cursor()
    for statement in statements[dialect]:
        cursor.execute(statement)
    cursor.close()
    connection.commit()


@contextmanager
def transaction(connection: Connection) -> Iterator[Connection]:
    """One transaction; leaves none open behind an error."""
    with rollback_on_error(connection):
        yield connection
        connection.commit()


@contextmanager
def rollback_on_error(connection: Connection) -> Iterator[None]:
    """A connection that cannot be rolled back is closed."""
    try:
        yield
    except BaseException:
        try:
            connection.rollback()
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                connection.invalidate()
        raise
