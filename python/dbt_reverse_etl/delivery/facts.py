"""The facts that the ledger keeps of a sync, one row each, append-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar

from dbt_reverse_etl.delivery.counts import Counts, PerOperation

BUCKETS = 65536
NOT_WELL = -1  # see `RunFinished.allowed`
PARKED = "parked"
LONGEST_WAIT = timedelta(hours=6)  # of a row that was refused


class _Told:
    """Part of a fact. A field that a later version added is an error: stated again by this one, it would be lost."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True)
class Range(_Told):
    """The keys in buckets [lo, hi) are at (snapshot, spec)."""

    lo: int
    hi: int
    snapshot: int
    spec: str


_DOUBT = "-doubt-"


@dataclass(frozen=True)
class Claim(_Told):
    """Rows of the buckets [lo, hi), projected at (snapshot, spec), may be under way to the destination.

    Attributes:
        id: unique over all runs; a transactional sink keeps its record under it.
        everything: every key in it is in doubt: a run lost its lease, or a resync was asked for.
        ordered: it was asked for, so that its rows are sent again whatever is said of doubt.
    """

    id: str
    lo: int
    hi: int
    snapshot: int
    spec: str
    everything: bool = False
    ordered: bool = False

    def doubt(self, number: int, lo: int, hi: int) -> Claim:
        """What a run that lost its lease leaves of it."""
        return replace(self, id=f"{self.id}{_DOUBT}{number}", lo=lo, hi=hi, everything=True)

    @property
    def is_doubt(self) -> bool:
        return _DOUBT in self.id


@dataclass(frozen=True)
class Undelivered(_Told):
    """A planned row that was not delivered, with its own old position; never a payload.

    Attributes:
        before_hash: hash of what the destination is known to hold; None: nothing of ours.
        after_hash: hash of what was to be delivered; None: a delete.
        maybe: the destination may hold the row because of us, beyond `before_hash`.
        doubt: what the destination holds is not known; the row is sent whatever its net change is.
        changed: snapshot of the key's last change; 0: the changelog does not know the key.
        outcome: of the last run: an `Outcome` value, or `parked`.
        attempts: runs in a row in which the destination refused this value or had no such row, or that left it unknown.
        next_attempt_at: UTC; earlier runs skip the row. None: the next run sends it (unless it is parked).
        asked_by: id of the resync or repair that asked for the row; part of `_event_id`, or a destination that remembers ids would ignore it.
        in_flight: of a row in doubt: see `may_have_arrived`. Older versions kept `doubt` alone, and parked each such row.
    """

    key: str
    bucket: int
    before_hash: int | None
    after_hash: int | None
    maybe: bool
    doubt: bool
    changed: int
    operation: str
    outcome: str
    reason: str
    attempts: int
    first_failed_at: datetime
    next_attempt_at: datetime | None
    asked_by: str | None = None
    in_flight: bool = True

    @property
    def may_have_arrived(self) -> bool:
        """Nobody knows how a request with it ended. False of a row that only a resync or a change of the sync put in doubt."""
        return self.doubt and self.in_flight

    def waits(self, now: datetime, *, park_doubt: bool = False) -> bool:
        """Not to be sent yet, as long as its value stays the same; one that may have arrived and is parked, whatever its value is.

        A wait beyond the longest one was written by a clock that was ahead.
        """
        parked = self.outcome == PARKED or (park_doubt and self.may_have_arrived)
        return parked or (self.next_attempt_at is not None and now < self.next_attempt_at <= now + LONGEST_WAIT)


@dataclass(frozen=True)
class Abandoned(_Told):
    """An earlier run that never finished: it may still be asleep somewhere, and record a doubt at its head."""

    fence: int
    head: int
    lease_until: datetime


@dataclass(frozen=True)
class _OfRun(_Told):
    """What each fact begins with."""

    sync_id: str
    fence: int


@dataclass(frozen=True)
class RunStarted(_OfRun):
    """Claims the sync for one run, and restates all that was folded before it; atomic on (sync, fence).

    Attributes:
        override: the word that let this push pass its guards.
        exposure: unique id of the exposure from which `sync_id` is made; empty in facts of an older version.
        mark: names this ledger's record of the sync; the changelog keeps it, too, so that another ledger is noticed.
        known_from: fence of the run before which nobody knows what was delivered; 0: all of it is known.
        leftovers: why rows that were delivered before `known_from` may remain at the destination; empty: none do.
        captures: uuid of the capture that made a snapshot, for those that positions and claims refer to, as far as it is known.
        restates: positions are as they were read; False: an operation moved them.
        found: keys of undelivered rows that were not read, but found by a reconcile.
    """

    run_id: str
    at: datetime
    head: int
    spec: str
    specs: Mapping[str, str]
    positions: tuple[Range, ...]
    claims: tuple[Claim, ...]
    undelivered: tuple[Undelivered, ...]
    lease_until: datetime
    owner: str
    sync: str = ""
    changelog: str = ""
    invocation_id: str = ""
    abandoned: tuple[Abandoned, ...] = ()
    override: str = ""
    exposure: str = ""
    mark: str = ""
    known_from: int = 0
    leftovers: str = ""
    captures: Mapping[int, str] = field(default_factory=dict)
    restates: bool = True
    found: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimsSettled(_OfRun):
    """What a new run found out about the claims of its predecessors, before it planned.

    Attributes:
        delivered: ranges that the sink's own record proves delivered.
        closes: claims that are over, wherever they lie.
        claims: claims that became known late, and the claim of the first wave.
        specs: JSON of the claims' specs.
    """

    seq: int
    at: datetime
    delivered: tuple[Range, ...]
    closes: tuple[str, ...]
    claims: tuple[Claim, ...]
    specs: Mapping[str, str]


@dataclass(frozen=True)
class WaveAcknowledged(_OfRun):
    """The buckets [lo, hi) are at (snapshot, spec), but for the undelivered rows.

    Attributes:
        undelivered: replaces every undelivered row of the range.
        closes: claims that end within the range: those that the run had read or written.
        claims: the claim of the next wave.
        replaced: it was a full load: the object holds no other row.
    """

    seq: int
    at: datetime
    lo: int
    hi: int
    snapshot: int
    spec: str
    counts: Counts
    undelivered: tuple[Undelivered, ...]
    closes: tuple[str, ...]
    claims: tuple[Claim, ...]
    lease_until: datetime
    replaced: bool = False


@dataclass(frozen=True)
class Heartbeat(_OfRun):
    """The run is alive."""

    at: datetime
    lease_until: datetime


@dataclass(frozen=True)
class DoubtRecorded(_OfRun):
    """Left by a run that lost its lease, at the newest fence: a request of its may have landed after a newer one.

    Attributes:
        specs: JSON of the claims' specs, which the newest run may never have heard of.
    """

    at: datetime
    closes: tuple[str, ...]
    claims: tuple[Claim, ...]
    specs: Mapping[str, str]


@dataclass(frozen=True)
class RunFinished(_OfRun):
    """The run ended by itself.

    Attributes:
        planned: rows counted apart from the stream that was sent.
        releases: claims of this run under which surely nothing was applied.
        allowed: undelivered rows with which the sync was well then; None: any number; `NOT_WELL`: not even with none.
    """

    seq: int
    at: datetime
    status: str
    counts: Counts
    planned: PerOperation
    message: str = ""
    releases: tuple[str, ...] = ()
    allowed: int | None = 0


Fact = RunStarted | ClaimsSettled | WaveAcknowledged | Heartbeat | DoubtRecorded | RunFinished
