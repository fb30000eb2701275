"""What Postgres knows about the object of a sync: columns, unique keys, our own tables. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from dbt_reverse_etl.sinks.sql.postgres.settings import LONGEST_NAME

DEFAULT_SCHEMA = "public"
_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_OBJECT = re.compile(rf"(?:{_PART}\.)?{_PART}")


@dataclass(frozen=True)
class Name:
    """A table or type with its schema."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> sql.Identifier:
        """As SQL."""
        return sql.Identifier(self.schema, self.name)


def object_name(text: str) -> Name | None:
    """`table`, `schema.table`, `"quoted.name".table`: each part exactly as written; None for anything else."""
    match = _OBJECT.fullmatch(text)
    if match is None or "\0" in text:
        return None
    schema, table = ((match[at] or "").replace('""', '"') or match[at + 1] for at in (1, 3))
    if any(len(part.encode()) > LONGEST_NAME for part in (schema or "", table)):
        return None
    return Name(schema or DEFAULT_SCHEMA, table)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        type: the type of its values: the base type where the column's is a domain.
        modifier: its type modifier (length, precision and scale), -1 without one.
        category: typcategory of the type: S text, N number, D date and time, A array, E enum, U user-defined, ...
        element: type of the elements of an array, or None; also None where they are of a domain, as a cast to that would cut.
        element_category: typcategory of that type, or None.
        required: an insert that does not name it fails.
        nullable: it takes NULL.
        writable: it is neither generated nor GENERATED ALWAYS AS IDENTITY.
        deterministic: texts that are equal in it are the same texts, as far as the collation goes.
    """

    name: str
    type: Name
    modifier: int
    category: str
    element: Name | None
    element_category: str | None
    required: bool
    nullable: bool
    writable: bool
    deterministic: bool


_COLUMNS = sql.SQL("""
WITH RECURSIVE base AS (
    SELECT oid AS origin, oid, -1 AS modifier, typtype, typbasetype, typtypmod FROM pg_catalog.pg_type
    WHERE oid IN (SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = %(table)s::pg_catalog.oid)
    UNION ALL
    SELECT base.origin, inner_type.oid, greatest(base.modifier, base.typtypmod), inner_type.typtype,
        inner_type.typbasetype, inner_type.typtypmod
    FROM base JOIN pg_catalog.pg_type inner_type ON inner_type.oid = base.typbasetype WHERE base.typtype = 'd'
)
SELECT a.attname, tn.nspname, t.typname, greatest(a.atttypmod, base.modifier), t.typcategory, en.nspname, e.typname,
    e.typcategory,
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND own.typdefault IS NULL,
    NOT a.attnotnull AND NOT own.typnotnull, a.attgenerated = '' AND a.attidentity <> 'a',
    coalesce(c.collisdeterministic, true)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type own ON own.oid = a.atttypid
JOIN base ON base.origin = a.atttypid AND base.typtype <> 'd'
JOIN pg_catalog.pg_type t ON t.oid = base.oid
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' AND e.typtype <> 'd'
LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %(table)s::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum""")

# An arbiter of ON CONFLICT: over all rows, plain columns only, checked at once.
_UNIQUE = sql.SQL("""
SELECT array(SELECT attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_catalog.pg_index i
WHERE i.indrelid = %s::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL""")

_TABLE = sql.SQL("""
SELECT c.oid, c.relkind FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s""")


_CONSTRAINTS = sql.SQL("""
SELECT conname::pg_catalog.text FROM pg_catalog.pg_constraint WHERE conname = ANY (%(names)s::pg_catalog.name[])
UNION SELECT relname::pg_catalog.text FROM pg_catalog.pg_class
WHERE relkind IN ('i', 'I') AND relname = ANY (%(names)s::pg_catalog.name[])""")


@dataclass(frozen=True)
class Table:
    """An object that is there: its relkind, its columns by name, the column sets of its unique indexes."""

    kind: str
    columns: dict[str, Column]
    unique: list[frozenset[str]]


def exists(connection: Connection[Any], name: Name) -> bool:
    """Whether a table or view of that name is there."""
    return connection.execute(_TABLE, (name.schema, name.name)).fetchone() is not None


def read_table(connection: Connection[Any], name: Name) -> Table | None:
    """The object as it is now, or None."""
    found = connection.execute(_TABLE, (name.schema, name.name)).fetchone()
    if found is None:
        return None
    oid, kind = found
    rows = connection.execute(_COLUMNS, {"table": oid}).fetchall()
    columns = {
        name: Column(name, Name(schema, of_type), modifier, category, Name(*element) if element[0] else None, *flags)
        for name, schema, of_type, modifier, category, *element_and_flags in rows
        for element, flags in [(element_and_flags[:2], element_and_flags[2:])]
    }
    unique = [frozenset(row[0]) for row in connection.execute(_UNIQUE, (oid,))]
    return Table(kind, columns, unique)


def known_constraints(connection: Connection[Any], names: Iterable[str]) -> Set[str]:
    """Constraints and unique indexes of the database that have one of these names."""
    return frozenset(row[0] for row in connection.execute(_CONSTRAINTS, {"names": list(names)}))
