"""Our two tables: the fence of each sync, and a row or more for each batch that was applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dbt_reverse_etl.sinks.refusals import LOST_RECORD, OTHER_RUN
from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.table import OURS, Name

FENCES, CLAIMS = f"{OURS}fences", f"{OURS}claims"


@dataclass(frozen=True)
class Record:
    """The record of one sync in a schema; `own_fence` is the run's. But for `create`, every method needs a transaction."""

    dialect: Dialect
    schema: str | None
    sync_id: str
    own_fence: int

    @property
    def fences(self) -> Name:
        """The table of fences."""
        return self.dialect.name_of(self.schema, FENCES)

    @property
    def claims(self) -> Name:
        """The table of batches."""
        return self.dialect.name_of(self.schema, CLAIMS)

    def exists(self, connection: Any) -> bool:
        """Whether both tables are there."""
        return all(self.dialect.exists(connection, name) for name in (self.fences, self.claims))

    def create(self, connection: Any) -> None:
        """Make the tables that are not there; only that needs the right to create."""
        of_id, end = self.dialect.id_type, self.dialect.table_suffix
        columns = {
            self.fences: f"sync_id {of_id} PRIMARY KEY, fence bigint NOT NULL",
            self.claims: f"sync_id {of_id}, claim {of_id}, part {of_id}, closed boolean NOT NULL, "
            "left_out bigint NOT NULL, PRIMARY KEY (sync_id, claim, part)",
        }
        missing = [name for name in columns if not self.dialect.exists(connection, name)]
        if missing:
            self.dialect.serialize(connection, "")
        for name in missing:
            self.dialect.run(connection, f"CREATE TABLE IF NOT EXISTS {name.sql} ({columns[name]}){end}")

    def fence(self, connection: Any, *, lock: bool = False) -> int | None:
        """The fence in the table; with its row locked until the transaction ends, against a newer run and not against our own tasks.

        The lock is shared by every task of one run: that it is free for us says nothing about a transaction of our own."""
        end = self.dialect.lock_fence if lock else ""
        row = self.run(connection, f"SELECT fence FROM {{fences}} WHERE sync_id {{eq}} ?{end}", self.sync_id).fetchone()
        return None if row is None else int(row[0])

    def take(self, connection: Any, *, first: bool) -> str | None:
        """Hold the fence until the transaction ends; why that cannot be, or None. `first`: there may be no fence yet.

        Tasks of one run share it: only the first of them writes the row, for a writer waits for the batches of all others,
        and a shared lock that is raised to a writer's deadlocks with a second one."""
        stored = self.fence(connection)
        if stored != self.own_fence:
            self.dialect.serialize(connection, self.sync_id)
            stored = self.fence(connection)
        if stored is None and not first:
            return LOST_RECORD
        if stored is not None and stored > self.own_fence:
            return OTHER_RUN
        if stored != self.own_fence:
            self.run(connection, self.dialect.raise_fence, self.sync_id, self.own_fence)
        return self.lost(connection)

    def lost(self, connection: Any) -> str | None:
        """Lock the fence; why it is no longer ours, or None."""
        if self.dialect.hold_fence:
            self.run(connection, self.dialect.hold_fence, self.sync_id)
        stored = self.fence(connection, lock=True)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    def add(self, connection: Any, claim: str, parts: Sequence[Part]) -> None:
        """Record one batch."""
        rows = [(self.sync_id, claim, part.text, part.closed, part.left_out) for part in parts]
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
        self.run(connection, f"INSERT INTO {{claims}} VALUES {places}", *(value for row in rows for value in row))

    def has(self, connection: Any, claim: str, part: Part) -> bool:
        """Whether a batch was recorded; to be asked while the fence is held. Waits for the transaction that wrote the record."""
        values = (self.sync_id, claim, part.text)
        if not self.dialect.hides_commits:
            query = "SELECT 1 FROM {claims} WHERE sync_id {eq} ? AND claim {eq} ? AND part {eq} ?"
            return self.run(connection, query + self.dialect.lock_record, *values).fetchone() is not None
        # The primary key makes a second writer wait for the first.
        query = "INSERT INTO {claims} VALUES (?, ?, ?, false, 0) ON CONFLICT DO NOTHING"
        self.dialect.run(connection, "SAVEPOINT asking")
        is_there = bool(self.run(connection, query, *values).rowcount == 0)
        self.dialect.run(connection, "ROLLBACK TO asking")
        return is_there

    def parts(self, connection: Any, claim: str) -> list[Part]:
        """Each record of a claim."""
        query = "SELECT part, closed, left_out FROM {claims} WHERE sync_id {eq} ? AND claim {eq} ?"
        rows = self.run(connection, query, self.sync_id, claim).fetchall()
        return [Part(text, bool(closed), left_out) for text, closed, left_out in rows]

    def forget(self, connection: Any, but: Collection[str] = ()) -> None:
        """Remove the records of all other claims."""
        kept = " AND NOT claim {eq} ?" * len(but)
        self.run(connection, f"DELETE FROM {{claims}} WHERE sync_id {{eq}} ?{kept}", self.sync_id, *but)

    def run(self, connection: Any, query: str, *values: Any) -> Any:
        """A statement in which `?` is a value, `{fences}` and `{claims}` are the tables, `{eq}` and `{lt}` compare."""
        mark, percent = self.dialect.mark, "%%" if self.dialect.mark == "%s" and values else "%"
        parts = {"eq": self.dialect.operator("="), "lt": self.dialect.operator("<")}
        parts |= {"fences": self.fences.sql.replace("%", percent), "claims": self.claims.sql.replace("%", percent)}
        return self.dialect.run(connection, query.replace("?", mark).format(**parts), values)
