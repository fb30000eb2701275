"""MySQL and MariaDB: rows are put into a temporary table, then deleted and upserted from there in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pymysql
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.refusals import Converted, Refusal
from dbt_reverse_etl.sinks.sql.dialect import Dialect, Fault, OpenMode
from dbt_reverse_etl.sinks.sql.dialects.mysql import session
from dbt_reverse_etl.sinks.sql.dialects.mysql.kinds import BINARIES, CHARSETS, KINDS, UTF8
from dbt_reverse_etl.sinks.sql.dialects.mysql.rights import lacks
from dbt_reverse_etl.sinks.sql.dialects.mysql.rows import MysqlWriter
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import ENGINE, IN_OTHER_CASE, MysqlColumn, engine_of, read_table
from dbt_reverse_etl.sinks.sql.reading import rows_in_parts
from dbt_reverse_etl.sinks.sql.rights import INSERT, SELECT, UPDATE, Lack, Need
from dbt_reverse_etl.sinks.sql.settings import LONGEST_MYSQL_NAME, MysqlSettings, SoftDeleteOptions
from dbt_reverse_etl.sinks.sql.sink import SqlSink
from dbt_reverse_etl.sinks.sql.table import Name, Table, Wrong
from dbt_reverse_etl.values.arrow import is_bytes, is_text

OLDEST_MYSQL, OLDEST_MARIADB = (8, 0), (10, 5)
REQUIRED = "NULL, and its column is NOT NULL"
BLANK_AT_END = "a blank at the end, which CHAR would drop"
OUTSIDE_CHARSET = "a character that the character set of its column has not"
_KEY_LENGTH = 255  # three such columns fit into an index


class MysqlDialect(Dialect):
    """One database of a MySQL or MariaDB server."""

    name = "MySQL"
    page = "docs/mysql.md"
    failure_type = pymysql.Error
    limits = Limits(rows=25_000, bytes=32 * 2**20, concurrency=4)  # a bad row is searched from here
    transactional_ddl = False
    quote, mark = "`", "%s"
    object_form = "table, database.table or `quoted`.name of at most 64 characters a part"
    name_form = "different names of 1 to 64 characters, also without upper and lower case"
    key_form = ", of whole columns"
    moment_types = frozenset({"datetime", "timestamp"})
    object_suffix = f" ENGINE={ENGINE} {UTF8}"
    id_type = "varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
    table_suffix = f" ENGINE={ENGINE}"
    state_setting = "state_database"
    raise_fence = "INSERT INTO {fences} VALUES (?, ?) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))"
    lock_fence = " LOCK IN SHARE MODE"
    lock_record = " FOR UPDATE"  # without the lock, a record whose COMMIT is still on its way would not be seen
    insert_only = (SELECT, INSERT, UPDATE)  # its statement says ON DUPLICATE KEY UPDATE
    kinds = KINDS

    settings: MysqlSettings

    failure = staticmethod(session.failure)
    next_step = staticmethod(session.login_step)
    read_table = staticmethod(read_table)

    @property
    def holder(self) -> str:
        """The server: an object may be in another database than that of the settings."""
        return self.settings.server

    @property
    def default_schema(self) -> str:
        return self.settings.database

    def unfit_server(self, connection: Connection[Any]) -> Wrong | None:
        # Never the version of the handshake: a proxy sends one of its own.
        (version,) = session.run(connection, "SELECT VERSION()").fetchone() or ("",)
        numbers = tuple(int(part) for part in version.partition("-")[0].split(".")[:2] if part.isdigit())
        if numbers < (OLDEST_MARIADB if "MariaDB" in version else OLDEST_MYSQL):
            return f"version {version}", "MySQL 8.0 or MariaDB 10.5, or newer", "upgrade the server"
        return None

    def server_problem(self, connection: Connection[Any]) -> Wrong | None:
        read_only = session.run(connection, "SELECT @@read_only, @@innodb_read_only").fetchone() or ()
        if {*map(str, read_only)} <= {"0", "OFF"}:  # from MariaDB 12 on a word
            return None
        return "a server that takes no writes (a replica?)", "the primary", "name it as host"

    def lacks(self, connection: Connection[Any], needs: Sequence[Need]) -> list[Lack]:
        return lacks(connection, needs, self.settings.database, self.settings.user)

    def connect(self, mode: OpenMode) -> Connection[Any]:
        return session.connect(self.settings)

    def is_open(self, connection: Connection[Any]) -> bool:
        return bool(connection.open)

    def run(self, connection: Connection[Any], statement: str, values: Sequence[Any] = ()) -> Any:
        return session.run(connection, statement, values or None)

    def begin(self, connection: Connection[Any], *, read_only: bool = False) -> None:
        session.run(connection, "START TRANSACTION READ ONLY" if read_only else "START TRANSACTION")

    def fault(self, connection: Connection[Any], error: pymysql.Error) -> Fault | None:
        return (session.number(error),) if session.row_is_at_fault(error) else None

    def is_rolled_back(self, connection: Connection[Any], error: pymysql.Error) -> bool:
        return session.number(error) in session.ROLLED_BACK

    def unsafe_record(self, connection: Connection[Any], name: Name) -> Wrong | None:
        if engine_of(connection, name) == ENGINE:
            return None
        return f"{name} without transactions", f"the engine {ENGINE}", f"run: ALTER TABLE {name.sql} ENGINE={ENGINE}"

    def is_name(self, name: str) -> bool:
        return 1 <= len(name) <= LONGEST_MYSQL_NAME and "\0" not in name and max(name) <= "\uffff" and name[-1] != " "

    def exists(self, connection: Connection[Any], name: Name) -> bool:
        return engine_of(connection, name) is not None

    def name_in_other_case(self, connection: Connection[Any], name: Name) -> str | None:
        row = session.run(connection, IN_OTHER_CASE, (name.schema, name.name)).fetchone()
        return row[0] if row else None

    def read_rows(self, connection: Connection[Any], name: Name, table: Table, task: SinkTask) -> Iterator[pa.Table]:
        with connection.cursor(SSCursor) as cursor:
            cursor.execute(self.every_row(name, table, task))
            yield from rows_in_parts(cursor, task)

    def text_of(self, field: pa.Field, column: MysqlColumn) -> str:
        name = self.quoted(field.name)
        if is_bytes(field.type):
            # It is NULL above max_allowed_packet; what is no number of base 16 is shown as unreadable.
            return f"CAST(COALESCE(HEX({name}), IF({name} IS NULL, NULL, 'too long')) AS CHAR)"
        if pt.is_floating(field.type):
            return f"CAST(({name} + 0e0) AS CHAR)"  # a FLOAT is written with six digits
        return f"CAST({f'({name} + 0)' if column.is_number else name} AS CHAR)"  # ZEROFILL shows more of them

    def column_type(self, plain: pa.DataType, *, in_key: bool = False) -> str:
        if in_key and (is_text(plain) or is_bytes(plain)):
            return f"{'varchar' if is_text(plain) else 'varbinary'}({_KEY_LENGTH})"
        return super().column_type(plain)

    def column_problem(self, column: MysqlColumn, field: pa.Field, task: SinkTask, name: Name) -> Wrong | None:
        if column.counts and field.name not in task.key:
            found = f"{column.name} is AUTO_INCREMENT and no key, and would replace NULL"
            return found, "a column to write", "leave the field out"
        is_unsafe = column.charset is not None and column.charset not in CHARSETS
        if is_unsafe and is_text(field.type) and self.kind(field.type).fits(column, field.type):
            found = f"column {column.name} of character set {column.charset}, which cannot hold every text"
            return found, "utf8mb4", f"run: ALTER TABLE {name.sql} CONVERT TO CHARACTER SET utf8mb4"
        return None

    def converted(self, array: Any, column: MysqlColumn) -> Converted:
        converted, refusals = super().converted(array, column)
        return (converted.cast(pa.string()) if column.is_text else converted), refusals

    def unfit(self, array: Any, written: Any, column: MysqlColumn) -> list[Refusal]:
        """Values that the table would refuse only in part: it cuts blanks, and fills bytes up."""
        found: list[Refusal] = [] if column.nullable else [(written.is_null(), REQUIRED)]
        if column.charset is not None:
            texts = written.cast(pa.large_string())
            for length, most, unit in (
                (pc.binary_length(texts), column.octets, "bytes"),
                (pc.utf8_length(texts), column.characters, "characters"),
            ):
                found.append((pc.greater(length, most), f"longer than the {most} {unit} of its column"))
            if column.kind == "char":
                found.append((pc.ends_with(texts, " "), BLANK_AT_END))
            if column.charset == "ascii":
                found.append((pc.invert(pc.string_is_ascii(texts)), OUTSIDE_CHARSET))
            elif column.charset != "utf8mb4":
                found.append((pc.match_substring_regex(texts, r"[\x{10000}-\x{10FFFF}]"), OUTSIDE_CHARSET))
        elif column.kind in BINARIES:
            differs, said = (pc.not_equal, "not as long as") if column.kind == "binary" else (pc.greater, "longer than")
            lengths = pc.binary_length(written.cast(pa.large_binary()))
            found.append((differs(lengths, column.octets), f"{said} the {column.octets} bytes of its column"))
        return found


class MysqlSink(SqlSink):
    """Keeps one table of a MySQL or MariaDB database equal to a model."""

    type = "mysql"
    settings_model = MysqlSettings
    options_model = SoftDeleteOptions
    distributable = True
    dialect_type = MysqlDialect

    def _writer_for(self, connection: Connection[Any], name: Name, table: Any) -> MysqlWriter:
        (packet,) = session.run(connection, "SELECT @@max_allowed_packet").fetchone() or (2**20,)
        return MysqlWriter(self._dialect, self._task, name, table, int(packet))
