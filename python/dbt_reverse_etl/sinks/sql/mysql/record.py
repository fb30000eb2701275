"""Our two tables: the fence of each sync, and one row for each batch that was applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES, LOST_RECORD, OTHER_RUN
from dbt_reverse_etl.sinks.sql.mysql.catalog import Name, engine_of
from dbt_reverse_etl.sinks.sql.mysql.session import run

ENGINE = "InnoDB"
_ID = "varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
COLUMNS = {
    FENCES: f"sync_id {_ID} PRIMARY KEY, fence bigint NOT NULL",
    CLAIMS: f"sync_id {_ID}, claim {_ID}, part {_ID}, closed boolean NOT NULL, left_out bigint NOT NULL, "
    "PRIMARY KEY (sync_id, claim, part)",
}
SWAP = "swap"  # the part of a claim that is the RENAME of a full load
_FENCE = "SELECT fence FROM {} WHERE sync_id = %s"
_LOCKED_FENCE = f"{_FENCE} LOCK IN SHARE MODE"


@dataclass(frozen=True)
class Record:
    """The record of one sync in a database; `own_fence` is the run's."""

    database: str
    sync_id: str
    own_fence: int

    @property
    def fences(self) -> Name:
        """The table of fences."""
        return Name(self.database, FENCES)

    @property
    def _claims(self) -> Name:
        return Name(self.database, CLAIMS)

    def exists(self, connection: Connection[Any]) -> bool:
        """Whether both tables are there."""
        return None not in (engine_of(connection, self.fences), engine_of(connection, self._claims))

    def create(self, connection: Connection[Any]) -> None:
        """Make the tables if they are not there; only that needs the right to create. Commits."""
        for name in (self.fences, self._claims):
            if engine_of(connection, name) is None:
                run(connection, f"CREATE TABLE IF NOT EXISTS {name.sql} ({COLUMNS[name.name]}) ENGINE={ENGINE}")

    def unsafe(self, connection: Connection[Any]) -> Name | None:
        """One of our tables that has no transactions."""
        names = (self.fences, self._claims)
        return next((name for name in names if engine_of(connection, name) not in (ENGINE, None)), None)

    def fence(self, connection: Connection[Any], *, lock: bool = False) -> int | None:
        """The fence in the table; with its row locked until the transaction ends, against a newer run and not against our own tasks."""
        row = self._run(connection, _LOCKED_FENCE if lock else _FENCE, self.fences).fetchone()
        return None if row is None else int(row[0])

    def take(self, connection: Connection[Any], *, first: bool) -> str | None:
        """Hold the fence until the transaction ends; why that cannot be, or None. `first`: there may be no fence yet.

        Tasks of one run share it: a writer waits for the batches of all others, so only those write that find an older fence."""
        stored = self.fence(connection)
        if stored is None and not first:
            return LOST_RECORD
        if stored is not None and stored > self.own_fence:
            return OTHER_RUN
        if stored != self.own_fence:
            raised = "INSERT INTO {} VALUES (%s, %s) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))"
            self._run(connection, raised, self.fences, self.own_fence)
        return self.lost(connection)

    def lost(self, connection: Connection[Any]) -> str | None:
        """Lock the fence; why it is no longer ours, or None."""
        stored = self.fence(connection, lock=True)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    def add(self, connection: Connection[Any], claim: str, parts: Sequence[Part]) -> None:
        """Record one batch, or the swap of a full load."""
        rows = [(self.sync_id, claim, part.text, part.closed, part.left_out) for part in parts]
        places = ", ".join(["%s"] * len(rows))
        run(connection, f"INSERT INTO {self._claims.sql.replace('%', '%%')} VALUES {places}", rows)  # noqa: S608

    def announces_a_swap(self, connection: Connection[Any]) -> bool:
        """Whether a RENAME was to come, of which nobody has said that it came. Locks nothing."""
        query = "SELECT 1 FROM {} WHERE sync_id = %s AND part = %s AND NOT closed"
        return self._run(connection, query, self._claims, SWAP).fetchone() is not None

    def swapped(self, connection: Connection[Any], *, has_come: bool) -> None:
        """What became of a swap that was announced; of one that has not come nothing is kept."""
        query = (
            "UPDATE {} SET closed = true WHERE sync_id = %s AND part = %s"
            if has_come
            else "DELETE FROM {} WHERE sync_id = %s AND part = %s"
        )
        self._run(connection, query, self._claims, SWAP)

    def has(self, connection: Connection[Any], claim: str, part: Part) -> bool:
        """Whether a batch was recorded. Waits for the transaction that wrote the record, if that has not ended yet."""
        # Without the lock, a record whose COMMIT is still on its way would not be seen.
        query = "SELECT 1 FROM {} WHERE sync_id = %s AND claim = %s AND part = %s FOR UPDATE"
        return self._run(connection, query, self._claims, claim, part.text).fetchone() is not None

    def parts(self, connection: Connection[Any], claim: str | None = None) -> list[tuple[str, Part]]:
        """Each record with its claim, of all claims or of one."""
        query = "SELECT claim, part, closed, left_out FROM {} WHERE sync_id = %s AND claim = COALESCE(%s, claim)"
        rows = self._run(connection, query, self._claims, claim).fetchall()
        return [(name, Part(text, bool(closed), left_out)) for name, text, closed, left_out in rows]

    def forget(self, connection: Connection[Any], but: Collection[str] = ()) -> None:
        """Remove the records of all other claims."""
        of_sync = "DELETE FROM {} WHERE sync_id = %s"
        if but:
            self._run(connection, f"{of_sync} AND claim NOT IN %s", self._claims, list(but))
        else:
            self._run(connection, of_sync, self._claims)

    def _run(self, connection: Connection[Any], query: str, name: Name, *values: Any) -> Cursor:
        """A statement about this sync in one of our tables."""
        return run(connection, query.format(name.sql.replace("%", "%%")), (self.sync_id, *values))
