"""Connections to Postgres, and what an error of the server means. Never the server's own text."""

from __future__ import annotations

import os
import re
from typing import Any

import certifi
import psycopg
from psycopg import pq

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.dialect import CORRECT_DATABASE, CORRECT_LOGIN, CORRECT_SERVER, GRANT_DATABASE, first_of
from dbt_reverse_etl.sinks.sql.settings import PostgresSettings

APPLICATION = "dbt-reverse-etl"
NO_FILE = f"{os.devnull}/none"  # names no file, so that libpq looks for none in the home directory
LOST = "the connection to the server was lost"
NO_EFFECT = "DR001"  # our own SQLSTATE: a statement did less than it should
OTHER_KEY_STATE = "DR002"  # another: a row is stored under another key

CARDINALITY = "21000"
# Postgres' own classes that do not speak of a row's values. One of nobody's is what a trigger made up for a row.
OTHER_CLASSES = frozenset(
    """00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 24 25 26 27 28
    2B 2D 2F 34 39 3B 3D 3F 40 42 53 55 57 58 72 F0 HV XX""".split()  # noqa: SIM905  (a list takes 39 lines)
)
# What a function in another language than PL/pgSQL may fail with, whatever it raises; so may the server.
INTERNAL = "XX000"
# The first line of the context if PL/pgSQL raised an error on purpose, in whichever order a translation has the words.
# What is quoted is SQL, or a name. A regular expression of Python and of Postgres, without its own quotes or backslashes.
RAISED = '^(?=([^"]*"[^"]*")*[^"]*PL/pgSQL)([^"]*"[^"]*")*[^"]*RAISE'
# Also what a trigger passes on of another server that is away (dblink). Any other state is of the row.
_OUTAGES = frozenset({"08000", "08001", "08003", "08004", "08006", "08007", "08P01", "53300", "57P03"})
RAISED_FOR_REPEAT = _OUTAGES | {"40001", "40P01", "55P03"}
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
WRONG_LOGIN = "the password or the user is wrong"
NOTHING_GIVEN = "the server asks for a password, and there is none"
NO_USER = "no such user"
NO_RIGHT = "the user may not connect to the database"
NO_DATABASE = "no such database"
NO_KEY = "the key of the client certificate cannot be used"
UNREACHABLE = "the server cannot be reached"
UNUSABLE_LOGIN = "the server asks for a login in a way that cannot be used"
WANTS_OTHER_LOGIN = (
    "the server wants another login than SCRAM, which only a verified server gets: name its CA as sslrootcert"
)
NO_SLOT = "the server has no free connection"
_NO_KDC = "(Cannot (contact any|resolve servers for)|unable to reach any) KDC"
# Why a connection was not made, where a repeat would not help. Without SQLSTATE: English texts of the server and of libpq.
REFUSALS = {
    "password authentication failed|SCRAM exchange: invalid-proof": WRONG_LOGIN,
    "authentication failed": "the login was refused",
    "no password supplied": NOTHING_GIVEN,
    "authentication method requirement|server requested a|did not complete authentication": WANTS_OTHER_LOGIN,
    "no pg_hba.conf entry": "the server accepts no such connection from here (pg_hba.conf)",
    'role "" does not exist|no such user': NO_USER,
    'database "" does not exist|no such database': NO_DATABASE,
    "[Tt]enant or user not found|tenant/user .* not found": "the pooler knows no such project or user",
    "[Ee]ndpoint ID is not specified": "the server finds the database by its host name: name the host that your provider gives, with TLS",
    "is not permitted to log in": "the user is not permitted to log in",
    "permission denied for database": NO_RIGHT,
    "authentication (method .* )?not supported|SASL authentication|SCRAM (message|response|exchange)": UNUSABLE_LOGIN,
    "incorrect server signature": "the server did not prove that it knows the password",
    f"GSSAPI (?!.*{_NO_KDC})": "the Kerberos login failed: look at its ticket, the clock and the name of the server",
    "private key file": NO_KEY,
    "certificate|unknown ca": "the server's certificate could not be verified (sslrootcert names its CA), or ours was refused",
    "does not support SSL": "the server offers no TLS",
    "SSL (?!SYSCALL|connection has been closed|error: unexpected eof|exchange)": "TLS failed",
}
# What a user does about a connection that was not made; for the other reasons there is the page.
NEXT_STEPS = {
    WRONG_LOGIN: CORRECT_LOGIN,
    NOTHING_GIVEN: CORRECT_LOGIN,
    NO_USER: CORRECT_LOGIN,
    NO_DATABASE: CORRECT_DATABASE,
    NO_RIGHT: GRANT_DATABASE,
    NO_KEY: "name as sslkey the key of sslcert without a passphrase, in a file that only its owner may read (mode 0600)",
    UNREACHABLE: CORRECT_SERVER,
}
_ANSWERED = ":  "  # behind the severity of an error of the server, in each language; texts of libpq have one blank
# Why a connection was not made, where a repeat may help.
OUTAGES = {
    "too many clients|too many connections|remaining connection slots|[Mm]ax client|no more connections allowed": NO_SLOT,
    # Of a server without a process to spare; libpq drops its words if it asked that one for TLS.
    "not fork|error response during SSL exchange": NO_SLOT,
    _NO_KDC: "the Kerberos login failed: no KDC can be reached",
}
# What is quoted is a name that somebody chose: a host, a user, a database; PgBouncer does not quote it.
_NAMES = re.compile(r""""[^"\n]*"|host:? '[^'\n]*'|(?<=no such user: ).*|(?<=no such database: ).*""")
WORDS = {
    "57014": "query canceled (57014): if the batch needs longer than statement_timeout, raise that, or 0 for no limit"
}


