"""The rights of a MySQL user. EXPLAIN asks for those of the statement that it explains, whichever role gives them, and carries nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import number, run
from dbt_reverse_etl.sinks.sql.rights import DELETE, INSERT, SELECT, UPDATE, Lack, Need, no_table

_DENIED = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})
_ASKED = {
    SELECT: "EXPLAIN SELECT 1 FROM {table} WHERE FALSE",
    INSERT: "EXPLAIN INSERT INTO {table} () VALUES ()",
    UPDATE: "EXPLAIN UPDATE {table} SET {column} = {column} WHERE FALSE",
    DELETE: "EXPLAIN DELETE FROM {table} WHERE FALSE",
}
_NAME = r"(\*|`(?:[^`]|``)+`)"
_GRANT = re.compile(rf"GRANT (?P<rights>.+?) ON {_NAME}\.{_NAME} TO ")
# Making a table; CREATE VIEW and the like are rights of their own.
_CREATE, _TEMPORARY = r"(?:^|, )CREATE(?:,|$)", "CREATE TEMPORARY TABLES"


def lacks(connection: Connection[Any], needs: Iterable[Need], database: str, user: str) -> list[Lack]:
    """What a user lacks for a push, each with the grant.

    Args:
        database: that of the staging table.
    """
    to = "'" + user.replace("'", "''") + "'@..."
    grants = [str(row[0]) for row in run(connection, "SHOW GRANTS").fetchall()]  # some hold the hash of a password
    found = [lack for need in needs for lack in _of_table(connection, need, grants, to)]
    if not may(grants, _TEMPORARY, database):
        grant = f"GRANT {_TEMPORARY} ON {quoted(database)}.* TO {to}"
        found.append((f"no right {_TEMPORARY} on {database}", grant))
    return found


def _of_table(connection: Connection[Any], need: Need, grants: Sequence[str], to: str) -> Iterator[Lack]:
    name = need.table
    places = {"table": name.sql, "column": quoted(need.column)}
    answers = {right: _answer(connection, _ASKED[right].format(**places)) for right in need.rights}
    absent = ", ".join(right for right, answer in answers.items() if answer in _DENIED)
    if absent:
        yield f"no right {absent} on {name}", f"GRANT {absent} ON {name.sql} TO {to}"
    if ER.NO_SUCH_TABLE not in answers.values():
        return
    if not need.is_made:
        yield no_table(need)
    elif not may(grants, _CREATE, name.schema or "", name.name):
        grant = f"GRANT CREATE ON {name.sql} TO {to}, or make the table"
        yield f"no table {name}, and no right CREATE on it", grant


def _answer(connection: Connection[Any], query: str) -> int:
    """The number of the error, or 0. Any that is no refusal says that the right is there."""
    try:
        run(connection, query).fetchall()
    except pymysql.Error as error:
        if not connection.open:
            raise
        return number(error)
    return 0


def may(grants: Iterable[str], right: str, database: str, table: str = "") -> bool:
    """Whether one of the lines of SHOW GRANTS gives a right on a database, or on one table of it.

    MySQL names a role and does not say there what that grants: then nobody can say no.
    """
    for line in grants:
        found = _GRANT.match(line)
        if found is None:
            if line.startswith("GRANT "):
                return True
        elif found["rights"].startswith("ALL PRIVILEGES") or re.search(right, found["rights"]):
            of_database, of_table = found[2], found[3]
            if _covers(of_database, database) and of_table in ("*", quoted(table)):
                return True
    return False


def _covers(pattern: str, database: str) -> bool:
    """The database of a grant is a pattern: `%`, `_`, and a backslash before either."""
    if pattern == "*":
        return True
    parts = re.findall(r"\\.|.", pattern[1:-1].replace("``", "`"), re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(wild.get(part, re.escape(part[-1])) for part in parts), database, re.DOTALL))
