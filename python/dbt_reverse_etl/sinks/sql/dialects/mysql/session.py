"""Connections to MySQL and MariaDB, transactions, and what an error means. Never the server's own text."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import certifi
import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR, ER
from pymysql.cursors import Cursor

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.tls import lenient, why_refused
from dbt_reverse_etl.sinks.sql.dialect import CORRECT_DATABASE, CORRECT_LOGIN, CORRECT_SERVER, GRANT_DATABASE
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings

APPLICATION = "dbt-reverse-etl"
LOST = "the connection to the server was lost"
UNREACHABLE = "the server cannot be reached"
NO_CRYPTOGRAPHY = "this login without TLS needs the package cryptography: pip install 'PyMySQL[rsa]'"
NONSENSE = "an answer that no MySQL server gives"

# Nothing is rounded, cut or replaced silently, and 0 is a value of an AUTO_INCREMENT column. Without NO_ZERO_DATE: old
# tables have such defaults, and what we send has a year from 1 on.
SQL_MODE = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
UTC = "'+00:00'"

OUT_OF_RANGE = 1690  # also that of our guard: the row of another key has a unique value of this one
ROW_CLASSES = ("22", "23", "44", "45")
AMBIGUOUS = 1052  # is of class 23
# Without an SQLSTATE of those classes: wrong values of many kinds, no default, no partition, CHECK (MySQL), SIGNAL,
# and a row that its page of InnoDB does not take.
ROW_ERRORS = frozenset({ER.TOO_BIG_ROWSIZE, 1264, 1265, 1292, 1364, 1366, 1406, 1526, 1644, 3819, OUT_OF_RANGE})

CANNOT_CONNECT = frozenset({CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR})
GONE = frozenset({0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_MALFORMED_PACKET})
READ_ONLY = frozenset({ER.OPTION_PREVENTS_STATEMENT, 1792, 1836, 1874})  # the last: of InnoDB alone
# After these a COMMIT is surely not carried out; the last two are group replication's.
ROLLED_BACK = READ_ONLY | {ER.LOCK_DEADLOCK, 3100, 3101}
# A later attempt may succeed. Names that PyMySQL has not: 1927 connection killed and 1969 statement time (MariaDB),
# 3024 statement time and 4031 idle (MySQL).
RETRYABLE = (
    CANNOT_CONNECT
    | GONE
    | ROLLED_BACK
    | {1927, 1969, 3024, 4031}
    | {ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.HOST_IS_BLOCKED}
    | {ER.SERVER_SHUTDOWN, ER.NORMAL_SHUTDOWN, ER.QUERY_INTERRUPTED, ER.ABORTING_CONNECTION, ER.NEW_ABORTING_CONNECTION}
    | {ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED}
    | {ER.LOCK_WAIT_TIMEOUT, ER.LOCK_TABLE_FULL, ER.DISK_FULL, ER.OUTOFMEMORY, ER.OUT_OF_RESOURCES, ER.RECORD_FILE_FULL}
    | {ER.ERROR_DURING_COMMIT, ER.UNKNOWN_COM_ERROR}  # the second: a node of Galera that is not in its cluster
)
WORDS = {
    ER.ACCESS_DENIED_ERROR: "the password or the user is wrong, or the server accepts no such login from here",
    ER.BAD_DB_ERROR: "no such database",
    ER.DBACCESS_DENIED_ERROR: "the user may not use the database",
    1698: "the password or the user is wrong, or the server accepts no such login from here",
    3159: "the server wants TLS: set ssl_mode",
    3819: "check constraint violated (3819)",
    4025: "check constraint violated (4025)",
    AMBIGUOUS: "an ambiguous column (1052), in a trigger, or in a table named s with a column c0, c1, ...",
    ER.DUP_ENTRY: "duplicate entry (1062)",
    ER.TOO_BIG_ROWSIZE: "the row is too large for its table (1118)",
    1467: "no value is left for the AUTO_INCREMENT column (1467): make it bigint",  # another error's name in PyMySQL
    1644: "refused by a trigger (1644)",
    1969: "the server ended a long statement (1969): raise its max_statement_time, or 0 for no limit",
    3024: "the server ended a long query (3024): raise its max_execution_time, or 0 for no limit",
    OUT_OF_RANGE: "out of range (1690)",
}
# What a user does about a connection that was not made; for the other reasons there is the page.
NEXT_STEPS = {
    ER.ACCESS_DENIED_ERROR: CORRECT_LOGIN,
    1698: CORRECT_LOGIN,
    ER.BAD_DB_ERROR: CORRECT_DATABASE,
    ER.DBACCESS_DENIED_ERROR: GRANT_DATABASE,
    **dict.fromkeys(CANNOT_CONNECT, CORRECT_SERVER),
}


class NotConnected(pymysql.err.OperationalError):
    """No connection was made, for a reason that is known without the server's text."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(CR.CR_CONN_HOST_ERROR, reason)
        self.outcome, self.reason = outcome, reason


