"""What Postgres knows about the object of a sync."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from dbt_reverse_etl.sinks.sql.table import Column, Name, Table, Wrong

EXACT_TEXTS = frozenset({"text", "varchar"})
_VARCHAR, _HEADER = Name("pg_catalog", "varchar"), 4  # a length or a precision is in the modifier, behind so many bytes


@dataclass(frozen=True)
class PostgresColumn(Column):
    """One column of a table; its kind is the name of its type.

    Attributes:
        type: the type of its values: the base type where the column's is a domain.
        modifier: its type modifier (length, precision and scale), -1 without one.
        category: typcategory of the type: S text, N number, D date and time, A array, E enum, U user-defined, ...
        element: type of the elements of an array, or None; also None where they are of a domain, as a cast to that would cut.
        element_category: typcategory of that type, or None.
        deterministic: texts that are equal in it are the same texts, as far as the collation goes.
    """

    type: Name
    modifier: int
    category: str
    element: Name | None
    element_category: str | None
    deterministic: bool

    @property
    def most_characters(self) -> int | None:
        """That a varchar(n) takes, or a list of them. Postgres refuses more, but drops blanks at the end silently."""
        limited = _VARCHAR in (self.type, self.element) and self.modifier >= _HEADER
        return self.modifier - _HEADER if limited else None

    @property
    def scale(self) -> int | None:
        """Digits after the point of numeric(p, s): 11 bits with a sign. None: any number of them."""
        return None if self.modifier < 0 else (((self.modifier - _HEADER) & 0x7FF) ^ 1024) - 1024

    @property
    def is_exact(self) -> bool:
        """Whether two different texts are never equal in it (citext, uuid, char(n), a nondeterministic collation), nor in a unique index over it."""
        return self.kind in EXACT_TEXTS and self.type.schema == "pg_catalog" and self.deterministic


# Of the type of each column, the type below its domains: the row that is of no domain.
BASE = b"""
WITH RECURSIVE base AS (
    SELECT oid AS origin, oid, -1 AS modifier, typtype, typbasetype, typtypmod FROM pg_catalog.pg_type
    WHERE oid IN (SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = %(table)s::pg_catalog.oid)
    UNION ALL
    SELECT base.origin, inner_type.oid, greatest(base.modifier, base.typtypmod), inner_type.typtype,
        inner_type.typbasetype, inner_type.typtypmod
    FROM base JOIN pg_catalog.pg_type inner_type ON inner_type.oid = base.typbasetype WHERE base.typtype = 'd'
)"""

_COLUMNS = (
    BASE
    + b"""
SELECT a.attname, t.typname,
    (a.attnotnull OR own.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' AND own.typdefault IS NULL,
    NOT a.attnotnull AND NOT own.typnotnull, a.attgenerated = '' AND a.attidentity <> 'a',
    pg_catalog.format_type(t.oid, greatest(a.atttypmod, base.modifier)),
    tn.nspname, greatest(a.atttypmod, base.modifier), t.typcategory, en.nspname, e.typname, e.typcategory,
    coalesce(c.collisdeterministic, true) AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_index i,
            ROWS FROM (pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indcollation::oid[])) part (attnum, compared)
        JOIN pg_catalog.pg_collation pc ON pc.oid = part.compared
        WHERE i.indrelid = a.attrelid AND i.indisunique AND part.attnum = a.attnum AND NOT pc.collisdeterministic)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type own ON own.oid = a.atttypid
JOIN base ON base.origin = a.atttypid AND base.typtype <> 'd'
JOIN pg_catalog.pg_type t ON t.oid = base.oid
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' AND e.typtype <> 'd'
LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %(table)s::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""
)

# An arbiter of ON CONFLICT: over all rows, plain columns only, checked at once.
_UNIQUE = b"""
SELECT array(SELECT attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_catalog.pg_index i
WHERE i.indrelid = %s::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL"""

