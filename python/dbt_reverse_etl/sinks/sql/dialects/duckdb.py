"""DuckDB: a file; rows are read from the Arrow table where it lies in memory. It has no savepoints: a batch is taken as one, or refused."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pt
from pydantic import SecretStr

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Limits
from dbt_reverse_etl.sinks.refusals import utf8
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialect import Fault, FileDialect, OpenMode, RolledBack, first_of
from dbt_reverse_etl.sinks.sql.rows import IGNORED, OTHER_SPELLING, Ineffective
from dbt_reverse_etl.sinks.sql.settings import DuckdbSettings
from dbt_reverse_etl.sinks.sql.sink import SqlSink
from dbt_reverse_etl.sinks.sql.statements import STAGE, StagedWriter
from dbt_reverse_etl.sinks.sql.table import Column, Name, Table
from dbt_reverse_etl.sinks.sql.values import Kind, date_days, one_of, then, timestamp_micros
from dbt_reverse_etl.values.arrow import is_bytes, is_text, is_zoned

WORDS = (
    (duckdb.IntegrityError, "constraint violated"),
    (duckdb.DataError, "value refused"),
    (duckdb.ProgrammingError, "statement refused"),
)
LOCKED, NO_SPACE = "the file is open in another program", "no space is left for the file"
# By the English text, which is not shown: it names the file, or a process. Anchored, for another text may quote a row.
FAILURES = {
    r"^IO Error: Could not set lock on file": LOCKED,
    r"is not a valid DuckDB database file!$": "the file is not a DuckDB database",
    r"^(IO|TransactionContext) Error: .*(No space left on device|Disk quota exceeded|File too large)$": NO_SPACE,
    r"^(IO Error: )?(Corrupt database file|Could not read enough bytes)": "the file is damaged",
}
_INTEGERS = {sign + kind for sign in ("", "U") for kind in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")}
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")
_ZONED = "TIMESTAMP WITH TIME ZONE"
_FOREIGN_KEY = "Violates foreign key constraint"
_EXPRESSION = re.compile(r"""'"((?:[^"]|"")+)"'|(\w+)""")


def _keeps_integer(column: Column, _plain: pa.DataType) -> bool:
    return column.kind in _INTEGERS or _DECIMAL.fullmatch(column.kind) is not None


def _keeps_decimal(column: Column, plain: pa.DataType) -> bool:
    scale = _DECIMAL.fullmatch(column.kind)
    return int(scale[1]) >= plain.scale if scale else column.kind in _INTEGERS and plain.scale == 0


KINDS = (
    Kind(pt.is_nested, "VARCHAR", one_of("VARCHAR", "JSON")),
    Kind(pt.is_boolean, "BOOLEAN", one_of("BOOLEAN")),
    Kind(pt.is_int64, "BIGINT", _keeps_integer),
    Kind(pt.is_int32, "INTEGER", _keeps_integer),
    Kind(pt.is_integer, "SMALLINT", _keeps_integer),
    Kind(pt.is_decimal, "DECIMAL({0.precision}, {0.scale})", _keeps_decimal),
    Kind(pt.is_float64, "DOUBLE", one_of("DOUBLE")),
    Kind(pt.is_floating, "DOUBLE", one_of("FLOAT", "DOUBLE")),
    Kind(is_text, "VARCHAR", one_of("VARCHAR"), utf8),
    Kind(is_bytes, "BLOB", one_of("BLOB")),
    Kind(is_zoned, _ZONED, one_of(_ZONED), then(timestamp_micros, pa.timestamp("us", "UTC"))),
    Kind(pt.is_timestamp, "TIMESTAMP", one_of("TIMESTAMP", "TIMESTAMP_NS"), then(timestamp_micros, pa.timestamp("us"))),
    Kind(pt.is_date, "DATE", one_of("DATE"), then(date_days, pa.date32())),
)


class _Rows:
    """All rows of a statement: since DuckDB 2 a result that is not read to its end keeps the connection from other work."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    @property
    def rowcount(self) -> int:
        return int(self._rows[0][0])


PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds


