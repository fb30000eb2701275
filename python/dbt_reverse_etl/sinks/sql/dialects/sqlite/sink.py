"""SQLite: a file, one writer at a time; rows go straight into the table, and no other program sees a batch before its end.

What SQLite would round is TEXT: decimals with all digits, never an exponent (`-0.50`), timestamps in UTC with microseconds
(`2024-01-01 00:00:00.000000`) and dates. `-0.0` is `0.0`.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.refusals import Converted, utf8
from dbt_reverse_etl.sinks.sql.dialect import Fault, FileDialect, OpenMode, RolledBack, first_of
from dbt_reverse_etl.sinks.sql.dialects.sqlite.rows import SqliteWriter
from dbt_reverse_etl.sinks.sql.reading import rows_in_parts
from dbt_reverse_etl.sinks.sql.settings import SqliteSettings
from dbt_reverse_etl.sinks.sql.sink import SqlSink
from dbt_reverse_etl.sinks.sql.table import Column, Name, Table, Wrong
from dbt_reverse_etl.sinks.sql.values import Fits, Kind, cast_to, date_text, decimal_text, timestamp_text
from dbt_reverse_etl.values.arrow import is_bytes, is_text

OLDEST = (3, 31, 0)  # the first that tells generated columns
FIRST_STRICT = (3, 37, 0)
EXACT_DIGITS = 15  # SQLite keeps that many when it turns decimal text into REAL
NAN = "NaN, which SQLite would store as NULL"
DISK_FULL = "the database or disk is full"
LOCKED = "the database is locked by another program"
OF_OTHERS = "a trigger or index of the table needs a function, a collation or a module of another program"
FAILURES = {
    "is locked|locking protocol": LOCKED,
    "is full": DISK_FULL,
    "readonly": "the database cannot be written",
    "disk I/O error": "disk I/O error",
    "unable to open": "the file cannot be opened",
    "disk image is malformed": "the database file is damaged",
    "not a database": "the file is not an SQLite database",
    "no such table": "the table has vanished, or a foreign key or trigger of it names a table that is not there",
    "foreign key mismatch": "a foreign key of the table, or of another one that points at it, names columns that no unique index is over",
    "no column named|no such column": "a column has vanished",
    "no such (function|collation|module)": OF_OTHERS,
}
NO_TABLE = "a view or virtual table", "a table", "name the table that holds the rows"
# What an expression of the table (generated column, index, trigger) may say about one row's value.
VALUE_FAULTS = ("malformed JSON", "JSON path error", "bad JSON path", "integer overflow", "LIKE or GLOB pattern")
# Messages that name the schema only; the text of a trigger could quote a row.
SAFE = re.compile(
    r"(NOT NULL|UNIQUE|CHECK|FOREIGN KEY|PRIMARY KEY) constraint failed|cannot store \w+ value|datatype mis"
)

_IS_TABLE = """
SELECT type = 'table' AND sql NOT LIKE 'create virtual%' FROM main.sqlite_master
WHERE type IN ('table', 'view') AND lower(name) = lower(?)"""
# The last is whether it is an INTEGER PRIMARY KEY, which alone has no index of its own, and takes no value for the next number.
_COLUMNS = """
WITH keys AS (SELECT count(*) AS indexed FROM pragma_index_list(?1) WHERE origin = 'pk')
SELECT name, coalesce(type, ''), "notnull" AND dflt_value IS NULL AND NOT hidden AND (NOT pk OR indexed),
    NOT "notnull", NOT hidden, pk AND NOT indexed
FROM pragma_table_xinfo(?1), keys"""
# Over all rows, without another collation; an expression has no name.
_UNIQUE = """
SELECT i.name, lower(part.name) FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) part
WHERE i."unique" AND NOT i.partial AND part.key
    AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(i.name) WHERE key AND lower(coll) <> 'binary')"""
_CASCADES = """
SELECT lower("from") FROM pragma_foreign_key_list(?1)
WHERE on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT') AND lower("table") = lower(?1)"""
# Whether one is of deletes, or changes this table, is only in its SQL.
_HAS_TRIGGERS = """
SELECT EXISTS (SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?))"""