def connect(settings: MysqlSettings) -> Connection[Any]:
    """A new connection in autocommit mode, whose session depends on no default of the server. Raises pymysql.Error."""
    given: dict[str, Any] = {"unix_socket": settings.host} if settings.is_socket else {"host": settings.host}
    try:
        connection = pymysql.connect(
            **given,
            **_tls(settings),
            port=settings.port,
            database=settings.database,
            user=settings.user,
            password=settings.password.get_secret_value() if settings.password else "",
            charset="utf8mb4",
            collation="utf8mb4_bin",
            sql_mode=SQL_MODE,
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.connect_timeout,  # of the handshake
            write_timeout=settings.statement_timeout or None,
            program_name=APPLICATION,
        )
    except pymysql.err.OperationalError as error:
        raise _not_connected(error) from None
    except pymysql.Error:
        raise
    except Exception as error:
        # PyMySQL says so where caching_sha2_password is wanted without TLS.
        lacks_package = isinstance(error, RuntimeError) and "cryptography" in str(error)
        raise NotConnected(Outcome.FATAL, NO_CRYPTOGRAPHY if lacks_package else NONSENSE) from None
    connection._read_timeout = settings.statement_timeout or None  # type: ignore[attr-defined]
    try:
        _configure(connection, settings)
    except BaseException:
        with suppress(pymysql.Error):
            connection.close()
        raise
    return connection


def _tls(settings: MysqlSettings) -> dict[str, Any]:
    mode = settings.tls
    if mode == "disabled":
        return {"ssl_disabled": True}
    if mode == "preferred":
        return {}
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca or certifi.where())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if settings.ssl_ca:
            lenient(context)
        context.check_hostname = mode == "verify_identity"
        context.verify_mode = ssl.CERT_NONE if mode == "required" else ssl.CERT_REQUIRED
        if settings.ssl_cert:
            context.load_cert_chain(settings.ssl_cert, settings.ssl_key)
    except OSError:
        raise NotConnected(Outcome.FATAL, "a file of ssl_ca, ssl_cert or ssl_key cannot be read") from None
    return {"ssl": context}


def _not_connected(error: pymysql.err.OperationalError) -> pymysql.err.OperationalError:
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return NotConnected(Outcome.FATAL, f"the server's certificate could not be verified{why_refused(cause)}")
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NotConnected(Outcome.FATAL, "TLS failed")
    if error.args[0] == CR.CR_SSL_CONNECTION_ERROR:
        return NotConnected(Outcome.FATAL, "the server offers no TLS")
    return error


def _configure(connection: Connection[Any], settings: MysqlSettings) -> None:
    """Session variables whose defaults are the server's, each of which would change what our statements do."""
    run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    wait = settings.lock_timeout
    run(
        connection,
        f"SET SESSION time_zone = {UTC}, innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}, "
        "foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0, sql_big_selects = 1, completion_type = 0, "
        f"sql_quote_show_create = 1, sql_select_limit = {2**64 - 1}"
        # Each server takes the other's comment for one; a limit would end a long batch in each attempt.
        "/*M!100500 , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */",
    )


def run(connection: Connection[Any], query: str | bytes, values: Sequence[Any] | None = None) -> Cursor:
    """One statement. Raises pymysql.Error, also for an answer that makes no sense."""
    cursor: Cursor = connection.cursor()
    try:
        cursor.execute(query, values)  # type: ignore[arg-type]  # bytes are sent as they are
    except pymysql.Error:
        raise
    except Exception as error:
        with suppress(Exception):
            connection._force_close()  # type: ignore[attr-defined]
        raise pymysql.err.InternalError(CR.CR_MALFORMED_PACKET, type(error).__name__) from None
    return cursor


def number(error: pymysql.Error) -> int:
    """The error's number; 0 without one."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def row_is_at_fault(error: pymysql.Error) -> bool:
    """Whether an error speaks of a row's values."""
    state = getattr(error, "sqlstate", None) or ""
    code = number(error)
    return code != AMBIGUOUS and (state[:2] in ROW_CLASSES or code in ROW_ERRORS)


def failure(error: pymysql.Error) -> tuple[Outcome, str]:
    """What an error means for a transaction that was surely not committed."""
    if isinstance(error, NotConnected):
        return error.outcome, error.reason
    code = number(error)
    if code in GONE:
        return Outcome.RETRYABLE, LOST
    if code in CANNOT_CONNECT:
        return Outcome.RETRYABLE, UNREACHABLE
    return Outcome.RETRYABLE if code in RETRYABLE else Outcome.FATAL, condition(code)


def login_step(error: pymysql.Error) -> str | None:
    """What a user does about a connection that was not made; None: the page says it."""
    return None if isinstance(error, NotConnected) else NEXT_STEPS.get(number(error))


def condition(code: int) -> str:
    """An error number in words: `lock deadlock (1213)`."""
    if code in WORDS:
        return WORDS[code]
    name = _NAMES.get(code)
    return f"{name.lower().replace('_', ' ')} ({code})" if name else f"error {code}"


_NAMES = {code: name for name, code in vars(ER).items() if isinstance(code, int)}