class DuckdbDialect(FileDialect):
    """One file."""

    name = "DuckDB"
    page = "docs/duckdb.md"
    failure_type = duckdb.Error
    limits = Limits(rows=50_000, bytes=32 * 2**20)
    object_form = "table or schema.table"
    name_form = "different names, also without upper and lower case"
    # Of the key: two updates of another column would not collide.
    hold_fence = "UPDATE {fences} SET sync_id = sync_id WHERE sync_id {eq} ?"
    kinds = KINDS

    settings: DuckdbSettings

    @property
    def identity(self) -> str:
        """As a URL."""
        return f"duckdb://{self.path}"

    def connect(self, mode: OpenMode) -> Any:
        given = self.settings.config.items()
        config = {name: one.get_secret_value() if isinstance(one, SecretStr) else one for name, one in given}
        connection = duckdb.connect(str(self.path), config=dict[str, Any](config))
        connection.execute("SET TimeZone = 'UTC'")
        return connection

    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> _Rows:
        return _Rows(connection.execute(statement, values or None).fetchall())

    def begin(self, connection: Any, *, read_only: bool = False) -> None:
        connection.execute("BEGIN TRANSACTION")

    def failure(self, error: Any) -> tuple[Outcome, str]:
        """What the driver calls operational may succeed later: two writers at once, a file that is open elsewhere."""
        reason = first_of(FAILURES, str(error))
        may_succeed = reason == LOCKED if reason else isinstance(error, duckdb.OperationalError)
        words = next((text for kind, text in WORDS if isinstance(error, kind)), "the database failed")
        outcome = Outcome.RETRYABLE if may_succeed else Outcome.FATAL
        return outcome, reason or f"{words} ({type(error).__name__})"

    def fault(self, connection: Any, error: Any) -> Fault | None:
        """The reason, and the first line of the error: what follows quotes the row."""
        at_fault = isinstance(error, duckdb.IntegrityError | duckdb.DataError)
        return (str(error).partition("\n")[0], self.failure(error)[1]) if at_fault else None

    def is_rolled_back(self, connection: Any, error: Any) -> bool:
        if isinstance(error, duckdb.IntegrityError):
            raise RolledBack(self.failure(error)[1]) from None
        return isinstance(error, duckdb.TransactionException)

    def name_of(self, schema: str | None, name: str) -> Name:
        """In three parts: the first of two could be the file as well as a schema."""
        return Name(schema, name, self.quote, _catalog_of(self.path.name) if schema else None)

    def one_table(self, name: Name) -> str:
        return f"{name.schema or 'main'}.{name.name}".lower()

    def exists(self, connection: Any, name: Name) -> bool:
        return bool(self._catalog(connection, name, "column_name", "columns"))

    def read_table(self, connection: Any, name: Name) -> Table | None:
        what = "column_name, data_type, is_nullable, column_default"
        found = self._catalog(connection, name, what, "columns")  # also of a view
        if not found:
            return None
        is_view = not self._catalog(connection, name, "table_name", "tables")
        # Of both, only duckdb_columns() gives the expression of a generated column as its default; DuckDB 1 has no other sign.
        query = f'SELECT column_name FROM (DESCRIBE {name.sql}) WHERE "default" IS NULL'
        described = [] if is_view else self.run(connection, query).fetchall()
        columns = {}
        for column, of_type, nullable, default in found:
            required, writable = not nullable and default is None, default is None or (column,) not in described
            columns[column.lower()] = Column(column, of_type, required, nullable, writable)
        what = "constraint_type, constraint_column_names, constraint_name"
        constraints = self._catalog(connection, name, what, "constraints")
        keys = [columns for kind, columns, _ in constraints if kind in ("PRIMARY KEY", "UNIQUE")]
        indexes = self._catalog(connection, name, "index_name, is_unique, expressions", "indexes")
        keys += [_columns(text) for _, unique, text in indexes if unique]
        unique = {frozenset(map(str.lower, key)) for key in keys if key}
        names = {name for *_, name in constraints} | {name for name, *_ in indexes}
        wrong = ("a view", "a table", "name the table that holds the rows") if is_view else None
        return Table(columns, unique, names | {column.name for column in columns.values()}, wrong)

    def _catalog(self, connection: Any, name: Name, what: str, of: str) -> list[Any]:
        query = (
            f"SELECT {what} FROM duckdb_{of}() WHERE database_name = current_database() "
            "AND lower(schema_name) = lower(coalesce(?, current_schema())) AND lower(table_name) = lower(?)"
        )
        return self.run(connection, query, (name.schema, name.name)).fetchall()

    def text_of(self, field: pa.Field, column: Column) -> str:
        name = self.quoted(field.name)
        return f"hex({name})" if is_bytes(field.type) else f"CAST({name} AS VARCHAR)"


