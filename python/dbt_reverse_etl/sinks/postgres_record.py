"""Our two tables: the fence of each sync, and one row for each batch that was applied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from dbt_reverse_etl.sinks.base import Batch
from dbt_reverse_etl.sinks.database import CLAIMS, FENCES, LOST_RECORD, OTHER_RUN
from dbt_reverse_etl.sinks.postgres_catalog import Name, exists

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
        """The fence in the table; with its row locked until the transaction ends, against a newer run and not against our own tasks."""
        query = sql.SQL("SELECT fence FROM {} WHERE sync_id = %s {}")
        locked = sql.SQL("FOR SHARE" if lock else "")
        row = connection.execute(query.format(self.fences.sql, locked), (self.sync_id,)).fetchone()
        return None if row is None else int(row[0])

    def raise_fence(self, connection: Connection[Any]) -> bool:
        """Take the fence; False if a newer run holds it."""
        query = sql.SQL(
            "INSERT INTO {} AS f VALUES (%s, %s) ON CONFLICT (sync_id) DO UPDATE SET fence = excluded.fence "
            "WHERE f.fence <= excluded.fence"
        )
        return connection.execute(query.format(self.fences.sql), (self.sync_id, self.own_fence)).rowcount == 1

    def lost(self, connection: Connection[Any]) -> str | None:
        """Lock the fence; why it is no longer ours, or None."""
        stored = self.fence(connection, lock=True)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    def add(self, connection: Connection[Any], batch: Batch, part: str, refused: int) -> None:
        """Record one batch."""
        values = (self.sync_id, batch.claim, part, batch.last, batch.left_out + refused)
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s)").format(self._claims.sql), values)

    def has(self, connection: Connection[Any], claim: str, part: str) -> bool:
        """Whether a batch was recorded."""
        query = sql.SQL("SELECT FROM {} WHERE sync_id = %s AND claim = %s AND part = %s").format(self._claims.sql)
        return connection.execute(query, (self.sync_id, claim, part)).fetchone() is not None

    def claims(self, connection: Connection[Any]) -> dict[str, bool]:
        """claim -> whether it was closed with nothing left out."""
        query = sql.SQL("SELECT claim, bool_or(closed) AND sum(left_out) = 0 FROM {} WHERE sync_id = %s GROUP BY claim")
        return dict(connection.execute(query.format(self._claims.sql), (self.sync_id,)).fetchall())

    def forget(self, connection: Connection[Any], claims: Iterable[str]) -> None:
        """Remove the rows of claims."""
        query = sql.SQL("DELETE FROM {} WHERE sync_id = %s AND claim = ANY (%s)").format(self._claims.sql)
        connection.execute(query, (self.sync_id, list(claims)))
