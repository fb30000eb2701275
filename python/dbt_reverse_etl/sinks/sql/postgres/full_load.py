"""The table into which a full load goes, and how it takes the place of the object.

It is made `LIKE` the object, so that each batch finds the rows that a constraint refuses. Where it is the object in all that the
catalog knows, it is renamed; where a rename would lose something (triggers, views, rights of another owner, ...), or where the
object is not ours, its rows are put into the object, which stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import Connection, errors, sql

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.database import beside
from dbt_reverse_etl.sinks.sql.postgres.catalog import Name, exists
from dbt_reverse_etl.sinks.sql.postgres.settings import LONGEST_NAME

OTHER_ROWS = "the object took or kept other rows than those that were loaded (a trigger or rule?)"
LOST_ROWS = "the loaded rows are not all there (a restart of the server empties them)"

# All that the catalog knows about a table but what differs between any two; a later version's additions are compared too.
_PICTURE = sql.SQL("""
SELECT pg_catalog.jsonb_build_object(
    'table', (SELECT pg_catalog.to_jsonb(c) - '{oid,relname,reltype,relfilenode,relpages,reltuples,relallvisible,
        relallfrozen,reltoastrelid,relfrozenxid,relminmxid,relacl}'::text[] FROM pg_catalog.pg_class c WHERE c.oid = %(t)s::oid),
    'rights', (SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(a) ORDER BY a::text) FROM pg_catalog.pg_class c,
        pg_catalog.aclexplode(coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner))) a WHERE c.oid = %(t)s::oid),
    'comment', pg_catalog.obj_description(%(t)s::oid, 'pg_class'),
    'columns', (SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(a) - '{attrelid,attcacheoff,atthasmissing,attmissingval}'::text[]
        || pg_catalog.jsonb_build_object('default', pg_catalog.pg_get_expr(d.adbin, d.adrelid),
            'comment', pg_catalog.col_description(%(t)s::oid, a.attnum)) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = %(t)s::oid AND a.attnum > 0),
    'checks', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(n.conname, pg_catalog.pg_get_constraintdef(n.oid),
            n.convalidated, n.connoinherit, pg_catalog.obj_description(n.oid, 'pg_constraint')) ORDER BY n.conname)
        FROM pg_catalog.pg_constraint n WHERE n.conrelid = %(t)s::oid AND n.contype NOT IN ('p', 'u', 'x')),
    'labels', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_seclabel l WHERE l.objoid = %(t)s::oid))""")

# Each index without its own name and that of its table; equal ones may stand for each other.
_INDEXES = sql.SQL("""
SELECT c.relname, pg_catalog.jsonb_build_array(
    pg_catalog.to_jsonb(i) - '{indexrelid,indrelid,indexprs,indpred,indcheckxmin}'::text[],
    pg_catalog.split_part(pg_catalog.pg_get_indexdef(i.indexrelid), ' USING ', 2), c.reloptions, c.reltablespace,
    pg_catalog.obj_description(c.oid, 'pg_class'), n.contype, n.condeferrable, n.condeferred,
    pg_catalog.obj_description(n.oid, 'pg_constraint'))::text AS said
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
LEFT JOIN pg_catalog.pg_constraint n ON n.conindid = i.indexrelid AND n.conrelid = i.indrelid
WHERE i.indrelid = %(t)s::oid ORDER BY said, c.relname""")

# What a table owns or is used by, beyond what LIKE makes anew: views, policies, sequences, publications, foreign keys of others, ...
_ATTACHED = sql.SQL("""
SELECT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.refclassid = 'pg_catalog.pg_class'::regclass::oid AND d.refobjid = %(t)s::oid
    AND d.classid <> 'pg_catalog.pg_attrdef'::regclass::oid AND NOT (d.classid = 'pg_catalog.pg_type'::regclass::oid AND d.deptype = 'i')
    AND NOT (d.classid = 'pg_catalog.pg_constraint'::regclass::oid AND EXISTS (
        SELECT FROM pg_catalog.pg_constraint n WHERE n.oid = d.objid AND n.conrelid = %(t)s::oid AND n.contype <> 'f'))
    AND NOT (d.classid = 'pg_catalog.pg_class'::regclass::oid AND EXISTS (
        SELECT FROM pg_catalog.pg_class x WHERE x.oid = d.objid AND x.relkind IN ('i', 't'))))
OR EXISTS (SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_type y ON y.oid = d.refobjid AND y.typrelid = %(t)s::oid
    WHERE d.refclassid = 'pg_catalog.pg_type'::regclass::oid AND d.deptype <> 'i')
OR EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::regclass::oid AND d.objid = %(t)s::oid
    AND d.deptype IN ('e', 'x'))
