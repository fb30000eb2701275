"""What an error of a database means, and in which words. Never the text of the driver: it quotes values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InternalError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

from dbt_reverse_etl.base.outcome import Outcome

LOST = "the connection to the database was lost"
UNBOUND = "the driver cannot take a value"

# SQLSTATEs of Postgres by class; of SQL Server and Oracle the numbers, for their drivers' classes of exceptions say little.
ROW_STATES = ("22", "23", "44", "54", "P0001")
RETRYABLE_STATES = ("08", "25006", "25P03", "25P04", "40", "53", "55P03", "57", "58")
ROW_NUMBERS = {
    "mssql": frozenset({220, 241, 242, 245, 248, 515, 547, 2601, 2627, 2628, 8114, 8115, 8152}),
    "oracle": frozenset({1, 1400, 1407, 1426, 1438, 1461, 1722, 2290, 2291, 2292, 12899}),
}
RETRYABLE_NUMBERS = {
    "mssql": frozenset({701, 1204, 1205, 1222, 3960, 9002, 10928, 10929, 40197, 40501, 40613}),
    "oracle": frozenset(
        {18, 20, 54, 60, 1013, 1033, 1034, 1089, 1090, 1536, 1555, 1653, 3113, 3114, 3135, 8177, 12514}
    ),
}
RAISED_BY_TRIGGERS = {"mssql": range(50_000, 10**9), "oracle": range(20_000, 21_000)}
SURELY_ROLLED_BACK = ("40001", "40P01", "25006", "1205", "ORA-00060", "ORA-08177")
_WORDS = (
    (IntegrityError, "constraint violated"),
    (DataError, "value refused"),
    (ProgrammingError, "statement refused"),
)
# As pyodbc and pymssql write the number; others in parentheses are values.
_NUMBERS = {"mssql": re.compile(r"\((\d{1,9})\) \(SQL|^\((\d{1,9}), "), "oracle": re.compile(r"ORA-(\d{5})")}


def failure(error: SQLAlchemyError, *, writing: bool = False, known: Iterable[str] = ()) -> tuple[Outcome, str]:
    """The outcome for a transaction that was surely not committed, and the reason.

    Args:
        error: what SQLAlchemy raised.
        writing: a statement that writes rows failed, so that a row may be at fault.
        known: names of the schema; one that the database speaks of is shown.
    """
    if not isinstance(error, DBAPIError):
        if isinstance(error, StatementError) and writing:
            return Outcome.REJECTED, UNBOUND
        return Outcome.FATAL, f"SQLAlchemy failed: {type(error).__name__}"
    if error.connection_invalidated:
        return Outcome.RETRYABLE, LOST
    outcome = _by_code(error) or _by_class(error, writing=writing)
    if outcome is Outcome.REJECTED and not writing:
        outcome = Outcome.FATAL
    return outcome, _reason(error, known if writing else ())


def is_rolled_back(error: SQLAlchemyError) -> bool:
    """Whether a COMMIT that failed so was surely not carried out."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    return isinstance(error, IntegrityError) or code(error) in SURELY_ROLLED_BACK


def code(error: DBAPIError) -> str:
    """`23505`, `2627`, `ORA-00001`; empty if there is none."""
    cause = error.orig
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state if re.fullmatch(r"[0-9A-Z]{5}", state) else ""
    text = str(cause)
    if found := _NUMBERS["oracle"].match(text):
        return found.group()
    found = _NUMBERS["mssql"].search(text) if _speaks_to_sql_server(cause) else None
    return (found[1] or found[2]) if found else ""


def _speaks_to_sql_server(cause: object) -> bool:
    return type(cause).__module__.partition(".")[0] in ("pyodbc", "pymssql")


def _by_code(error: DBAPIError) -> Outcome | None:
    found = code(error)
    if not found:
        return None
    if getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None):
        if found.startswith(RETRYABLE_STATES):
            return Outcome.RETRYABLE
        return Outcome.REJECTED if found.startswith(ROW_STATES) else Outcome.FATAL
    dialect, number = ("oracle", int(found[4:])) if found.startswith("ORA-") else ("mssql", int(found))
    if number in RETRYABLE_NUMBERS[dialect]:
        return Outcome.RETRYABLE
    at_fault = number in ROW_NUMBERS[dialect] or number in RAISED_BY_TRIGGERS[dialect]
    return Outcome.REJECTED if at_fault else None


def _by_class(error: DBAPIError, *, writing: bool) -> Outcome:
    if type(error.orig).__name__ in ("FatalException", "InternalException"):  # DuckDB must be opened anew
        return Outcome.FATAL
    if isinstance(error, OperationalError):
        return Outcome.RETRYABLE
    # A trigger may raise anything; if it was no row's fault, then every row is refused, and the engine stops the sync.
    in_doubt = isinstance(error, InternalError) or type(error) is DatabaseError
    if isinstance(error, IntegrityError | DataError) or (in_doubt and writing):
        return Outcome.REJECTED
    return Outcome.FATAL


def _reason(error: DBAPIError, known: Iterable[str]) -> str:
    words = next((text for kind, text in _WORDS if isinstance(error, kind)), "the database failed")
    # What follows the first line quotes the row.
    said, found = str(error.orig).partition("\n")[0], code(error)
    named = sorted((name for name in known if name and re.search(rf"\b{re.escape(name)}\b", said)), key=len)
    return f"{words} ({found or type(error.orig).__name__})" + (f", {named[-1]}" if named else "")