class DuckdbWriter(StagedWriter):
    """Writes all rows, or none: the engine looks for the ones at fault."""

    def packed(self, changes: Changes) -> Changes:
        names = ["place", "deleted", *(f"c{at}" for at in range(len(changes.fields)))]
        table = pa.Table.from_arrays([changes.places, changes.deleted, *changes.fields.values()], names)
        return replace(changes, data=changes.applied(table))

    def write(self, connection: Any, changes: Changes) -> dict[int, str]:
        if not changes.writes + changes.deletes:
            return {}
        connection.register(STAGE, changes.data)
        try:
            return self.at_once(connection, changes)
        except Ineffective:
            raise RolledBack(self.unchanged) from None
        except duckdb.Error as error:
            said, reason = self.fault_of(connection, error)
            names = (name for name in self.table.names if name and re.search(rf"\b{re.escape(name)}\b", said))
            # Of a foreign key the error names a column of the other table.
            named = "foreign key" if _FOREIGN_KEY in said else max(names, key=len, default="")
            raise RolledBack(f"{reason}, {named}" if named else reason) from None
        finally:
            with suppress(duckdb.TransactionException):  # one that is aborted; its end takes the stage along
                connection.unregister(STAGE)

    @property
    def unchanged(self) -> str:
        return OTHER_SPELLING if self.text_keys else IGNORED

    @property
    def match(self) -> list[str]:
        """Texts by their bytes, for a column of another collation would take one spelling for another."""
        keys = [(key in self.text_keys, f"t.{self.dialect.quoted(key)}", self.cell(key)) for key in self.task.key]
        return [f"encode({one}) = encode({other})" if by_bytes else f"{one} = {other}" for by_bytes, one, other in keys]

    @property
    def same_row(self) -> list[str]:
        keys = map(self.dialect.quoted, self.text_keys)
        return [f"encode(t.{key}) = encode(excluded.{key})" for key in keys]

    def value(self, name: str) -> str:
        return f"CAST({self.cell(name)} AS JSON)" if self.columns[name].kind == "JSON" else self.cell(name)


class DuckdbSink(SqlSink):
    """Keeps one table of a DuckDB file equal to a model."""

    type = "duckdb"
    settings_model = DuckdbSettings
    dialect_type = DuckdbDialect
    writer_type = DuckdbWriter

    def _open(self, connection: Any) -> None:
        """Of two that make our tables at once, one fails without waiting for the other: it looks again."""
        for pause in PAUSES:
            with suppress(duckdb.TransactionException):
                return super()._open(connection)
            time.sleep(pause)
        return super()._open(connection)


def _columns(expressions: str) -> list[str]:
    """The columns of an index; none if there is an expression among them."""
    found = [_EXPRESSION.fullmatch(part) for part in expressions[1:-1].split(", ")]
    return [(part[1] or part[2]).replace('""', '"') for part in found if part] if all(found) else []


@lru_cache
def _catalog_of(file_name: str) -> str:
    """What DuckDB calls a file. Its rules differ by version, so it is asked, in a file of that name if one can be made."""
    try:
        with TemporaryDirectory() as folder, duckdb.connect(str(Path(folder) / file_name)) as connection:
            return str(connection.execute("SELECT current_database()").fetchall()[0][0])
    except (OSError, duckdb.Error):
        return Path(file_name).stem
