"""What MySQL knows about the object of a sync: columns, unique keys, constraints. Reads only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from dbt_reverse_etl.sinks.sql.mysql.session import run
from dbt_reverse_etl.sinks.sql.mysql.settings import LONGEST_NAME

BASE_TABLE = "BASE TABLE"
_PART = r"(?:`((?:[^`]|``)+)`|([^`.]+))"
_OBJECT = re.compile(rf"(?:{_PART}\.)?{_PART}", re.DOTALL)
_BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})


@dataclass(frozen=True)
class Name:
    """A table with its database."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def sql(self) -> str:
        """As SQL."""
        return f"{quoted(self.database)}.{quoted(self.name)}"


def quoted(identifier: str) -> str:
    """A name as SQL."""
    return f"`{identifier.replace('`', '``')}`"


def is_name(text: str) -> bool:
    """Whether MySQL takes it for a name, as it is."""
    return 1 <= len(text) <= LONGEST_NAME and "\0" not in text and max(text) <= "\uffff" and not text.endswith(" ")


def object_name(text: str, database: str) -> Name | None:
    """`table`, `database.table`, with backquotes where a part has a dot; None for anything else."""
    match = _OBJECT.fullmatch(text)
    if match is None:
        return None
    schema, table = ((match[at] or "").replace("``", "`") or match[at + 1] for at in (1, 3))
    schema = schema or database
    return Name(schema, table) if is_name(schema) and is_name(table) else None


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        kind: its type without length: int, varchar, datetime, ...
        unsigned: it takes no negative numbers.
        characters, octets: the most of a text or of bytes; None for other types.
        precision: digits of a second.
        scale: digits after the point; None for a FLOAT or DOUBLE without (M, D).
        charset, collation: of a text; None for other types.
        required: an insert that does not name it fails.
        nullable: it takes NULL.
        generated: it cannot be written.
        counts: AUTO_INCREMENT.
    """

    name: str
    kind: str
    unsigned: bool
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    charset: str | None
    collation: str | None
    required: bool
    nullable: bool
    generated: bool
    counts: bool

    @property
    def is_text(self) -> bool:
        """Whether it holds texts; JSON has no character set of its own."""
        return self.charset is not None or self.kind == "json"

    @property
    def is_binary(self) -> bool:
        """Whether it holds bytes."""
        return self.kind in _BINARIES


@dataclass(frozen=True)
class Table:
    """An object that is there.

    Attributes:
        columns: by name in lower case, for MySQL does not tell them apart.
        unique: index name -> its columns in lower case; of whole columns, all of them.
        others: names of unique indexes that are of another kind: over prefixes, expressions, hashes.
        constraints: names that an error of the table may show.
    """

    kind: str
    engine: str
    columns: dict[str, Column]
    unique: dict[str, frozenset[str]]
    others: Set[str]
    constraints: Set[str]

    def column(self, field: str) -> Column | None:
        """The column of a field."""
        return self.columns.get(field.lower())


_COLUMNS = """SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE LIKE '%% unsigned%%', CHARACTER_MAXIMUM_LENGTH,
    CHARACTER_OCTET_LENGTH, DATETIME_PRECISION, NUMERIC_SCALE, CHARACTER_SET_NAME, COLLATION_NAME,
    IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND EXTRA NOT LIKE '%%auto_increment%%'
        AND COALESCE(GENERATION_EXPRESSION, '') = '',
    IS_NULLABLE = 'YES', COALESCE(GENERATION_EXPRESSION, '') <> '', EXTRA LIKE '%%auto_increment%%'
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_FLAGS = 4  # the last ones

_UNIQUE = """SELECT INDEX_NAME, LOWER(COLUMN_NAME), SUB_PART IS NULL AND INDEX_TYPE = 'BTREE'
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NOT NON_UNIQUE"""

# information_schema shows constraints only to those who may alter the table.
_CONSTRAINT = re.compile(r"CONSTRAINT `((?:[^`]|``)+)`")

_TABLE = """SELECT TABLE_TYPE, COALESCE(ENGINE, '') FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""


def engine_of(connection: Connection[Any], name: Name) -> str | None:
    """The storage engine of a table; empty for a view, None if it is not there."""
    found = run(connection, _TABLE, (name.database, name.name)).fetchone()
    return None if found is None else str(found[1])


def read_table(connection: Connection[Any], name: Name) -> Table | None:
    """The object as it is now, or None."""
    where = (name.database, name.name)
    found = run(connection, _TABLE, where).fetchone()
    if found is None:
        return None
    columns = {}
    for row in run(connection, _COLUMNS, where).fetchall():
        flags = map(bool, row[-_FLAGS:])
        columns[row[0].lower()] = Column(row[0], row[1], bool(row[2]), *row[3:-_FLAGS], *flags)
    unique, others = _unique(run(connection, _UNIQUE, where).fetchall())
    ddl = run(connection, f"SHOW CREATE TABLE {name.sql}").fetchone() if found[0] == BASE_TABLE else None
    named = {written.replace("``", "`") for written in _CONSTRAINT.findall(ddl[1] if ddl else "")}
    return Table(found[0], found[1], columns, unique, others, unique.keys() | others | named)


def _unique(rows: Any) -> tuple[dict[str, frozenset[str]], Set[str]]:
    parts: dict[str, list[tuple[str | None, bool]]] = defaultdict(list)
    for index, column, is_whole in rows:
        parts[index].append((column, bool(is_whole)))
    plain = {index for index, found in parts.items() if all(column and is_whole for column, is_whole in found)}
    unique = {index: frozenset(str(column) for column, _ in parts[index]) for index in plain}
    return unique, parts.keys() - plain
