"""What the report shows: plain data, without row values unless the user asked for those of a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.health import Health, Left


@dataclass(frozen=True)
class Run:
    """One run of a sync; of one that did not end, `finished_at` is None and nothing is counted."""

    number: int
    started_at: datetime
    finished_at: datetime | None
    status: str
    snapshot: int
    message: str
    counts: Counts

    @property
    def seconds(self) -> float | None:
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


@dataclass(frozen=True)
class Sync:
    """One sync, with its newest runs, oldest first.

    Attributes:
        destination: `name.object`.
        position, head: snapshots.
        reason, left, no_match: see `Standing`.
        lag: snapshots between the two.
        behind_since: when the oldest change was captured that was not delivered.
    """

    name: str
    changelog: str
    destination: str
    type: str
    mode: str
    health: Health
    position: int
    head: int
    lag: int
    behind_since: datetime | None = None
    last_success_at: datetime | None = None
    runs: Sequence[Run] = ()
    reason: str = ""
    left: Sequence[Left] = ()
    no_match: int = 0

    @property
    def undelivered(self) -> int:
        return sum(one.rows for one in self.left)

    @property
    def last_run(self) -> Run | None:
        return self.runs[-1] if self.runs else None


def worst_first(syncs: Iterable[Sync]) -> list[Sync]:
    """Whoever has no time reads the first ones."""
    order = list(Health)
    return sorted(syncs, key=lambda sync: (-order.index(sync.health), -sync.undelivered, sync.name))


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of a changelog, with the rows of the model after it."""

    id: int
    captured_at: datetime
    kind: str
    label: str | None
    inserts: int
    updates: int
    deletes: int
    live_rows: int


@dataclass(frozen=True)
class Changelog:
    """One changelog, with its newest snapshots, oldest first.

    Attributes:
        upstream: names of what it is built from, the farthest level first; the last level is what the model itself names.
    """

    name: str
    key: Sequence[str]
    upstream: Sequence[Sequence[str]] = ()
    snapshots: Sequence[Snapshot] = ()

    @property
    def newest(self) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None


@dataclass(frozen=True)
class Delivery:
    """What one wave of a run did with a key: its position moved to `snapshot`, or it was left undelivered.

    Attributes:
        undelivered: then why.
        outcome: then the ledger's word.
    """

    sync: str
    run: int
    at: datetime
    snapshot: int
    undelivered: str | None = None
    outcome: str | None = None


@dataclass(frozen=True)
class KeyChange:
    """One change of one key.

    Attributes:
        columns: names of the columns whose value changed; empty for an insert and a delete.
        before_hash, after_hash: of the row, as text: many readers of JSON round so large a number; None where there is no row.
        before, after: the row as JSON, only where row values were asked for.
    """

    snapshot: int
    captured_at: datetime
    change: str
    columns: Sequence[str] = ()
    before_hash: str | None = None
    after_hash: str | None = None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class KeyHistory:
    """The whole history of one key: what the model had, oldest first, and what was delivered of it."""

    changelog: str
    key: str
    syncs: Sequence[str] = ()
    changes: Sequence[KeyChange] = ()
    deliveries: Sequence[Delivery] = ()

    def reached(self, sync: str, snapshot: int) -> Delivery | None:
        """How a change fared: the first delivery of it or of a later one, else the newest attempt, else None."""
        tried = [one for one in self.deliveries if one.sync == sync and one.snapshot >= snapshot]
        return next((one for one in tried if one.undelivered is None), tried[-1] if tried else None)


@dataclass(frozen=True)
class Report:
    """Everything that the page shows.

    Attributes:
        syncs: in any order; the page has the worst first.
        pictures: SVG text by the name of a model.
        shows_values: row values of `keys` were asked for.
    """

    project: str
    target: str
    made_at: datetime
    version: str
    syncs: Sequence[Sync] = ()
    changelogs: Sequence[Changelog] = ()
    keys: Sequence[KeyHistory] = ()
    pictures: Mapping[str, str] = field(default_factory=dict)
    shows_values: bool = False
