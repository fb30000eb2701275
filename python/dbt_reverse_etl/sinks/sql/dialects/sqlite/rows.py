"""Writes the rows of a batch straight into a table of SQLite."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialect import Dialect, Fault
from dbt_reverse_etl.sinks.sql.rows import Step, Writer
from dbt_reverse_etl.sinks.sql.table import Name, Table


@dataclass(frozen=True)
class _Rows:
    """Some rows of a batch: their places, ascending, and the values of each parameter."""

    places: Sequence[int]
    columns: Sequence[list[Any]]

    def within(self, rows: range | None) -> _Rows:
        """Those in these places, or all."""
        if rows is None:
            return self
        first, stop = (bisect_left(self.places, end) for end in (rows.start, rows.stop))
        return _Rows(self.places[first:stop], [column[first:stop] for column in self.columns])

    def at(self, indices: Sequence[int]) -> _Rows:
        """Those at these ascending indices."""
        if len(indices) == len(self.places):
            return self
        return _Rows([self.places[at] for at in indices], [[column[at] for at in indices] for column in self.columns])


class SqliteWriter(Writer):
    """Writes all rows at once; only if one is refused, halves."""

    one_statement = False

    def __init__(self, dialect: Dialect, task: SinkTask, name: Name, table: Table) -> None:
        super().__init__(dialect, task, name, table)
        names, key = list(task.schema.names), task.key
        self._key_at = [names.index(field) for field in key]
        by_key = self._matches(range(len(key)))
        write = self._update(names) if task.mode is Mode.UPDATE_ONLY else self._insert(names)
        self._sql = {Step.WRITE: write, Step.DELETE: f"DELETE FROM {name.sql} WHERE {by_key}"}
        self._exists = f"SELECT 1 FROM {name.sql} WHERE {by_key}"

    def _insert(self, names: Sequence[str]) -> str:
        quote, key = self.dialect.quoted, self.task.key
        fields, marks = ", ".join(map(quote, names)), ", ".join("?" * len(names))
        assigned = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in self.others)
        action = "NOTHING" if self.task.mode is Mode.INSERT_ONLY else f"UPDATE SET {assigned}"
        # OR ABORT: a table's own `ON CONFLICT REPLACE` would silently remove other rows.
        # Without it, a second index of another collation would take 'ADA' for 'Ada'.
        # AS t: in a table called `excluded`, that name would be the row that is there, not the new one.
        target = ", ".join(self.dialect.indexed(name) if name in self.text_keys else quote(name) for name in key)
        into = f"INSERT OR ABORT INTO {self.name.sql} AS t ({fields}) VALUES ({marks})"
        return f"{into} ON CONFLICT ({target}) DO {action}"

    def _update(self, names: Sequence[str]) -> str:
        assigned = ", ".join(f"{self.dialect.quoted(name)} = ?{names.index(name) + 1}" for name in self.others)
        return f"UPDATE OR ABORT {self.name.sql} SET {assigned} WHERE {self._matches(self._key_at)}"

    def _matches(self, places: Sequence[int]) -> str:
        # COLLATE BINARY: on a NOCASE column, 'A' would also hit the row 'a'.
        pairs = zip(self.task.key, places, strict=True)
        return " AND ".join(f"{self.dialect.quoted(name)} = ?{at + 1} COLLATE BINARY" for name, at in pairs)

    def packed(self, changes: Changes) -> Changes:
        fields = [column.to_pylist() for column in changes.fields.values()]
        rows = _Rows(range(len(changes.deleted)), fields)
        keys = replace(rows, columns=[fields[at] for at in self._key_at])
        if not changes.deletes:
            return replace(changes, data={Step.WRITE: rows.at(changes.kept), Step.DELETE: keys.at(())})
        deleted = changes.deleted.to_pylist()
        writes = rows.at([row for row in changes.kept if not deleted[row]])
        deletes = keys.at([row for row in changes.kept if deleted[row]])
        return replace(changes, data={Step.WRITE: writes, Step.DELETE: deletes})

    def apply(self, connection: Any, step: Step, changes: Changes, rows: range | None = None) -> int:
        part = changes.data[step].within(rows)
        if not part.places:
            return 0
        changed: int = connection.executemany(self._sql[step], zip(*part.columns, strict=True)).rowcount
        return changed

    def is_ineffective(self, changes: Changes, rows: range, changed: int) -> bool:
        return self.strict and changed < len(changes.data[Step.WRITE].within(rows).places)

    def waits(self, fault: Fault) -> bool:
        """For a value that another row has, or a row that it points at."""
        return str(fault[-1]).startswith(("UNIQUE", "FOREIGN KEY"))

    def absent(self, connection: Any, changes: Changes, rows: range | None = None) -> Set[int]:
        part = changes.data[Step.WRITE].within(rows)
        return {*part.places} - self._there(connection, self._exists, part, self._key_at)

    def undeleted(self, connection: Any, changes: Changes) -> Set[int]:
        return self._there(connection, self._exists, changes.data[Step.DELETE], range(len(self.task.key)))

    def undone(self, connection: Any, changes: Changes) -> Set[int]:
        names, part = self.task.schema.names, changes.data[Step.WRITE]
        as_written = " AND ".join([self._exists, *(f"{self.dialect.quoted(name)} IS ?" for name in self.links)])
        at = [*self._key_at, *map(names.index, self.links)]
        return {*part.places} - self._there(connection, as_written, part, at)

    def _there(self, connection: Any, query: str, part: _Rows, at: Sequence[int]) -> Set[int]:
        """Places of the rows for which a query about these columns finds one."""
        rows = zip(part.places, zip(*(part.columns[one] for one in at), strict=True), strict=True)
        return {place for place, values in rows if connection.execute(query, values).fetchone()}

    def drop(self, connection: Any, changes: Changes, rows: Collection[int]) -> None:
        out = frozenset(rows)
        for step, part in changes.data.items():
            changes.data[step] = part.at([at for at, place in enumerate(part.places) if place not in out])
