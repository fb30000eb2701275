"""The SQL of one sync where its rows come from a staging table; MySQL says its statements in its own way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    def target(self) -> str:
        """The object in a statement that changes it."""
        return f"{self.name.sql} AS t"

    @property
    def stage_table(self) -> str:
        """The staging table as SQL."""
        return self.dialect.quoted(STAGE)

    def apply(self, connection: Any, step: Step, changes: Changes, rows: range | None = None) -> int:
        return int(self.dialect.run(connection, self.statement(step, self.within(rows))).rowcount)

    def absent(self, connection: Any, changes: Changes, rows: range | None = None) -> list[int]:
        wanted = conjunction(["NOT s.deleted", self.within(rows), f"NOT {self.there(EVERY_ROW)}"])
        return self.places(connection, wanted)

    def undeleted(self, connection: Any, changes: Changes) -> list[int]:
        return self.places(connection, f"s.deleted AND {self.there(self.not_yet_deleted)}")

    def undone(self, connection: Any, changes: Changes) -> list[int]:
        as_written = conjunction([self.holds(name) for name in self.links])
        return self.places(connection, f"NOT s.deleted AND NOT {self.there(as_written)}")

    def drop(self, connection: Any, changes: Changes, rows: Collection[int]) -> None:
        if rows:
            places = ", ".join(map(str, rows))
            self.dialect.run(connection, f"DELETE FROM {self.stage_table} WHERE place IN ({places})")

    def places(self, connection: Any, condition: str) -> list[int]:
        """Those of the staged rows for which it holds."""
        query = f"SELECT s.place FROM {self.stage_table} s WHERE {condition}"
        return [place for (place,) in self.dialect.run(connection, query).fetchall()]

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
        names, soft = self.task.schema.names, soft_delete(self.task)
        values = {name: self.value(name) for name in names} | ({soft: "NULL"} if soft else {})
        order = ", ".join(str(names.index(key) + 1) for key in self.task.key)
        wanted = conjunction(["NOT s.deleted", rows, *self.exact])
        return (
            f"INSERT INTO {self.target} ({self.listed(values)}) SELECT {', '.join(values.values())} "
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
        return self.change({name: self.value(name) for name in self.others}, ["NOT s.deleted", rows])

    def delete(self, rows: str) -> str:
        """Remove rows, or mark them."""
        soft = soft_delete(self.task)
        if soft is None:
            return self.removal(["s.deleted", rows])
        return self.change({soft: self.now}, ["s.deleted", rows, self.not_yet_deleted])

    def change(self, values: Mapping[str, str], wanted: Sequence[str]) -> str:
        """Gives columns these values in the rows of those staged ones for which the conditions hold."""
        assigned = ", ".join(f"{self.dialect.quoted(name)} = {value}" for name, value in values.items())
        where = conjunction([*wanted, *self.match])
        return f"UPDATE {self.target} SET {assigned} FROM {self.stage_table} s WHERE {where}"

    def removal(self, wanted: Sequence[str]) -> str:
        """Removes these rows."""
        where = conjunction([*wanted, *self.match])
        return f"DELETE FROM {self.target} USING {self.stage_table} s WHERE {where}"

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