def _float(array: Any) -> Converted:
    array = array.cast(pa.float64())
    return array, [(pc.is_nan(array), NAN)]


def _affinity(declared: str) -> str | None:
    """SQLite's rules for the affinity of a declared type, in their order; None: no affinity."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return None
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _unless(*affinities: str) -> Fits:
    """Whether a column has none of these affinities, which would change the values."""
    return lambda column, _plain: _affinity(column.kind) not in affinities


def _is_short(kind: pa.DataType) -> bool:
    return pt.is_decimal(kind) and bool(kind.precision <= EXACT_DIGITS)


_NUMBERS = ("INTEGER", "REAL", "NUMERIC")
# Dates and JSON never look like numbers. Python's sqlite3 binds an int several times faster than a bool.
KINDS = (
    Kind(pt.is_nested, "TEXT", _unless()),
    Kind(pt.is_int64, "INTEGER", _unless("REAL")),
    Kind(pt.is_integer, "INTEGER", _unless()),
    Kind(pt.is_boolean, "INTEGER", _unless(), cast_to(pa.int8())),
    Kind(pt.is_floating, "REAL", _unless("TEXT"), _float),
    Kind(is_text, "TEXT", _unless(*_NUMBERS), utf8),
    Kind(is_bytes, "BLOB", _unless()),
    Kind(_is_short, "TEXT", _unless(), decimal_text),
    Kind(pt.is_decimal, "TEXT", _unless(*_NUMBERS), decimal_text),
    Kind(pt.is_timestamp, "TEXT", _unless(), timestamp_text),
    Kind(pt.is_date, "TEXT", _unless(), date_text),
)


class SqliteDialect(FileDialect):
    """One file."""

    name = "SQLite"
    page = "docs/configuration.md"
    failure_type = sqlite3.Error
    limits = Limits(rows=50_000, bytes=32 * 2**20)
    object_form = "a table name"
    name_form = "names that differ in more than the case of letters"
    key_form = ", that holds for all rows and tells all texts apart (COLLATE BINARY)"
    reserved = ("sqlite_",)
    table_suffix = " WITHOUT ROWID"
    kinds = KINDS

    settings: SqliteSettings

    def place_problem(self) -> Wrong | None:
        if sqlite3.sqlite_version_info < OLDEST:
            return f"SQLite {sqlite3.sqlite_version}", "3.31 or newer", "use a newer Python"
        return super().place_problem()

    def server_problem(self, connection: sqlite3.Connection) -> Wrong | None:
        """Reads the file, so that one of another kind is told."""
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return None

    def connect(self, mode: OpenMode) -> sqlite3.Connection:
        """A connection whose commits survive a power cut, on a Mac too, under the user's constraints."""
        # A reader opens for writing, too: `mode=ro` cannot roll back what a killed push left half written.
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={'rw' if mode == 'ro' else mode}",
            uri=True,
            timeout=self.settings.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        for pragma in ("foreign_keys = ON", "synchronous = FULL", "fullfsync = ON", f"query_only = {mode == 'ro'}"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def run(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return connection.execute(statement, values) if values else connection.execute(statement)

    def begin(self, connection: sqlite3.Connection, *, read_only: bool = False) -> None:
        """Takes the only lock of a writer."""
        connection.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")

    def failure(self, error: sqlite3.Error) -> tuple[Outcome, str]:
        """By the English text, which is not shown."""
        reason = first_of(FAILURES, str(error)) or f"SQLite failed: {type(error).__name__}"
        return Outcome.RETRYABLE if reason == LOCKED else Outcome.FATAL, reason

    def fault(self, connection: sqlite3.Connection, error: sqlite3.Error) -> Fault | None:
        by_class = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)
        if not by_class and not str(error).startswith(VALUE_FAULTS):
            return None
        if not connection.in_transaction:
            raise RolledBack("a trigger of the table refused the batch") from error
        safe, code = SAFE.match(str(error)), getattr(error, "sqlite_errorname", None)
        if safe is None or code == "SQLITE_CONSTRAINT_TRIGGER":
            return ("a constraint or trigger of the table refused the row",)
        # Python 3.10 has no codes, so a trigger may have said it: then only the kind is repeated.
        return (str(error) if code else safe.group(),)

    def is_rolled_back(self, connection: sqlite3.Connection, error: sqlite3.Error) -> bool:
        """Only a lock and a full disk leave surely nothing on the disk."""
        if isinstance(error, sqlite3.IntegrityError):
            raise RolledBack("a deferred constraint of the table refused the batch") from error
        outcome, reason = self.failure(error)
        return outcome is Outcome.RETRYABLE or reason == DISK_FULL

    def object_name(self, text: str) -> Name | None:
        return Name(None, text) if self.is_name(text) else None

    def one_table(self, name: Name) -> str:
        return self.fold(name.name)

    def indexed(self, name: str) -> str:
        """On a column of another collation, the index would merge texts."""
        return f"{self.quoted(name)} COLLATE BINARY"

    def fold(self, name: str) -> str:
        """Only ASCII letters lose their case."""
        return name.encode().lower().decode()

    def exists(self, connection: sqlite3.Connection, name: Name) -> bool:
        return connection.execute(_IS_TABLE, (name.name,)).fetchone() is not None

    def read_table(self, connection: sqlite3.Connection, name: Name) -> Table | None:
        found = connection.execute(_IS_TABLE, (name.name,)).fetchone()
        if found is None:
            return None
        is_strict, columns, aliases = _is_strict(connection, name.name), {}, set[frozenset[str]]()
        for column, declared, *flags, is_alias in connection.execute(_COLUMNS, (name.name,)):
            of_type = "" if is_strict and declared.upper() == "ANY" else declared
            columns[self.fold(column)] = Column(column, of_type, *map(bool, flags))
            aliases |= {frozenset([self.fold(column)])} if is_alias else set()
        indexes = defaultdict[str, set[str]](set)
        for index, part in connection.execute(_UNIQUE, (name.name,)):
            indexes[index].add(part)
        return Table(
            columns,
            unique={*aliases, *map(frozenset, indexes.values())},
            wrong=None if found == (1,) else NO_TABLE,
            rewrites=connection.execute(_HAS_TRIGGERS, (name.name,)).fetchone() == (1,),
            cascades={column for (column,) in connection.execute(_CASCADES, (name.name,))},
        )

    def read_rows(self, connection: sqlite3.Connection, name: Name, table: Table, task: SinkTask) -> Iterator[pa.Table]:
        """A text that is not UTF-8 is a row that differs, no error."""
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        return rows_in_parts(connection.execute(self.every_row(name, table, task)), task, _text_of)

    def text_of(self, field: pa.Field, column: Column) -> str:
        return self.quoted(field.name)


def _is_strict(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the table is STRICT, where ANY is no affinity."""
    if sqlite3.sqlite_version_info < FIRST_STRICT:
        return False
    query = "SELECT strict FROM pragma_table_list(?) WHERE schema = 'main'"
    return bool(connection.execute(query, (table,)).fetchone() == (1,))


def _text_of(value: Any) -> bytes | None:
    """A value of SQLite, as `reading.rows_of` takes it."""
    if value is None or isinstance(value, bytes):
        return value and value.hex().encode()
    return (value if isinstance(value, str) else repr(value)).encode(errors="surrogateescape")


class SqliteSink(SqlSink):
    """Keeps one table of an SQLite file equal to a model."""

    type = "sqlite"
    settings_model = SqliteSettings
    dialect_type = SqliteDialect
    writer_type = SqliteWriter
