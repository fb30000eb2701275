"""The table into which a full load goes, and how it takes the place of the object.

It is made `LIKE` the object, so that each batch finds the rows that a constraint refuses. Where it is the object in all that
SHOW CREATE TABLE tells, one RENAME puts it in place; else its rows are put into the object in one transaction.

A RENAME is no part of a transaction. So the record says before it that it is coming, and the old table, which stands there only after
it, says that it came. Only then the record is closed, and the old table dropped.
"""
# ruff: noqa: S608  (identifiers are quoted, and there are no values)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.database import beside
from dbt_reverse_etl.sinks.sql.mysql.catalog import Name, Table, engine_of, quoted, read_table
from dbt_reverse_etl.sinks.sql.mysql.session import number, run
from dbt_reverse_etl.sinks.sql.mysql.settings import LONGEST_NAME

OTHER_ROWS = "the object took or kept other rows than those that were loaded (a trigger?)"
LOST_ROWS = "the loaded rows are not all there"
DENIED = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})
REFERENCED = frozenset({ER.ROW_IS_REFERENCED, 1451, 3730})

# Triggers are shown only to those who may make them.
_SEES_TRIGGERS = """SELECT 1 FROM (
    SELECT GRANTEE, '%%' AS place FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'TRIGGER'
    UNION ALL SELECT GRANTEE, TABLE_SCHEMA FROM information_schema.SCHEMA_PRIVILEGES WHERE PRIVILEGE_TYPE = 'TRIGGER'
    UNION ALL SELECT GRANTEE, REPLACE(TABLE_SCHEMA, '_', '\\\\_') FROM information_schema.TABLE_PRIVILEGES
        WHERE PRIVILEGE_TYPE = 'TRIGGER' AND TABLE_NAME = %s
) rights WHERE %s LIKE place
    AND GRANTEE = CONCAT('''', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')"""
_TRIGGERS = (
    "SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s LIMIT 1"
)
_POINTING = """SELECT 1 FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s LIMIT 1"""
_FOREIGN_KEYS = """SELECT CONSTRAINT_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, COLUMN_NAME, REFERENCED_COLUMN_NAME
FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND REFERENCED_TABLE_NAME IS NOT NULL
    AND NOT (REFERENCED_TABLE_SCHEMA = TABLE_SCHEMA AND REFERENCED_TABLE_NAME = TABLE_NAME)
ORDER BY CONSTRAINT_NAME, ORDINAL_POSITION"""