class NotConnected(psycopg.OperationalError):
    """No connection was made; the text is that of libpq and is never shown."""


def connect(settings: PostgresSettings) -> psycopg.Connection[Any]:
    """A new connection that commits only what a transaction commits. Raises psycopg.Error."""
    given = parameters(settings)
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


def parameters(settings: PostgresSettings) -> dict[str, str]:
    """What libpq is told; holds the password."""
    mode = settings.mode_of_tls
    root = settings.sslrootcert or (_public_authorities() if mode == "verify-full" else NO_FILE)
    is_trusted = settings.is_local or mode.startswith("verify-")
    # A server that nobody has verified must not get the password in a form that it can use.
    login = {} if is_trusted else {"require_auth": "scram-sha-256"}
    return login | {
        "host": settings.host,
        "port": str(settings.port),
        "dbname": settings.database,
        "user": settings.user,
        "password": settings.password.get_secret_value() if settings.password else "",
        "passfile": NO_FILE,
        "sslmode": mode,
        "sslrootcert": root,
        "sslcert": settings.sslcert or NO_FILE,
        "sslkey": settings.sslkey or NO_FILE,
        "connect_timeout": str(settings.connect_timeout),
        "application_name": APPLICATION,
        "client_encoding": "UTF8",
        "gssencmode": "disable",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }


def _public_authorities() -> str:
    """What libpq's sslrootcert is where the settings name no CA."""
    # The OpenSSL within psycopg[binary] looks for them where no system has any.
    is_named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return certifi.where() if pq.__impl__ == "binary" and not is_named else "system"


def row_is_at_fault(state: str | None) -> bool:
    """Whether an SQLSTATE speaks of a row's values."""
    return state is not None and (state[:2] not in OTHER_CLASSES or state == CARDINALITY)


def is_raised(error: psycopg.Error) -> bool:
    """Whether a trigger raised it on purpose, so that it is of a row, whatever its SQLSTATE but one that asks for a repeat."""
    line = (error.diag.context or "").partition("\n")[0]
    return re.search(RAISED, line) is not None and error.sqlstate not in RAISED_FOR_REPEAT


def condition(state: str) -> str:
    """An SQLSTATE in words: `unique violation (23505)`."""
    if state in WORDS:
        return WORDS[state]
    try:
        name = psycopg.errors.lookup(state).__name__
    except KeyError:
        return f"SQLSTATE {state}"
    return f"{re.sub(r'(?<!^)(?=[A-Z])', ' ', name).lower()} ({state})"


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
        may_succeed = state in RETRYABLE_STATES or state[:2] in RETRYABLE_CLASSES
        return Outcome.RETRYABLE if may_succeed else Outcome.FATAL, condition(state)
    if not isinstance(error, psycopg.OperationalError):
        return Outcome.FATAL, f"Postgres failed: {type(error).__name__}"
    return Outcome.RETRYABLE, LOST


def connect_failure(text: str) -> tuple[Outcome, str]:
    """What libpq's text about a connection that was not made means."""
    said = _NAMES.sub('""', text)
    refused = first_of(REFUSALS, said)
    if refused:
        return Outcome.FATAL, refused
    return Outcome.RETRYABLE, first_of(OUTAGES, said) or UNREACHABLE


def login_step(error: psycopg.Error) -> str | None:
    """What a user does about a connection that was not made; None: the page says it."""
    if not isinstance(error, NotConnected):
        return None
    reason = connect_failure(str(error))[1]
    # A server that answers, as while it starts, has the right host and port.
    return None if reason == UNREACHABLE and _ANSWERED in str(error) else NEXT_STEPS.get(reason)
