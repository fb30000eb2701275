"""Our two tables in the file: the fence of each sync, and a row or more for each batch that was applied."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES, LOST_RECORD, OTHER_RUN

_FENCES = (
    f"CREATE TABLE IF NOT EXISTS {FENCES} (sync_id TEXT PRIMARY KEY NOT NULL, fence INTEGER NOT NULL) WITHOUT ROWID"
)
_CLAIMS = (
    f"CREATE TABLE {CLAIMS} (sync_id TEXT NOT NULL, claim TEXT NOT NULL, part TEXT NOT NULL, closed INTEGER NOT NULL, "
    "left_out INTEGER NOT NULL, PRIMARY KEY (sync_id, claim, part)) WITHOUT ROWID"
)


@dataclass(frozen=True)
class Record:
    """The record of one sync; `own_fence` is the run's. Every method is called in a transaction."""

    sync_id: str
    own_fence: int

    def create(self, connection: sqlite3.Connection) -> None:
        """Make the tables if they are not there; those of the versions before kept one row for each claim."""
        connection.execute(_FENCES)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({CLAIMS})")]
        if "part" in columns:
            return
        before = connection.execute(f"SELECT * FROM {CLAIMS}").fetchall() if columns else []  # noqa: S608
        connection.execute(f"DROP TABLE IF EXISTS {CLAIMS}")
        connection.execute(_CLAIMS)
        rows = [(sync_id, claim, "", closed, left_out) for sync_id, claim, closed, left_out in before]
        connection.executemany(f"INSERT INTO {CLAIMS} VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608

    def fence(self, connection: sqlite3.Connection) -> int | None:
        """The fence in the table."""
        query = f"SELECT fence FROM {FENCES} WHERE sync_id = ?"  # noqa: S608
        row = connection.execute(query, (self.sync_id,)).fetchone()
        return None if row is None else int(row[0])

    def take(self, connection: sqlite3.Connection, *, first: bool) -> str | None:
        """Write our fence; why that cannot be, or None. `first`: there may be no fence yet."""
        stored = self.fence(connection)
        if stored is None and not first:
            return LOST_RECORD
        if stored is not None and stored > self.own_fence:
            return OTHER_RUN
        raised = f"INSERT INTO {FENCES} VALUES (?, ?) ON CONFLICT (sync_id) DO UPDATE SET fence = excluded.fence"  # noqa: S608
        connection.execute(raised, (self.sync_id, self.own_fence))
        return None

    def lost(self, connection: sqlite3.Connection) -> str | None:
        """Why the fence is no longer ours, or None."""
        stored = self.fence(connection)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    def add(self, connection: sqlite3.Connection, claim: str, parts: Sequence[Part]) -> None:
        """Record one batch."""
        rows = [(self.sync_id, claim, part.text, int(part.closed), part.left_out) for part in parts]
        connection.executemany(f"INSERT INTO {CLAIMS} VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608

    def has(self, connection: sqlite3.Connection, claim: str, part: Part) -> bool:
        """Whether a batch was recorded."""
        query = f"SELECT 1 FROM {CLAIMS} WHERE sync_id = ? AND claim = ? AND part = ?"  # noqa: S608
        return connection.execute(query, (self.sync_id, claim, part.text)).fetchone() is not None

    def parts(self, connection: sqlite3.Connection) -> list[tuple[str, Part]]:
        """Each record with its claim."""
        query = f"SELECT claim, part, closed, left_out FROM {CLAIMS} WHERE sync_id = ?"  # noqa: S608
        rows = connection.execute(query, (self.sync_id,))
        return [(claim, Part(text, bool(closed), left_out)) for claim, text, closed, left_out in rows]

    def forget(self, connection: sqlite3.Connection, but: Sequence[str] = ()) -> None:
        """Remove the records of all other claims."""
        places = ", ".join("?" * len(but))
        query = f"DELETE FROM {CLAIMS} WHERE sync_id = ? AND claim NOT IN ({places})"  # noqa: S608
        connection.execute(query, (self.sync_id, *but))