@dataclass(frozen=True)
class FullLoad:
    """A load that is under way: the object, the table beside it, and that which a RENAME leaves behind."""

    target: Name
    name: Name
    old: Name

    def begin(self, connection: Connection[Any], task: SinkTask) -> None:
        """Make the table. Raises DestinationError where we cannot check what the object checks."""
        run(connection, f"CREATE TABLE {self.name.sql} LIKE {self.target.sql}")
        foreign_keys: dict[str, list[Any]] = {}
        for key, *rest in run(connection, _FOREIGN_KEYS, (self.target.database, self.target.name)).fetchall():
            foreign_keys.setdefault(key, []).append(rest)
        for key, parts in foreign_keys.items():
            parent = Name(parts[0][0], parts[0][1])
            columns, pointed = (", ".join(quoted(part[at]) for part in parts) for at in (2, 3))
            ddl = f"ALTER TABLE {self.name.sql} ADD FOREIGN KEY ({columns}) REFERENCES {parent.sql} ({pointed})"
            try:
                run(connection, ddl)
            except pymysql.Error as error:
                if number(error) not in DENIED:
                    raise
                found, wanted = f"no right to check the foreign key {key} while loading", "ALTER and REFERENCES"
                next_step = f"grant ALTER on {self.name} and REFERENCES on {parent} to the user of the sink"
                raise DestinationError(Problem(f"sync {task.sync}", found, wanted, next_step)) from None

    def can_rename(self, connection: Connection[Any]) -> bool:
        """Whether nothing of the object would be lost, as far as the server tells us."""
        where = (self.target.database, self.target.name)
        table = read_table(connection, self.target)
        if table is None or any(column.counts for column in table.columns.values()):
            return False
        if run(connection, _SEES_TRIGGERS, (self.target.name, self.target.database)).fetchone() is None:
            return False
        if run(connection, _TRIGGERS, where).fetchone() or run(connection, _POINTING, where).fetchone():
            return False
        bodies = [_body(connection, each) for each in (self.target, self.name)]
        return bodies[0] == bodies[1]

    def has(self, connection: Connection[Any], rows: int) -> bool:
        """Whether so many rows are loaded."""
        return _count(connection, self.name) == rows

    def rename(self, connection: Connection[Any]) -> None:
        """The swap, at once and whole."""
        run(connection, f"RENAME TABLE {self.target.sql} TO {self.old.sql}, {self.name.sql} TO {self.target.sql}")

    def drop_old(self, connection: Connection[Any]) -> bool:
        """Drop what the RENAME left; False: a foreign key that we could not see points at it, and the RENAME was taken back."""
        try:
            run(connection, f"DROP TABLE {self.old.sql}")
        except pymysql.Error as error:
            if number(error) not in REFERENCED:
                raise
        else:
            return True
        run(connection, f"RENAME TABLE {self.target.sql} TO {self.name.sql}, {self.old.sql} TO {self.target.sql}")
        run(connection, f"DROP TABLE {self.name.sql}")
        return False

    def drop(self, connection: Connection[Any]) -> None:
        """Remove the table. Waits for a RENAME that is under way, and after it none can come."""
        if engine_of(connection, self.name) is not None:
            run(connection, f"DROP TABLE IF EXISTS {self.name.sql}")

    def was_renamed(self, connection: Connection[Any]) -> bool:
        """Whether the old table is still there."""
        return engine_of(connection, self.old) is not None

    def replace(self, connection: Connection[Any], task: SinkTask, table: Table, rows: int) -> str | None:
        """Make the object equal to the loaded rows, in the transaction that is open; why that cannot be, or None.

        No row that stays is deleted: a foreign key of a table that we cannot see might delete with it."""
        same = " AND ".join(f"t.{quoted(key)} = l.{quoted(key)}" for key in task.key)
        joined, key = f"{self.name.sql} AS l {{}} JOIN {self.target.sql} AS t ON {same}", quoted(task.key[0])
        names = [quoted(name) for name in task.schema.names]
        mapped = {name.lower() for name in task.schema.names}
        unmapped = [column for lower, column in table.columns.items() if lower not in mapped and not column.generated]
        assigned = [f"t.{name} = l.{name}" for name in names]
        assigned += [f"t.{quoted(column.name)} = DEFAULT" for column in unmapped if not column.counts]
        run(connection, f"DELETE t FROM {joined.format('RIGHT')} WHERE l.{key} IS NULL")
        run(connection, f"UPDATE {joined.format('INNER')} SET {', '.join(assigned)}")
        cells = ", ".join(f"l.{name}" for name in names)
        insert = f"INSERT INTO {self.target.sql} ({', '.join(names)}) SELECT {cells}"
        run(connection, f"{insert} FROM {joined.format('LEFT')} WHERE t.{key} IS NULL")
        return None if _count(connection, self.target) == rows else OTHER_ROWS


def full_load_of(target: Name) -> FullLoad:
    """The names of our tables beside an object."""
    load, old = (Name(target.database, beside(target.name, use, LONGEST_NAME)) for use in ("load", "old"))
    return FullLoad(target, load, old)


def _body(connection: Connection[Any], name: Name) -> str:
    """What makes a table, without its name."""
    row = run(connection, f"SHOW CREATE TABLE {name.sql}").fetchone()
    return str(row[1]).partition("\n")[2] if row else ""


def _count(connection: Connection[Any], name: Name) -> int:
    row = run(connection, f"SELECT COUNT(*) FROM {name.sql}").fetchone()
    return int(row[0]) if row else 0
