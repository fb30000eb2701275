"""The SQL of one sync where its rows come from a staging table; MySQL says its statements in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.rows import Step, Writer
from dbt_reverse_etl.sinks.sql.table import OURS, soft_delete

STAGE = f"{OURS}stage"
EVERY_ROW = "true"


class StagedWriter(Writer):
    """Writes from the staging table `s`: `place` in the batch, `deleted`, then the fields c0, c1, ...; the object is `t`.

    Class attributes:
        sorts: rows are inserted in the order of their key.
    """

    sorts = False

    @property
    def now(self) -> str:
        """This moment, for `soft_delete`."""
        return "now()"

    @property
    def stage_table(self) -> str:
        """The staging table as SQL."""
        return self.dialect.quoted(STAGE)

    def apply(self, connection: Any, step: Step, changes: Changes, rows: range | None = None) -> int:
        """One statement."""
        return self.changed(self.dialect.run(connection, self.statement(step, self.within(rows))))

    def absent(self, connection: Any, changes: Changes, rows: range | None = None) -> list[int]:
        """One query."""
        wanted = conjunction(["NOT s.deleted", self.within(rows), f"NOT {self.there(EVERY_ROW)}"])
        return self.places(connection, wanted)

    def undeleted(self, connection: Any, changes: Changes) -> list[int]:
        """One query."""
        return self.places(connection, f"s.deleted AND {self.there(self.not_yet_deleted)}")

    def undone(self, connection: Any, changes: Changes) -> list[int]:
        """One query."""
        as_written = conjunction([self.holds(name) for name in self.links])
        return self.places(connection, f"NOT s.deleted AND NOT {self.there(as_written)}")

    def places(self, connection: Any, condition: str) -> list[int]:
        """Those of the staged rows for which it holds."""
        query = f"SELECT s.place FROM {self.stage_table} s WHERE {condition}"
        return [place for (place,) in self.dialect.run(connection, query).fetchall()]

    def changed(self, cursor: Any) -> int:
        """How many rows a statement changed."""
        return int(cursor.rowcount)

    def within(self, rows: range | None) -> str:
        """A condition for staged rows in these places."""
        if rows is None:
            return EVERY_ROW
        return f"s.place BETWEEN {rows.start} AND {rows.stop - 1}"

    def statement(self, step: Step, rows: str) -> str:
        """Carries out a step for the staged rows for which a condition holds."""
        if step is Step.DELETE:
            return self.delete(rows)
        return self.update(rows) if self.task.mode is Mode.UPDATE_ONLY else self.upsert(rows)

    def insert(self, rows: str) -> str:
        """New rows."""
        names, soft = [*self.task.schema.names], soft_delete(self.task)
        values = [self.value(name) for name in names]
        if soft:
            names, values = [*names, soft], [*values, "NULL"]
        order = ", ".join(str(names.index(key) + 1) for key in self.task.key)
        wanted = conjunction(["NOT s.deleted", rows, *self.exact])
        return (
            f"INSERT INTO {self.name.sql} AS t ({self.listed(names)}) SELECT {', '.join(values)} "
            f"FROM {self.stage_table} s WHERE {wanted}{f' ORDER BY {order}' if self.sorts else ''}"
        )

    def upsert(self, rows: str) -> str:
        """New rows, and those that are there, found by the key alone."""
        target = f"{self.insert(rows)} ON CONFLICT ({self.listed(self.task.key)}) DO"
        if self.task.mode is Mode.INSERT_ONLY:
            return f"{target} NOTHING"
        soft = soft_delete(self.task)
        names = map(self.dialect.quoted, [*self.others, *([soft] if soft else [])])
        assigned = ", ".join(f"{name} = excluded.{name}" for name in names)
        return f"{target} UPDATE SET {assigned} WHERE {conjunction(self.same_row)}"

    def update(self, rows: str) -> str:
        """Rows that are there."""
        assigned = ", ".join(f"{self.dialect.quoted(name)} = {self.value(name)}" for name in self.others)
        wanted = conjunction(["NOT s.deleted", rows, *self.match])
        return f"UPDATE {self.name.sql} AS t SET {assigned} FROM {self.stage_table} s WHERE {wanted}"

    def delete(self, rows: str) -> str:
        """Remove rows, or mark them."""
        wanted, soft = conjunction(["s.deleted", rows, *self.match]), soft_delete(self.task)
        if soft is None:
            return f"DELETE FROM {self.name.sql} AS t USING {self.stage_table} s WHERE {wanted}"
        assigned = f"{self.dialect.quoted(soft)} = {self.now}"
        return (
            f"UPDATE {self.name.sql} AS t SET {assigned} FROM {self.stage_table} s "
            f"WHERE {wanted} AND {self.not_yet_deleted}"
        )

    @property
    def match(self) -> Sequence[str]:
        """Conditions under which a row of the object has the very key of a staged one."""
        raise NotImplementedError

    @property
    def exact(self) -> Sequence[str]:
        """Conditions under which the object shows the key of a staged row as it is."""
        return ()

    @property
    def same_row(self) -> Sequence[str]:
        """Conditions under which the row that ON CONFLICT found has the very key of the new one."""
        return ()

    def there(self, condition: str) -> str:
        """Whether the object has the row of a staged one."""
        return f"EXISTS (SELECT 1 FROM {self.name.sql} AS t WHERE {conjunction([*self.match, condition])})"

    @property
    def not_yet_deleted(self) -> str:
        """Whether the row of the object is not marked."""
        soft = soft_delete(self.task)
        return f"t.{self.dialect.quoted(soft)} IS NULL" if soft else EVERY_ROW

    def holds(self, name: str) -> str:
        """Whether the row of the object has the staged value, which may be NULL."""
        raise NotImplementedError

    @property
    def others(self) -> Sequence[str]:
        """What a write changes of a row that is there: the fields beside the key, if there are any."""
        return [name for name in self.task.schema.names if name not in self.task.key] or self.task.key

    def cell(self, name: str) -> str:
        """A staged value."""
        return f"s.c{self.task.schema.names.index(name)}"

    def value(self, name: str) -> str:
        """A staged value in the type of its column."""
        return self.cell(name)

    def listed(self, names: Iterable[str]) -> str:
        """Names as SQL."""
        return ", ".join(map(self.dialect.quoted, names))


def conjunction(conditions: Sequence[str]) -> str:
    """All of these."""
    return " AND ".join(one for one in conditions if one != EVERY_ROW) or EVERY_ROW
