"""Our two tables: the fence of each sync, and one row for each batch that was applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES, LOST_RECORD, OTHER_RUN
from dbt_reverse_etl.sinks.sql.postgres.catalog import Name, exists

CREATION_LOCK = 0x6462745F72657472  # any number that nobody else uses


@dataclass(frozen=True)
class Record:
    """The record of one sync in a schema; `own_fence` is the run's."""

    schema: str
    sync_id: str
    own_fence: int

    @property
    def fences(self) -> Name:
        """The table of fences."""
        return Name(self.schema, FENCES)

    @property
    def _claims(self) -> Name:
        return Name(self.schema, CLAIMS)

    def exists(self, connection: Connection[Any]) -> bool:
        """Whether both tables are there."""
        return exists(connection, self.fences) and exists(connection, self._claims)

    def create(self, connection: Connection[Any]) -> None:
        """Make the tables if they are not there; only that needs the right to create."""
        if self.exists(connection):
            return
        connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
        for name, columns in (
            (self.fences, "sync_id text PRIMARY KEY, fence bigint NOT NULL"),
            (
                self._claims,
                "sync_id text, claim text, part text, closed boolean NOT NULL, left_out bigint NOT NULL, "
                "PRIMARY KEY (sync_id, claim, part)",
            ),
        ):
            text = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
            connection.execute(text.format(name.sql, sql.SQL(columns)))

    def fence(self, connection: Connection[Any], *, lock: bool = False) -> int | None:
        """The fence in the table; with its row locked until the transaction ends, against a newer run and not against our own tasks.

        The lock is shared by every task of one run: that it is free for us says nothing about a transaction of our own."""
        query = sql.SQL("SELECT fence FROM {} WHERE sync_id OPERATOR(pg_catalog.=) %s {}")
        locked = sql.SQL("FOR SHARE" if lock else "")
        row = connection.execute(query.format(self.fences.sql, locked), (self.sync_id,)).fetchone()
        return None if row is None else int(row[0])

    def take(self, connection: Connection[Any], *, first: bool) -> str | None:
        """Hold the fence until the transaction ends; why that cannot be, or None. `first`: there may be no fence yet.

        Tasks of one run share it: only the first of them writes the row, for a writer would wait for the batches of the others,
        and a shared lock that is raised to a writer's deadlocks with a second one."""
        stored = self.fence(connection)
        if stored != self.own_fence:
            query = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, %s))"
            connection.execute(query, (self.sync_id, CREATION_LOCK))
            stored = self.fence(connection)
        if stored == self.own_fence:
            return self.lost(connection)
        if stored is None and not first:
            return LOST_RECORD
        if stored is not None and stored > self.own_fence:
            return OTHER_RUN
        return None if self._raise_fence(connection) else OTHER_RUN

    def _raise_fence(self, connection: Connection[Any]) -> bool:
        """Wait for the batches of older runs, then write our fence; False if a newer run holds it."""
        query = sql.SQL(
            "INSERT INTO {} AS f VALUES (%s, %s) ON CONFLICT (sync_id) DO UPDATE SET fence = excluded.fence "
            "WHERE f.fence OPERATOR(pg_catalog.<=) excluded.fence"
        )
        return connection.execute(query.format(self.fences.sql), (self.sync_id, self.own_fence)).rowcount == 1

    def lost(self, connection: Connection[Any]) -> str | None:
        """Lock the fence; why it is no longer ours, or None."""
        stored = self.fence(connection, lock=True)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    def add(self, connection: Connection[Any], claim: str, parts: Sequence[Part]) -> None:
        """Record one batch, or the swap of a full load."""
        query = sql.SQL("INSERT INTO {} VALUES {}").format(
            self._claims.sql, sql.SQL(", ").join([sql.SQL("(%s, %s, %s, %s, %s)")] * len(parts))
        )
        values = [(self.sync_id, claim, part.text, part.closed, part.left_out) for part in parts]
        connection.execute(query, [value for row in values for value in row])

    def has(self, connection: Connection[Any], claim: str, part: Part) -> bool:
        """Whether a batch was recorded. Waits for the transaction that wrote the record, if that has not ended yet."""
        query = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, false, 0) ON CONFLICT DO NOTHING").format(self._claims.sql)
        # A SELECT would not see a record whose COMMIT is still on its way; the primary key makes a second writer wait for it.
        connection.execute("SAVEPOINT asking")
        is_there = connection.execute(query, (self.sync_id, claim, part.text)).rowcount == 0
        connection.execute("ROLLBACK TO asking")
        return is_there

    def parts(self, connection: Connection[Any], claim: str | None = None) -> list[tuple[str, Part]]:
        """Each record with its claim, of all claims or of one."""
        query = sql.SQL(
            "SELECT claim, part, closed, left_out FROM {} WHERE sync_id OPERATOR(pg_catalog.=) %s "
            "AND (%s::text IS NULL OR claim OPERATOR(pg_catalog.=) %s)"
        )
        rows = connection.execute(query.format(self._claims.sql), (self.sync_id, claim, claim)).fetchall()
        return [(name, Part(text, closed, left_out)) for name, text, closed, left_out in rows]

    def forget(self, connection: Connection[Any], but: Collection[str] = ()) -> None:
        """Remove the records of all other claims."""
        query = sql.SQL(
            "DELETE FROM {} WHERE sync_id OPERATOR(pg_catalog.=) %s AND NOT claim OPERATOR(pg_catalog.=) ANY (%s)"
        )
        connection.execute(query.format(self._claims.sql), (self.sync_id, list(but)))