OR EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE %(t)s::oid IN (h.inhrelid, h.inhparent))
OR EXISTS (SELECT FROM pg_catalog.pg_publication_tables p JOIN pg_catalog.pg_class c ON c.relname = p.tablename
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = p.schemaname WHERE c.oid = %(t)s::oid)""")

_OURS = sql.SQL("""
SELECT pg_catalog.pg_get_userbyid(c.relowner) = current_user AND c.relpersistence = 'p' AND c.relkind = 'r' FROM pg_catalog.pg_class c
WHERE c.oid = %(t)s::oid""")

_RIGHTS = sql.SQL("""
SELECT a.privilege_type, CASE WHEN a.grantee <> 0::oid THEN pg_catalog.pg_get_userbyid(a.grantee) END, a.is_grantable
FROM pg_catalog.pg_class c, pg_catalog.aclexplode(coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner))) a
WHERE c.oid = %(t)s::oid""")

# A delete of all rows would reach further than this table, or not all of it.
_REFUSALS = sql.SQL("""
SELECT pg_catalog.format('the foreign key %%s of %%s points at it, where a delete of all rows would be refused or go on',
    n.conname, n.conrelid::regclass)
FROM pg_catalog.pg_constraint n WHERE n.contype = 'f' AND n.confrelid = %(t)s::oid AND n.conrelid <> n.confrelid
    AND n.conparentid = 0::oid
UNION ALL SELECT 'row-level security hides rows of it from us' WHERE pg_catalog.row_security_active(%(t)s::oid)
UNION ALL SELECT 'tables inherit from it' FROM pg_catalog.pg_class c WHERE c.oid = %(t)s::oid AND c.relkind = 'r'
    AND EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid)""")

_FOREIGN_KEYS = sql.SQL("""
SELECT array(SELECT a.attname::text FROM pg_catalog.unnest(n.conkey) WITH ORDINALITY k (num, at)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = n.conrelid AND a.attnum = k.num ORDER BY k.at),
    s.nspname::text, c.relname::text,
    array(SELECT a.attname::text FROM pg_catalog.unnest(n.confkey) WITH ORDINALITY k (num, at)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = n.confrelid AND a.attnum = k.num ORDER BY k.at), n.conname::text
FROM pg_catalog.pg_constraint n JOIN pg_catalog.pg_class c ON c.oid = n.confrelid
JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
WHERE n.conrelid = %(t)s::oid AND n.contype = 'f' AND n.confrelid <> n.conrelid""")


@dataclass(frozen=True)
class FullLoad:
    """A load that is under way.

    Attributes:
        target, name: the object, and the table beside it.
        names: name of each index of the table -> that of the object's.
        renames: the table may take the object's name; asked again when it does.
    """

    target: Name
    name: Name
    names: dict[str, str]
    renames: bool

    def in_words(self, reason: str) -> str:
        """A reason with the names that the object's constraints have."""
        said, word, constraint = reason.rpartition(", constraint ")
        return said + word + self.names.get(constraint, constraint)

    def swap(self, connection: Connection[Any], task: SinkTask, rows: int) -> str | None:
        """Put the loaded rows in place of the object's, in the transaction that is open; why that cannot be, or None."""
        if self.renames:
            connection.execute(sql.SQL("ANALYZE {}").format(self.name.sql))
        mode = sql.SQL("ACCESS EXCLUSIVE" if self.renames else "SHARE ROW EXCLUSIVE")
        connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(self.target.sql, mode))
        if _count(connection, self.name) != rows:
            return LOST_ROWS
        if self.renames and _is_the_same(connection, self.target, self.name):
            self._rename(connection)
            return None
        return self._replace(connection, task, rows)

    def _rename(self, connection: Connection[Any]) -> None:
        """Without CASCADE: what the catalog did not tell keeps the object where it is."""
        connection.execute(sql.SQL("DROP TABLE {} RESTRICT").format(self.target.sql))
        for ours, theirs in self.names.items():
            index = sql.Identifier(self.name.schema, ours)
            connection.execute(sql.SQL("ALTER INDEX {} RENAME TO {}").format(index, sql.Identifier(theirs)))
        name = sql.Identifier(self.target.name)
        connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(self.name.sql, name))

    def _replace(self, connection: Connection[Any], task: SinkTask, rows: int) -> str | None:
        columns = sql.SQL(", ").join(map(sql.Identifier, task.schema.names))
        connection.execute(sql.SQL("DELETE FROM {}").format(self.target.sql))
        left = connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self.target.sql)).fetchone()
        fill = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}")
        filled = connection.execute(fill.format(self.target.sql, columns, columns, self.name.sql)).rowcount
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if left is not None or filled != rows:
            return OTHER_ROWS
        connection.execute(sql.SQL("DROP TABLE {}").format(self.name.sql))
        return None


def load_table(target: Name) -> Name:
    """The table into which a load of an object goes."""
    return Name(target.schema, beside(target.name, "load", LONGEST_NAME))


def drop_left_over(connection: Connection[Any], target: Name) -> None:
    """Remove what a run that crashed has left."""
    name = load_table(target)
    if exists(connection, name):
        connection.execute(sql.SQL("DROP TABLE {}").format(name.sql))


