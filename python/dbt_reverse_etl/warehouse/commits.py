"""Who wrote into the ledger meanwhile, from the history of its table: of a commit of our own, nobody needs the whole state of the table."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from dbt_reverse_etl.base.times import utc
from dbt_reverse_etl.delivery.facts import Fact, RunStarted

_SAID = re.compile(r"fence ([0-9]+) of (\S+)(?:, begun by (\S+))?")
_AT_ONCE = 16  # commits; each is a small file
# They move rows from file to file, and change none.
_UPKEEP = frozenset({"OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})


def said(sync_id: str, fence: int, *facts: Fact) -> str:
    """What a commit of the ledger says of itself, as Delta's `userMetadata`."""
    begun = [fact.run_id for fact in facts if isinstance(fact, RunStarted)]
    return f"fence {fence} of {sync_id}" + (f", begun by {begun[0]}" if begun else "")


@dataclass
class Commits:
    """Those of a ledger since `follow` was called; safe for several threads."""

    spark: SparkSession
    relation: str
    _newest: int | None = None  # version of the table up to which the commits are known
    _wrote: set[tuple[str, int]] = field(default_factory=set)
    _begun: dict[str, dict[int, str]] = field(default_factory=dict)
    _is_told: bool = True  # every commit says who made it
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """From here on. Whoever reads the ledger after this call knows all commits before it."""
        with self._lock, suppress(PySparkException):  # who may not describe it asks the rows
            if self._newest is None:
                self._newest = max((row.version for row in self._history(1)), default=None)

    def is_unchanged(self, started: RunStarted) -> bool:
        """This run has begun, and nobody has written at the fence before. False also where that is not known."""
        with self._lock:
            is_known = self._read_on()
            is_ours = self._begun.get(started.sync_id, {}).get(started.fence) == started.run_id
            return is_known and is_ours and (started.sync_id, started.fence - 1) not in self._wrote

    def fence(self, sync_id: str) -> int | None:
        """The newest one of a sync; None: not known."""
        with self._lock:
            return max(self._begun.get(sync_id, ()), default=None) if self._read_on() else None

    def restored_at(self, since: datetime) -> datetime | None:
        """See `DeltaLedger.restored_at`."""
        rows = self._back_to(lambda oldest: utc(oldest.timestamp) < since)
        found = [utc(row.timestamp) for row in rows if row.operation == "RESTORE"]
        return max((at for at in found if at >= since), default=None)

    def _read_on(self) -> bool:
        """Read what was committed since the last look; False: not every commit is known."""
        if self._newest is None or not self._is_told:
            return False
        known = self._newest
        rows = self._back_to(lambda oldest: oldest.version <= known + 1)
        later = [row for row in rows if row.version > known]
        for row in later:
            self._note(row)
        newest = max((row.version for row in rows), default=-1)
        # A commit whose file is gone is left out; and a table that was made anew begins with 0.
        self._is_told = self._is_told and len(later) == newest - self._newest
        self._newest = newest
        return self._is_told

    def _note(self, row: Row) -> None:
        match = _SAID.fullmatch(row.userMetadata or "")
        if match is None:
            # An older version, an operation of dbt, a RESTORE: only the rows tell.
            self._is_told = self._is_told and row.operation in _UPKEEP
            return
        fence, sync_id, run_id = int(match[1]), match[2], match[3]
        if run_id:
            self._begun.setdefault(sync_id, {})[fence] = run_id
        else:
            self._wrote.add((sync_id, fence))

    def _back_to(self, is_there: Callable[[Row], bool]) -> list[Row]:
        """The newest commits, at least to the one that is there, or all: there may be very many."""
        limit = _AT_ONCE
        rows = self._history(limit)
        while len(rows) >= limit and not is_there(rows[-1]):
            limit *= 8
            rows = self._history(limit)
        return rows

    def _history(self, limit: int) -> list[Row]:
        return self.spark.sql(f"describe history {self.relation} limit {limit}").collect()
