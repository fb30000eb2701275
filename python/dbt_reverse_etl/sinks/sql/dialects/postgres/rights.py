"""The rights of a Postgres role, as the catalog tells them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from psycopg import Connection

from dbt_reverse_etl.sinks.sql.dialects.postgres.table import BASE
from dbt_reverse_etl.sinks.sql.rights import DELETE, INSERT, Lack, Need, no_table
from dbt_reverse_etl.sinks.sql.table import Name, quoted

_SCHEMA = b"""
SELECT pg_catalog.has_schema_privilege(oid, 'USAGE'), pg_catalog.has_schema_privilege(oid, 'CREATE')
FROM pg_catalog.pg_namespace WHERE nspname = %s"""
_TABLE = b"""
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""
_ON_TABLE = b"SELECT pg_catalog.has_table_privilege(%s::pg_catalog.oid, %s)"
_ON_A_COLUMN = b"SELECT pg_catalog.has_any_column_privilege(%s::pg_catalog.oid, %s)"
# Of the types of these columns, below domains: SQL names them. An array is in the schema of its elements.
_SCHEMAS = (
    BASE
    + b"""
SELECT DISTINCT n.nspname::pg_catalog.text FROM pg_catalog.pg_attribute a
JOIN base ON base.origin = a.atttypid AND base.typtype <> 'd'
JOIN pg_catalog.pg_type t ON t.oid = base.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = %(table)s::pg_catalog.oid AND a.attname = ANY (%(fields)s::pg_catalog.name[])
    AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') ORDER BY 1"""
)
# Of which the default of another column takes a value; an identity column asks for no right.
_SEQUENCES = b"""
SELECT DISTINCT n.nspname::pg_catalog.text, s.relname::pg_catalog.text FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_catalog.pg_depend on_it ON on_it.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND on_it.objid = d.oid
    AND on_it.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
JOIN pg_catalog.pg_class s ON s.oid = on_it.refobjid AND s.relkind = 'S'
JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
WHERE a.attrelid = %s::pg_catalog.oid AND a.attname <> ALL (%s::pg_catalog.name[])
    -- Postgres may ask before it looks at the kind.
    AND CASE s.relkind WHEN 'S' THEN NOT pg_catalog.has_sequence_privilege(s.oid, 'USAGE, UPDATE') END ORDER BY 1, 2"""
_TEMPORARY = b"""
SELECT pg_catalog.has_database_privilege(d, 'TEMPORARY'), d, current_user FROM pg_catalog.current_database() d"""


def lacks(connection: Connection[Any], needs: Iterable[Need]) -> list[Lack]:
    """What a role lacks for a push, each with the grant."""
    may, database, user = _row(connection, _TEMPORARY, ())
    to = quoted(user)  # a pooler may log in as another one than the settings name
    found = [lack for need in needs for lack in _of_table(connection, need, to)]
    if not may:
        grant = f"GRANT TEMPORARY ON DATABASE {quoted(database)} TO {to}"
        found.append((f"no right TEMPORARY on database {database}", grant))
    return list(dict.fromkeys(found))


def _of_table(connection: Connection[Any], need: Need, to: str) -> Iterator[Lack]:
    name, schema = need.table, need.table.schema or ""
    usage, create = _row(connection, _SCHEMA, (name.schema,)) or (None, None)
    if not usage:
        found = f"no schema {name.schema}" if usage is None else f"no right USAGE on schema {name.schema}"
        yield found, f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {to}"
        return
    found = _row(connection, _TABLE, (name.schema, name.name))
    if found is not None:
        absent = ", ".join(right for right in need.rights if not _has(connection, found[0], right))
        if absent:
            yield f"no right {absent} on {name}", f"GRANT {absent} ON {name.sql} TO {to}"
        yield from _of_columns(connection, need, found[0], to)
    elif not need.is_made:
        yield no_table(need)
    elif not create:
        grant = f"GRANT CREATE ON SCHEMA {quoted(schema)} TO {to}, or make the table"
        yield f"no table {name}, and no right CREATE on schema {name.schema}", grant


def _of_columns(connection: Connection[Any], need: Need, oid: int, to: str) -> Iterator[Lack]:
    for (schema,) in connection.execute(_SCHEMAS, {"table": oid, "fields": list(need.fields)}).fetchall():
        yield f"no right USAGE on schema {schema}, of a type", f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {to}"
    if INSERT in need.rights and need.has_all:
        for place in connection.execute(_SEQUENCES, (oid, list(need.fields))).fetchall():
            sequence = Name(*place)
            yield f"no right USAGE on sequence {sequence}", f"GRANT USAGE ON SEQUENCE {sequence.sql} TO {to}"


def _has(connection: Connection[Any], oid: int, right: str) -> bool:
    """A right on some columns is one: which of them a push needs is known only with the model."""
    asked = [_ON_TABLE] if right == DELETE else [_ON_TABLE, _ON_A_COLUMN]
    return any(_row(connection, query, (oid, right))[0] for query in asked)


def _row(connection: Connection[Any], query: bytes, values: tuple[Any, ...]) -> Any:
    return connection.execute(query, values).fetchone()