_TABLE = b"""
SELECT c.oid, c.relkind, pg_catalog.row_security_active(c.oid),
    c.relkind OPERATOR(pg_catalog.=) 'r' AND EXISTS (
        SELECT FROM pg_catalog.pg_inherits h
        JOIN pg_catalog.pg_class child ON child.oid OPERATOR(pg_catalog.=) h.inhrelid
        JOIN pg_catalog.pg_namespace cn ON cn.oid OPERATOR(pg_catalog.=) child.relnamespace
        -- The chunks of a hypertable of TimescaleDB: their parent has no rows, and its unique index holds over all.
        WHERE h.inhparent OPERATOR(pg_catalog.=) c.oid AND cn.nspname OPERATOR(pg_catalog.<>) '_timescaledb_internal'),
    -- A partitioned table has no rows of its own: its partitions decide, whatever it was declared as.
    coalesce((
        SELECT part.relpersistence FROM pg_catalog.pg_partition_tree(c.oid) tree
        JOIN pg_catalog.pg_class part ON part.oid OPERATOR(pg_catalog.=) tree.relid
        WHERE tree.isleaf AND part.relpersistence OPERATOR(pg_catalog.<>) 'p' LIMIT 1
    ), CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'p' THEN 'p' ELSE c.relpersistence END),
    -- DO ALSO changes neither our statement nor what it counts; the rules of partitions never apply.
    -- 1 is SELECT, 4 is DELETE; D is disabled, R for replicas alone.
    ARRAY(
        SELECT rule.ev_type OPERATOR(pg_catalog.=) '4' FROM pg_catalog.pg_rewrite rule
        WHERE rule.ev_class OPERATOR(pg_catalog.=) c.oid AND rule.is_instead
            AND rule.ev_type OPERATOR(pg_catalog.<>) '1' AND rule.ev_enabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""

IN_OTHER_CASE = b"""
SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND pg_catalog.lower(c.relname::pg_catalog.text) OPERATOR(pg_catalog.=) pg_catalog.lower(%s)
    AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::"char"[])
ORDER BY c.relname DESC LIMIT 1"""  # small letters come last

# Of the table or a partition, before each row (1 and 2) of an INSERT or UPDATE (4 and 16), unless it is disabled, or for replicas alone.
_TRIGGERS = b"""
SELECT t.tgtype OPERATOR(pg_catalog.&) 4, CASE WHEN l.lanname OPERATOR(pg_catalog.=) 'plpgsql' THEN p.prosrc END
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
JOIN pg_catalog.pg_language l ON l.oid OPERATOR(pg_catalog.=) p.prolang
WHERE NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) ALL ('{D,R}')
    AND (t.tgtype OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.=) 3
    AND (t.tgtype OPERATOR(pg_catalog.&) 20) OPERATOR(pg_catalog.<>) 0
    AND t.tgrelid OPERATOR(pg_catalog.=) ANY (
        SELECT %(table)s::pg_catalog.oid
        UNION ALL SELECT relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(%(table)s::pg_catalog.oid))"""

# Columns of ON DELETE CASCADE, SET NULL or SET DEFAULT from the table to itself.
_CASCADES = b"""
SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_constraint f
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) f.conrelid
    AND a.attnum OPERATOR(pg_catalog.=) ANY (f.conkey)
