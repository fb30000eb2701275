"""A sync's position: the state that its facts fold to.

The rules (each is proven necessary in tests/quick/delivery/test_rules.py):

1. A position is (snapshot, spec): the before-image is taken through the stored spec, the after-image through the
   current one.
2. Before a wave is sent, a claim is recorded. After a crash, keys whose projection at an open claim differs from their
   before-image are in doubt, and are sent again even if their net change is nothing.
3. A delete is sent only where the destination may hold the row because of us.
4. An acknowledgement lists every planned row that was not delivered, attempted or not.
5. Outcomes of several attempts join: `unknown` stays until `delivered`.
6. A run that lost its lease never acknowledges: it records a doubt over what it sent.
7. A transactional sink settles only the buckets of a claim of which its own record says that nothing was left out; a bucket
   of which it has no record at all is over, and what is between stays in doubt.
8. Pruning keeps what positions, open claims and unfinished runs refer to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import groupby, pairwise

from dbt_reverse_etl.delivery.counts import NO_COUNTS, Counts
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Abandoned,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Heartbeat,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.sinks.ranges import Ranges, minus, union


@dataclass(frozen=True)
class State:
    """What the facts say about a sync now.

    Attributes:
        fence: of the newest run; 0: there was none.
        positions: sorted, adjacent, covering [0, BUCKETS), equal neighbours merged.
        specs: JSON of each spec that a position or a claim refers to.
        head: snapshot that the newest run delivers.
        status, message: of the newest run; `running` until it finished.
        counts, allowed: see `RunFinished`.
        began: the oldest snapshot that the newest run reads: of its positions, claims and undelivered rows when it began; 0: none.
        mark, known_from, leftovers, captures, found: see `RunStarted`.
        only_began: id of the newest run, if only its start is known, and an operation moved no position in it; else empty.
    """

    fence: int = 0
    changelog: str = ""
    positions: tuple[Range, ...] = (Range(0, BUCKETS, 0, ""),)
    claims: tuple[Claim, ...] = ()
    undelivered: Mapping[str, Undelivered] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    head: int = 0
    began: int = 0
    started_at: datetime | None = None
    lease_until: datetime | None = None
    owner: str = ""
    finished: bool = True
    status: str = ""
    message: str = ""
    abandoned: tuple[Abandoned, ...] = ()
    counts: Counts = NO_COUNTS
    allowed: int | None = 0
    mark: str = ""
    known_from: int = 0
    leftovers: str = ""
    captures: Mapping[int, str] = field(default_factory=dict)
    only_began: str = ""
    found: tuple[str, ...] = ()

    def for_spec(self, spec: str, text: str) -> State:
        """The state that a run with this spec starts from: before the first run, position 0 has the current spec."""
        positions = (Range(0, BUCKETS, 0, spec),) if self.fence == 0 else self.positions
        used = {place.spec for place in positions} | {claim.spec for claim in self.claims} | {spec}
        known = {**self.specs, spec: text}
        return replace(self, positions=positions, specs={name: known[name] for name in sorted(used)})

    def is_at(self, snapshot: int, spec: str) -> bool:
        """All keys are there, and no claim is open."""
        return self.positions == (Range(0, BUCKETS, snapshot, spec),) and not self.claims

    @property
    def first(self) -> bool:
        """Nothing was ever acknowledged."""
        return all(place.snapshot == 0 for place in self.positions)

    @property
    def sends_all(self) -> bool:
        """The next run sends every row: nothing was acknowledged, or all that was is in doubt or asked for again."""
        asked = [(claim.lo, claim.hi) for claim in self.claims if claim.everything]
        never = [(place.lo, place.hi) for place in self.positions if not place.snapshot]
        return union([*asked, *never]) == ((0, BUCKETS),)

    @property
    def position(self) -> int:
        """The newest snapshot to which every key was delivered."""
        return min(place.snapshot for place in self.positions)

    @property
    def reached(self) -> int:
        """The newest snapshot that was delivered, or may have been."""
        places: tuple[Range | Claim, ...] = (*self.positions, *self.claims)
        return max(place.snapshot for place in places)

    def unsettled_events(self, head: int) -> list[str]:
        """Specs of claims of the newest snapshot reached, if it is not `head`: in mode `changelog` their events go before newer ones."""
        newest = self.reached
        return sorted({claim.spec for claim in self.claims if claim.snapshot == newest}) if newest != head else []

    @property
    def delivered_any(self) -> bool:
        """The destination may hold a row because of this sync."""
        listed = any(row.maybe or row.before_hash is not None for row in self.undelivered.values())
        return bool(not self.first or self.claims or listed or self.leftovers)


def normalise(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges that cover [0, BUCKETS) without overlap, and merge equal neighbours.

    Raises:
        ValueError: on a gap or an overlap.
    """
    places = sorted((place for place in ranges if place.lo < place.hi), key=lambda place: place.lo)
    ends = [(0, 0), *((place.lo, place.hi) for place in places), (BUCKETS, BUCKETS)]
    if any(left[1] != right[0] for left, right in pairwise(ends)):
        raise ValueError(f"positions must cover the buckets [0, {BUCKETS}) exactly once")
    merged: list[Range] = []
    for place in places:
        last = merged[-1] if merged else None
        if last is not None and (last.snapshot, last.spec) == (place.snapshot, place.spec):
            merged[-1] = replace(last, hi=place.hi)
        else:
            merged.append(place)
    return tuple(merged)