def begin_full_load(connection: Connection[Any], target: Name, task: SinkTask) -> FullLoad:
    """Make the table, in the transaction that is open. Raises DestinationError where rows must not be replaced."""
    oid = _oid(connection, target)
    refusals = [said for (said,) in connection.execute(_REFUSALS, {"t": oid})]
    if refusals:
        where, expected = f"sync {task.sync}, object {target}", "an object whose rows can all be replaced"
        raise DestinationError(*(Problem(where, said, expected, "set owns_object: false") for said in refusals))
    name = load_table(target)
    if _first(connection, _OURS, oid) and not _first(connection, _ATTACHED, oid):
        _make(connection, target, name, "")
        _copy_rights_and_comment(connection, oid, name)
        if _is_the_same(connection, target, name):
            return FullLoad(target, name, _index_names(connection, target, name), renames=True)
        drop_left_over(connection, target)
    _make(connection, target, name, "UNLOGGED")
    _add_foreign_keys(connection, oid, name, task)
    return FullLoad(target, name, _index_names(connection, target, name), renames=False)


def _make(connection: Connection[Any], target: Name, name: Name, kind: str) -> None:
    text = sql.SQL("CREATE {} TABLE {} (LIKE {} INCLUDING ALL)")
    connection.execute(text.format(sql.SQL(kind), name.sql, target.sql))


def _copy_rights_and_comment(connection: Connection[Any], oid: int, name: Name) -> None:
    """The owner's defaults may give rights that the object has not."""
    wanted = connection.execute(_RIGHTS, {"t": oid}).fetchall()
    found = connection.execute(_RIGHTS, {"t": _oid(connection, name)}).fetchall()
    more, less = ([right for right in one if right not in other] for one, other in ((found, wanted), (wanted, found)))
    for text, rights in (("REVOKE {} ON {} FROM {}", more), ("GRANT {} ON {} TO {}{}", less)):
        for right, role, may_grant in rights:
            to = sql.Identifier(role) if role is not None else sql.SQL("PUBLIC")
            option = sql.SQL(" WITH GRANT OPTION" if may_grant else "")
            connection.execute(sql.SQL(text).format(sql.SQL(right), name.sql, to, option))
    row = connection.execute("SELECT pg_catalog.obj_description(%s::oid, 'pg_class')", (oid,)).fetchone()
    connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name.sql, sql.Literal(row[0] if row else None)))


def _add_foreign_keys(connection: Connection[Any], oid: int, name: Name, task: SinkTask) -> None:
    """So that a batch finds the rows that they refuse; not those that point at the object itself, which is still the old one."""
    for columns, schema, table, others, constraint in connection.execute(_FOREIGN_KEYS, {"t": oid}).fetchall():
        text = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({})")
        listed, pointed = (sql.SQL(", ").join(map(sql.Identifier, names)) for names in (columns, others))
        parent = sql.Identifier(schema, table)
        try:
            connection.execute(text.format(name.sql, sql.Identifier(constraint), listed, parent, pointed))
        except errors.InsufficientPrivilege:
            found = f"no right to check the foreign key {constraint} while loading"
            expected, next_step = (
                "the right REFERENCES",
                f"GRANT REFERENCES ON {schema}.{table} to the user of the sink",
            )
            raise DestinationError(Problem(f"sync {task.sync}", found, expected, next_step)) from None


def _is_the_same(connection: Connection[Any], target: Name, name: Name) -> bool:
    """Whether nothing but the names would change."""
    theirs, ours = _oid(connection, target), _oid(connection, name)
    if not _first(connection, _OURS, theirs) or _first(connection, _ATTACHED, theirs):
        return False
    signs = [[said for _, said in connection.execute(_INDEXES, {"t": oid})] for oid in (theirs, ours)]
    return signs[0] == signs[1] and _first(connection, _PICTURE, theirs) == _first(connection, _PICTURE, ours)


def _index_names(connection: Connection[Any], target: Name, name: Name) -> dict[str, str]:
    theirs, ours = (connection.execute(_INDEXES, {"t": _oid(connection, each)}).fetchall() for each in (target, name))
    pairs = zip(ours, theirs, strict=False)  # of an object with other indexes only the words of a reason would differ
    return {our: their for (our, said), (their, says) in pairs if said == says}


def _oid(connection: Connection[Any], name: Name) -> int:
    row = connection.execute("SELECT %s::regclass::oid", (name.sql.as_string(None),)).fetchone()
    return int(row[0]) if row else 0


def _first(connection: Connection[Any], query: sql.SQL, oid: int) -> Any:
    row = connection.execute(query, {"t": oid}).fetchone()
    return row[0] if row else None


def _count(connection: Connection[Any], name: Name) -> int:
    row = connection.execute(sql.SQL("SELECT pg_catalog.count(*) FROM {}").format(name.sql)).fetchone()
    return int(row[0]) if row else 0