WHERE f.conrelid OPERATOR(pg_catalog.=) %(table)s::pg_catalog.oid AND f.confrelid OPERATOR(pg_catalog.=) f.conrelid
    AND f.contype OPERATOR(pg_catalog.=) 'f' AND f.confdeltype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[])"""

_LOGGED = "a logged table, whose partitions are logged, too"
_LOSES_ROWS: dict[str, Wrong] = {
    "u": (
        "an unlogged table, which a crash of the server empties",
        _LOGGED,
        "ALTER TABLE ... SET LOGGED, of the table or each such partition",
    ),
    "t": ("a temporary table, which ends with its session", _LOGGED, "name another table"),
}


def found(connection: Connection[Any], name: Name) -> Any:
    """The number of a table or view, its relkind, whether policies decide what this role sees, whether other tables inherit from it,
    the relpersistence of its rows, and of each rule that does something instead of a write, whether it is one of deletes; or None."""
    return connection.execute(_TABLE, (name.schema, name.name)).fetchone()


def read_table(connection: Connection[Any], name: Name) -> Table | None:
    """The object as it is now, or None."""
    there = found(connection, name)
    if there is None:
        return None
    oid, kind, has_policies, is_parent, persistence, of_deletes = there
    columns = {}
    for row in connection.execute(_COLUMNS, {"table": oid}):
        declared, schema, modifier, category, of, element, *rest = row[5:]
        of_type = (Name(schema, row[1]), modifier, category, Name(of, element) if of else None)
        columns[row[0]] = PostgresColumn(*(*row[:5], *of_type, *rest), declared=declared)
    before = connection.execute(_TRIGGERS, {"table": oid}).fetchall()
    return Table(
        columns,
        unique={frozenset(row[0]) for row in connection.execute(_UNIQUE, (oid,))},
        wrong=_wrong(kind, persistence, of_deletes, has_policies=has_policies, is_parent=is_parent),
        wrong_deletes=_RULE if of_deletes else None,
        rewrites=bool(before),
        fills={name for name in columns for of_insert, source in before if of_insert and may_fill(name, source)},
        looked_for_fills=any(of_insert for of_insert, _ in before),
        cascades={column for (column,) in connection.execute(_CASCADES, {"table": oid})},
        partitioned=kind == "p",
    )


# `NEW := f(NEW)`, `INTO NEW`, `CALL p(NEW)`, `RETURN NEW #= ...`: columns that it fills need not be named there.
# Not `IF NEW = OLD`, `RETURN coalesce(NEW, OLD)` or `RETURN CASE WHEN ... THEN OLD ELSE NEW END`.
_MAKES_ROW = re.compile(
    r"\bnew\"?\s*:=|(;|>>|\b(then|else|begin|loop)\b)\s*\"?new\"?\s*="
    r"|\binto\s+(strict\s+)?new\b(?!\s*\.)|\bfor\s+new\b|\bcall\s[^;]*\bnew\b(?!\s*\.)"
    r"|\breturn\s+(?!\s|(new|old|null)\s*;|coalesce\s*\(\s*(new|old)\s*,\s*(new|old)\s*\)\s*;"
    r"|case\b((?!\b(then|else)\b(?!\s+(new|old|null)\s+(when|else|end)\b))[^;])*;)",
    re.IGNORECASE,
)
# Comments, texts and quoted names make no row. A `$` within a name, as in `a$b$`, begins no text.
_ASIDE = re.compile(
    r"--[^\n]*|/\*.*?\*/|(?<![\w$])\$(\w*)\$.*?\$\1\$|\be'(?:\\.|''|[^'\\])*'|'[^']*'|\"(?!new\")[^\"]*\"",
    re.DOTALL | re.IGNORECASE,
)


def may_fill(column: str, source: str | None) -> bool:
    """Whether a trigger names the column, or makes the row as a whole; of one that is not in PL/pgSQL, which has no source
    here, nobody knows."""
    if source is None or column.lower() in source.lower():
        return True
    return _MAKES_ROW.search(_ASIDE.sub(" ", source)) is not None


# What it did instead would count as written, or deleted.
_RULE = "a rule with DO INSTEAD", "a table that writes what it is given", "drop the rule, or use a trigger"


def _wrong(kind: str, persistence: str, of_deletes: list[bool], *, has_policies: bool, is_parent: bool) -> Wrong | None:
    if kind not in ("r", "p"):
        return "no table (a view or foreign table?)", "a table", "name the table that holds the rows"
    if persistence in _LOSES_ROWS:  # the record of the sync would outlive the rows
        return _LOSES_ROWS[persistence]
    if is_parent:
        found = "a table from which others inherit, so that no key is unique"
        return found, "a table of its own, or partitions", "name one"
    if False in of_deletes:
        return _RULE
    if has_policies:  # a row that is hidden cannot be deleted, and looks as if it were
        found, expected = "row level security that applies to this role", "a role that sees and may write every row"
        return found, expected, "ALTER ROLE ... BYPASSRLS, or name the owner as user"
    return None