def move(positions: Iterable[Range], *to: Range) -> tuple[Range, ...]:
    """Put the keys of ranges to new positions, one after the other."""
    for _, places in groupby(to, key=lambda place: (place.snapshot, place.spec)):
        moved = [*places]
        taken = union((place.lo, place.hi) for place in moved)
        rest = [replace(place, lo=lo, hi=hi) for place in positions for lo, hi in _rest_of(place, taken)]
        positions = normalise([*rest, *(replace(moved[0], lo=lo, hi=hi) for lo, hi in taken)])
    return tuple(positions)


def _rest_of(place: Range, taken: Ranges) -> Ranges:
    first, last = (bisect_right(taken, (at, BUCKETS)) for at in (place.lo, place.hi))
    return minus([(place.lo, place.hi)], taken[max(0, first - 1) : last])


def close(claims: Iterable[Claim], ids: Collection[str], lo: int = 0, hi: int = BUCKETS) -> tuple[Claim, ...]:
    """Take the buckets [lo, hi) out of the claims with these ids; other claims stay as they are."""
    rest: list[Claim] = []
    for claim in claims:
        inside = claim.id in ids
        parts = (replace(claim, hi=min(claim.hi, lo)), replace(claim, lo=max(claim.lo, hi))) if inside else (claim,)
        rest.extend(part for part in parts if part.lo < part.hi)
    return tuple(rest)


def outside(undelivered: Mapping[str, Undelivered], *ranges: tuple[int, int]) -> dict[str, Undelivered]:
    """The undelivered rows that do not lie in these bucket ranges."""
    taken = union(ranges)

    def is_in(bucket: int) -> bool:
        at = bisect_right(taken, (bucket, BUCKETS)) - 1
        return at >= 0 and bucket < taken[at][1]

    return {key: row for key, row in undelivered.items() if not is_in(row.bucket)}


def apply(state: State, fact: Fact) -> State:
    """The state after one more fact of the same fence."""
    match fact:
        case RunStarted():
            return _started(fact)
        case ClaimsSettled():
            return _settled(state, fact)
        case WaveAcknowledged():
            return _acknowledged(state, fact)
        case Heartbeat():
            return replace(state, lease_until=max(state.lease_until or fact.lease_until, fact.lease_until))
        case DoubtRecorded():
            claims = close(state.claims, fact.closes) + fact.claims
            return replace(state, claims=claims, specs={**state.specs, **fact.specs})
        case RunFinished():
            return replace(
                state,
                claims=close(state.claims, fact.releases),
                finished=True,
                status=fact.status,
                message=fact.message,
                counts=fact.counts,
                allowed=fact.allowed,
                only_began="",
            )


def fold(facts: Iterable[Fact]) -> State:
    """Fold the facts of one sync, in any order.

    Only facts of the newest fence count: a late acknowledgement of an older run never acknowledges. Doubts are applied
    last, so that no acknowledgement can close one that its run had not read.
    """
    known = list(facts)
    newest = max((fact.fence for fact in known if isinstance(fact, RunStarted)), default=0)
    return reduce(apply, sorted((fact for fact in known if fact.fence == newest), key=_order), State())


def abandoned_by(state: State, now: datetime, kept_for: timedelta) -> tuple[Abandoned, ...]:
    """The runs that a new one must not forget: they never finished, and may still wake up."""
    known = state.abandoned
    if not state.finished and state.lease_until is not None:
        known += (Abandoned(state.fence, state.head, state.lease_until),)
    return tuple(run for run in known if now - run.lease_until < kept_for)


def oldest_needed(state: State) -> int:
    """The oldest snapshot whose image or changes this sync may still ask for; pruning keeps it and all that follow."""
    needed = [place.snapshot for place in state.positions]
    needed += [claim.snapshot for claim in state.claims]
    needed += [row.changed for row in state.undelivered.values() if row.changed]
    needed += [run.head for run in state.abandoned]
    if not state.finished:
        # A row that it cannot deliver may have changed before the positions that are left.
        needed += [state.head, *filter(None, [state.began])]
    return min(needed)


def _order(fact: Fact) -> tuple[int, int]:
    match fact:
        case RunStarted():
            return 0, 0
        case DoubtRecorded():
            return 2, 0
        case Heartbeat():
            return 1, 0
    return 1, fact.seq


def _started(fact: RunStarted) -> State:
    places: tuple[Range | Claim, ...] = (*fact.positions, *fact.claims)
    asked = [*(place.snapshot for place in places), *(row.changed for row in fact.undelivered)]
    restated = {name: value for name, value in vars(fact).items() if name in State.__dataclass_fields__}
    restated |= {"positions": normalise(fact.positions), "undelivered": {row.key: row for row in fact.undelivered}}
    return State(
        **restated,
        began=min(filter(None, asked), default=0),
        started_at=fact.at,
        finished=False,
        status="running",
        only_began=fact.run_id if fact.restates else "",
    )


def _settled(state: State, fact: ClaimsSettled) -> State:
    ranges = [(place.lo, place.hi) for place in fact.delivered]
    return replace(
        state,
        positions=move(state.positions, *fact.delivered),
        undelivered=outside(state.undelivered, *ranges),
        claims=close(state.claims, fact.closes) + fact.claims,
        specs={**state.specs, **fact.specs},
        only_began="",
    )


def _acknowledged(state: State, fact: WaveAcknowledged) -> State:
    left = {row.key: row for row in fact.undelivered}
    return replace(
        state,
        positions=move(state.positions, Range(fact.lo, fact.hi, fact.snapshot, fact.spec)),
        undelivered={**outside(state.undelivered, (fact.lo, fact.hi)), **left},
        claims=close(state.claims, fact.closes, fact.lo, fact.hi) + fact.claims,
        lease_until=max(state.lease_until or fact.lease_until, fact.lease_until),
        leftovers="" if fact.replaced else state.leftovers,
        only_began="",
    )
