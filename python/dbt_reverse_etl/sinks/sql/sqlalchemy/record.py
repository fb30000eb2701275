"""Our two tables: the fence of each sync, and one row for each batch that was applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from dbt_reverse_etl.sinks.sql.claim_record import Part
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES, LOST_RECORD, OTHER_RUN

_ID = sa.String(128)


@dataclass(frozen=True)
class Record:
    """The record of one sync in a schema; `own_fence` is the run's."""

    schema: str | None
    sync_id: str
    own_fence: int

    @property
    def fences(self) -> sa.Table:
        """The table of fences."""
        id_, fence = sa.Column("sync_id", _ID, primary_key=True), sa.Column("fence", sa.BigInteger, nullable=False)
        return sa.Table(FENCES, sa.MetaData(), id_, fence, schema=self.schema)

    @property
    def claims_table(self) -> sa.Table:
        """The table of batches."""
        ids = [sa.Column(name, _ID, primary_key=True) for name in ("sync_id", "claim", "part")]
        closed = sa.Column("closed", sa.Boolean, nullable=False)
        left_out = sa.Column("left_out", sa.BigInteger, nullable=False)
        return sa.Table(CLAIMS, sa.MetaData(), *ids, closed, left_out, schema=self.schema)

    def exists(self, connection: Connection) -> bool:
        """Whether both tables are there."""
        inspector = sa.inspect(connection)
        return all(inspector.has_table(name, self.schema) for name in (FENCES, CLAIMS))

    def create(self, connection: Connection) -> None:
        """Make the tables if they are not there, in transactions of their own; only that needs the right to create."""
        for table in (self.fences, self.claims_table):
            try:
                table.create(connection, checkfirst=True)
                connection.commit()
            except DBAPIError:  # another run may have made it at the same moment
                connection.rollback()
                if not sa.inspect(connection).has_table(table.name, self.schema):
                    raise
                connection.rollback()

    def fence(self, connection: Connection) -> int | None:
        """The fence in the table."""
        fences = self.fences
        found = connection.execute(sa.select(fences.c.fence).where(fences.c.sync_id == self.sync_id)).scalar()
        return None if found is None else int(found)

    def take(self, connection: Connection, *, first: bool) -> str | None:
        """Hold the fence until the transaction ends; why that cannot be, or None. `first`: there may be no fence yet."""
        stored = self._locked(connection)
        if stored is None and not first:
            return LOST_RECORD
        if stored is not None and stored > self.own_fence:
            return OTHER_RUN
        fences = self.fences
        if stored is None:
            connection.execute(sa.insert(fences).values(sync_id=self.sync_id, fence=self.own_fence))
        elif stored < self.own_fence:
            of_sync = sa.update(fences).where(fences.c.sync_id == self.sync_id)
            connection.execute(of_sync.values(fence=self.own_fence))
        return None

    def lost(self, connection: Connection) -> str | None:
        """Lock the fence; why it is no longer ours, or None.

        Where rows are locked, this waits for each transaction that holds it: a batch of an older run, or one whose end nobody saw."""
        stored = self._locked(connection)
        if stored is None:
            return LOST_RECORD
        return None if stored == self.own_fence else OTHER_RUN

    @property
    def locking(self) -> sa.Update:
        """Locks the fence. An UPDATE does so everywhere; of the key, for in DuckDB two of another column would not collide."""
        fences = self.fences
        return sa.update(fences).where(fences.c.sync_id == self.sync_id).values(sync_id=fences.c.sync_id)

    def _locked(self, connection: Connection) -> int | None:
        connection.execute(self.locking)
        return self.fence(connection)

    def add(self, connection: Connection, claim: str, parts: Sequence[Part]) -> None:
        """Record one batch."""
        ids = {"sync_id": self.sync_id, "claim": claim}
        rows: list[dict[str, Any]] = [
            {**ids, "part": part.text, "closed": part.closed, "left_out": part.left_out} for part in parts
        ]
        connection.execute(sa.insert(self.claims_table), rows)

    def has(self, connection: Connection, claim: str, part: Part) -> bool:
        """Whether a batch was recorded; to be asked while the fence is locked."""
        claims = self.claims_table
        one = (claims.c.sync_id == self.sync_id) & (claims.c.claim == claim) & (claims.c.part == part.text)
        return connection.execute(sa.select(claims.c.part).where(one)).first() is not None

    def parts(self, connection: Connection) -> list[tuple[str, Part]]:
        """Each record with its claim."""
        table = self.claims_table
        columns = (table.c.claim, table.c.part, table.c.closed, table.c.left_out)
        rows: list[Any] = list(connection.execute(sa.select(*columns).where(table.c.sync_id == self.sync_id)))
        return [(claim, Part(text, bool(closed), int(left_out))) for claim, text, closed, left_out in rows]

    def forget(self, connection: Connection, but: Collection[str] = ()) -> None:
        """Remove the records of all other claims."""
        table = self.claims_table
        of_sync = sa.delete(table).where(table.c.sync_id == self.sync_id)
        connection.execute(of_sync.where(table.c.claim.not_in([*but])) if but else of_sync)
