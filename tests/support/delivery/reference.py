"""What `pending` means, in plain Python on dict images: the production form is SQL, and is tested against this one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.waves import Histogram

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
WAVE_SCHEMA = pa.schema(
    [
        ("_key", pa.string()),
        ("_bucket", pa.int32()),
        ("_operation", pa.string()),
        ("_event_id", pa.string()),
        ("_before_hash", pa.int64()),
        ("_after_hash", pa.int64()),
        ("_maybe", pa.bool_()),
        ("_doubt", pa.bool_()),
        ("_changed", pa.int64()),
        ("_asked_by", pa.string()),
        *SCHEMA,
    ]
)
Image = Mapping[str, int]
BIN = BUCKETS // 8


@dataclass(frozen=True)
class Planned:
    """One pending row: what to send, and what is known about the destination's copy before it."""

    operation: str
    before_hash: int | None
    maybe: bool
    doubt: bool
    asked_by: str | None = None


def decide(
    before_hash: int | None,
    after_hash: int | None,
    claims: Sequence[tuple[int | None, bool, bool]] = (),
    undelivered: Undelivered | None = None,
) -> Planned | None:
    """Must this key be sent, and as what?

    Hashes are of the projected row, the destination's field names included; None: the row is not in the projection.

    Args:
        before_hash: of the image at the key's position, through the spec of that position.
        after_hash: of the head image, through the current spec.
        claims: for each open claim over the key's bucket: the hash of the image at the claim's snapshot through the
            claim's spec, and the claim's `everything` and `ordered`: what was asked for is no request that may have arrived.
        undelivered: the key's undelivered row; it takes the place of the position.
    """
    doubt = maybe = False
    if undelivered is not None:
        before_hash, doubt, maybe = undelivered.before_hash, undelivered.doubt, undelivered.maybe
    for claimed, everything, ordered in claims:
        if everything or claimed != before_hash:
            doubt, maybe = True, maybe or (claimed is not None and not ordered)
    if before_hash == after_hash and not doubt:
        return None
    if after_hash is not None:
        return Planned("insert" if before_hash is None else "update", before_hash, maybe, doubt)
    # Nothing of ours can be there: the row, if any, is somebody else's.
    return Planned("delete", before_hash, maybe, doubt) if maybe or before_hash is not None else None


def asked_by(over: Sequence[Claim], undelivered: Undelivered | None) -> str | None:
    """Who asked last for a row to be sent again: of the open claims over its bucket, newest first, or of its undelivered row."""
    asked = [claim.id for claim in over if claim.ordered]
    return asked[0] if asked else undelivered.asked_by if undelivered else None


@dataclass(frozen=True)
class Spec:
    """A filter (multiples of `hide` are not in the sync) and a mapping (how much of the value the destination sees)."""

    hide: int | None = None
    divide: int = 1

    @property
    def id(self) -> str:
        return f"hide {self.hide}, divide {self.divide}"

    def project(self, value: int | None) -> int | None:
        return None if value is None or (self.hide and value % self.hide == 0) else value // self.divide


def hash_of(projected: int | None) -> int | None:
    return None if projected is None else projected * 31 + 7


class Changelog:
    """Head images by snapshot id; those below `pruned` are gone."""

    def __init__(self) -> None:
        self.images: list[dict[str, int]] = [{}]
        self.pruned = 0

    @property
    def head(self) -> int:
        return len(self.images) - 1

    def capture(self, image: Image) -> None:
        self.images.append(dict(image))

    def prune(self, oldest: int) -> None:
        self.pruned = max(self.pruned, min(oldest, self.head))

    def value(self, snapshot: int, key: str) -> int | None:
        return None if snapshot < self.pruned else self.images[snapshot].get(key)

    def changed(self, key: str, head: int) -> int:
        """The snapshot of the key's last change."""
        for snapshot in range(head, self.pruned, -1):
            if self.images[snapshot].get(key) != self.images[snapshot - 1].get(key):
                return snapshot
        return self.pruned


class PrunedError(AssertionError):
    """What an undelivered row needs was pruned, as the SQL would say."""


class DictSource:
    """The pending rows of one sync, evaluated once."""

    bins = 8

    def __init__(self, changelog: Changelog, state: State, head: int, spec: Spec, specs: Mapping[str, Spec]) -> None:
        self._changelog, self._state, self._head, self._spec, self._specs = changelog, state, head, spec, specs
        self.rows = [row for key in self._keys() if (row := self._row(key)) is not None]

    def planned(self) -> Histogram:
        width = BUCKETS // self.bins
        by_bin: list[list[str]] = [[] for _ in range(self.bins)]
        for row in self.rows:
            by_bin[row["_bucket"] // width].append(row["_operation"])
        return Histogram(tuple(PerOperation.of(words) for words in by_bin))

    def planned_in(self, bucket: int) -> Histogram:
        words = [row["_operation"] for row in self.rows if row["_bucket"] == bucket]
        return Histogram.of_bucket(bucket, PerOperation.of(words))

    def listed(self) -> pa.Table:
        return self.wave(0, BUCKETS).filter(
            pa.array([row["_key"] in self._state.undelivered for row in self.rows], pa.bool_())
        )

    def wave(self, lo: int, hi: int) -> pa.Table:
        return pa.Table.from_pylist([row for row in self.rows if lo <= row["_bucket"] < hi], WAVE_SCHEMA)

    def _keys(self) -> list[str]:
        return sorted({key for image in self._changelog.images for key in image})

    def before(self, key: str) -> int | None:
        """The before-image, through the stored spec of the key's position."""
        place = next(place for place in self._state.positions if place.lo <= bucket(key) < place.hi)
        return self.projected(key, place.snapshot, place.spec)

    def projected(self, key: str, snapshot: int, spec: str) -> int | None:
        return hash_of(self._specs[spec].project(self._changelog.value(snapshot, key)))

    def _changed(self, key: str) -> int:
        """The snapshot of the key's newest row among those that are read: a listed row's own, and all since the oldest place."""
        listed, places = self._state.undelivered.get(key), (*self._state.positions, *self._state.claims)
        read = listed.changed if listed and listed.changed else min(place.snapshot for place in places)
        return max(read, self._changelog.changed(key, self._head))

    def _row(self, key: str) -> dict[str, object] | None:
        over = [claim for claim in self._state.claims if claim.lo <= bucket(key) < claim.hi]
        claims = [(self.projected(key, one.snapshot, one.spec), one.everything, one.ordered) for one in over]
        undelivered = self._state.undelivered.get(key)
        # The SQL reads the snapshot of its last change.
        if undelivered is not None and 0 < undelivered.changed < self._changelog.pruned:
            raise PrunedError(key)
        value = self._spec.project(self._changelog.value(self._head, key))
        planned = decide(self.before(key), hash_of(value), claims, undelivered)
        if planned is None:
            return None
        changed, asked = self._changed(key), asked_by(over, undelivered)
        return {
            "_key": key,
            "_bucket": bucket(key),
            "_operation": planned.operation,
            "_event_id": hashlib.sha256(f"{key} {changed} {self._spec.id} {asked}".encode()).hexdigest(),
            "_before_hash": planned.before_hash,
            "_after_hash": hash_of(value),
            "_maybe": planned.maybe,
            "_doubt": planned.doubt,
            "_changed": changed,
            "_asked_by": asked,
            "key": key,
            "value": value,
        }


def bucket(key: str) -> int:
    """Neighbouring keys (`k0`, `k1`, ...) lie far apart; every eighth key lies in the same bucket."""
    return int(key[1:]) * 7 % 8 * BIN + 17
