"""What MySQL knows about the object of a sync."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from dbt_reverse_etl.sinks.sql.dialects.mysql.session import run
from dbt_reverse_etl.sinks.sql.table import Column, Name, Table, Wrong

ENGINE, BASE_TABLE, VERSIONED = "InnoDB", "BASE TABLE", "SYSTEM VERSIONED"
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})


@dataclass(frozen=True)
class MysqlColumn(Column):
    """One column of a table; its kind is its type without length: int, varchar, datetime, ...

    Attributes:
        counts: AUTO_INCREMENT.
        characters, octets: the most of a text or of bytes; None for other types.
        precision: digits of a second.
        scale: digits after the point; None for a FLOAT or DOUBLE without (M, D).
        charset, collation: of a text; None for other types.
    """

    counts: bool
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    charset: str | None
    collation: str | None

    @property
    def is_text(self) -> bool:
        """Whether it holds texts; JSON has no character set of its own."""
        return self.charset is not None or self.kind == "json"

    @property
    def is_number(self) -> bool:
        """Whole or decimal."""
        return self.kind in _NUMBERS


@dataclass(frozen=True)
class MysqlTable(Table):
    """An object that is there.

    Attributes:
        indexes: name of each unique index over whole columns -> these, in lower case.
        others: names of unique indexes that are of another kind: over prefixes, expressions, hashes.
    """

    indexes: Mapping[str, frozenset[str]] = frozenset()  # type: ignore[assignment]
    others: Set[str] = frozenset()


_COLUMNS = """SELECT COLUMN_NAME, LOWER(DATA_TYPE),
    IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND EXTRA NOT LIKE '%%auto_increment%%'
        AND COALESCE(GENERATION_EXPRESSION, '') = '',
    IS_NULLABLE = 'YES', COALESCE(GENERATION_EXPRESSION, '') = '', EXTRA LIKE '%%auto_increment%%',
    CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH, DATETIME_PRECISION, NUMERIC_SCALE, CHARACTER_SET_NAME, COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""

_UNIQUE = """SELECT INDEX_NAME, LOWER(COLUMN_NAME), SUB_PART IS NULL AND INDEX_TYPE = 'BTREE'
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NOT NON_UNIQUE"""

# information_schema shows constraints only to those who may alter the table.
_CONSTRAINT = re.compile(r"CONSTRAINT `((?:[^`]|``)+)`")
_CASCADE = re.compile(r"FOREIGN KEY \((.+?)\) REFERENCES `((?:[^`]|``)+)` \(.*?\) ON DELETE (?:CASCADE|SET)")
_NAME = re.compile(r"`((?:[^`]|``)+)`")

# Who lacks the right TRIGGER is shown no trigger, though there may be one.
_REWRITES = """SELECT EXISTS (
    SELECT 1 FROM information_schema.TRIGGERS WHERE ACTION_TIMING = 'BEFORE' AND EVENT_MANIPULATION IN ('INSERT', 'UPDATE')
        AND EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s
) OR NOT EXISTS (
    SELECT 1 FROM (
        SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES
        UNION ALL SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES WHERE %s LIKE TABLE_SCHEMA
        UNION ALL SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES
            WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
    ) given WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = CONCAT("'", REPLACE(CURRENT_USER(), '@', "'@'"), "'"))"""

_TABLE = """SELECT TABLE_TYPE, COALESCE(ENGINE, '') FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""

IN_OTHER_CASE = """SELECT TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND LOWER(TABLE_NAME) = LOWER(%s) ORDER BY BINARY TABLE_NAME DESC LIMIT 1"""  # small letters come last


def engine_of(connection: Connection[Any], name: Name) -> str | None:
    """The storage engine of a table; empty for a view, None if it is not there."""
    found = run(connection, _TABLE, (name.schema, name.name)).fetchone()
    return None if found is None else str(found[1])


def read_table(connection: Connection[Any], name: Name) -> MysqlTable | None:
    """The object as it is now, or None."""
    where = (name.schema, name.name)
    found = run(connection, _TABLE, where).fetchone()
    if found is None:
        return None
    columns = {}
    for column, kind, required, nullable, writable, counts, *rest in run(connection, _COLUMNS, where).fetchall():
        flags = bool(required), bool(nullable), bool(writable), bool(counts)
        columns[column.lower()] = MysqlColumn(column, kind, *flags, *rest)
    indexes, others = _unique(run(connection, _UNIQUE, where).fetchall())
    ddl = run(connection, f"SHOW CREATE TABLE {name.sql}").fetchone() if found[0] == BASE_TABLE else None
    # Names of tables may have no case: then the writes of a table that only looks like its parent go first, too.
    of_keys = _CASCADE.findall(ddl[1] if ddl else "")
    own = [columns for columns, parent in of_keys if parent.replace("``", "`").lower() == name.name.lower()]
    cascades = {written.replace("``", "`").lower() for columns in own for written in _NAME.findall(columns)}
    named = {written.replace("``", "`") for written in _CONSTRAINT.findall(ddl[1] if ddl else "")}
    names = indexes.keys() | others | named | {column.name for column in columns.values()}
    unique, wrong = set(indexes.values()), _wrong(name, *found)
    rewrites = run(connection, _REWRITES, (*where, name.schema, *where)).fetchone() == (1,)
    return MysqlTable(columns, unique, names, wrong, indexes, others, rewrites=rewrites, cascades=cascades)


def _wrong(name: Name, kind: str, engine: str) -> Wrong | None:
    if kind == VERSIONED:
        return "a system-versioned table, which is not supported", "one without SYSTEM VERSIONING", "name another table"
    if kind != BASE_TABLE:
        return "no table (a view?)", "a table", "name the table that holds the rows"
    if engine == ENGINE:
        return None
    return f"the engine {engine}, without transactions", ENGINE, f"run: ALTER TABLE {name.sql} ENGINE={ENGINE}"


def _unique(rows: Any) -> tuple[dict[str, frozenset[str]], Set[str]]:
    parts: dict[str, list[tuple[str | None, bool]]] = defaultdict(list)
    for index, column, is_whole in rows:
        parts[index].append((column, bool(is_whole)))
    plain = {index for index, found in parts.items() if all(column and is_whole for column, is_whole in found)}
    indexes = {index: frozenset(str(column) for column, _ in parts[index]) for index in plain}
    return indexes, parts.keys() - plain
