"""Random deliveries of one sync, as facts of its ledger, and a plain account of which rows the destination may hold because of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.position import State, fold
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.spec import Spec
from tests.support.dbt.pending import FIELDS, SNAPSHOTS, Image

Key = tuple[int, str]
Places = Mapping[Key, tuple[str, int]]  # a key as text, and its bucket
BEGAN = datetime(2024, 1, 1, tzinfo=timezone.utc)
FILTERS = {None: lambda value: True, "value < 3": lambda value: value is not None and value < 3}
SPECS = [Spec(FIELDS, where, mode) for mode in Mode if mode is not Mode.CHANGELOG for where in FILTERS]
PUTS = (Mode.MIRROR, Mode.UPSERT)  # the others leave open who put a row there


@dataclass
class Account:
    """What of the rows at the destination is this sync's, as somebody would note it who stands beside and watches.

    Attributes:
        held: keys whose row it put there, or may have, and has not deleted since.
        values: every value that it put there, or may have, by key.
    """

    held: set[Key] = field(default_factory=set)
    values: dict[Key, set[int | None]] = field(default_factory=dict)

    def put(self, key: Key, value: int | None) -> None:
        self.held.add(key)
        self.values.setdefault(key, set()).add(value)


class Deliveries:
    """Runs of one sync that end well, are refused rows, crash, come back late, or are told to begin anew."""

    def __init__(self, seed: int, sync_id: str, images: list[Image], places: Places) -> None:
        self._rnd, self._id, self._images, self._places = random.Random(seed), sync_id, images, places
        self._facts: list[Fact] = []
        self._now, self._fence, self._claims, self._known_from = BEGAN, 0, 0, 0
        self._unsettled: list[tuple[Claim, Spec, str]] = []  # and what became of it
        self._late: list[Fact] = []
        self._cuts: list[int] = []
        self._asleep: list[tuple[Claim, Spec]] = []  # requests of a lost run, which may land beside those of the next
        self.account, self.spec, self.head = Account(), self._rnd.choice(SPECS), 1

    def play(self, runs: int) -> list[Fact]:
        """The facts of some runs; the last one reaches the head."""
        for left in reversed(range(runs)):
            self.head = SNAPSHOTS if not left else self._rnd.randint(self.head, SNAPSHOTS)
            if self._rnd.random() < 0.3:
                self.spec = self._rnd.choice(SPECS)
            self._run(crashes=bool(left))
        return self._facts

    def expected(self) -> dict[Key, tuple[bool, set[int | None]]]:
        """Of each hidden key that was ever put there: whether it is held, and the values."""
        return {
            key: (key in self.account.held, values)
            for key, values in self.account.values.items()
            if not self._seen(key)
        }

    @property
    def known_from(self) -> int:
        return self._known_from

    def _seen(self, key: Key) -> bool:
        return self._is_visible(key, self.head, self.spec)

    def _is_visible(self, key: Key, snapshot: int, spec: Spec) -> bool:
        image = self._images[snapshot]
        return key in image and FILTERS[spec.where](image[key])

    def _run(self, *, crashes: bool) -> None:
        self._fence += 1
        state = fold(fact for fact in self._facts if fact.fence == self._fence - 1)
        asked = self._rnd.choices(["", "adopt", "lost", "resync"], [30, 3, 1, 3])[0] if crashes else ""
        asleep, self._asleep = self._asleep, []
        if asked:
            self._carry_out(asked, state)
        else:
            self._deliver(state, crashes=crashes)
        for claim, spec in asleep if asked != "lost" else ():
            self._may_have_arrived(claim, spec)

    def _deliver(self, state: State, *, crashes: bool) -> None:
        self._settle_unknown()
        if self._rnd.random() < 0.4:  # else the same ranges as before
            self._cuts = sorted(self._rnd.sample(range(1, BUCKETS), self._rnd.randint(0, 2)))
        waves = list(zip([0, *self._cuts], [*self._cuts, BUCKETS], strict=True))
        claim = self._claim(*waves[0])
        self._start(state, claims=(*state.claims, claim))
        known = {one.id for one in state.claims}
        for seq in range(1, len(waves) + 1):
            if crashes and self._rnd.random() < 0.2:
                self._crash(claim, seq, known)
                return
            following = self._claim(*waves[seq]) if seq < len(waves) else None
            left = self._delivered(claim)
            self._append(self._acknowledged(claim, seq, left, following, known))
            claim = following or claim
        self._append(RunFinished(self._id, self._fence, 9, self._now, "succeeded", NO_COUNTS, NO_ROWS))

    def _claim(self, lo: int, hi: int) -> Claim:
        self._claims += 1
        return Claim(f"c{self._claims}", lo, hi, self.head, self.spec.id)

    def _keys(self, claim: Claim) -> Iterator[Key]:
        return (key for key, (_, bucket) in self._places.items() if claim.lo <= bucket < claim.hi)

    def _delivered(self, claim: Claim) -> list[Undelivered]:
        """A wave whose rows arrive, but for some that are left undelivered."""
        left, share = [], self._rnd.choice((0, 0.02, 0.1))
        for key in self._keys(claim):
            luck = self._rnd.random()
            if luck < share:
                unknown = luck < 0.4 * share
                may_be_there = unknown and self._is_visible(key, claim.snapshot, self.spec)
                left.append(self._undelivered(key, maybe=may_be_there))
                if may_be_there:
                    self.account.held.add(key)
                    self.account.values.setdefault(key, set())
            else:
                self._tell(key, claim.snapshot, self.spec)
        return left

    def _tell(self, key: Key, snapshot: int, spec: Spec) -> None:
        if self._is_visible(key, snapshot, spec):
            if spec.mode in PUTS:
                self.account.put(key, self._images[snapshot][key])
        elif spec.mode is Mode.MIRROR:
            self.account.held.discard(key)

    def _crash(self, claim: Claim, seq: int, known: set[str]) -> None:
        """The rows of a claim arrived or not. The destination's record tells the next run, or nobody ever knows."""
        fate = self._rnd.choice(["landed", "lost", "partly", "unknown", "late", "doubted"])
        if fate == "partly":  # some buckets are told of, in some nobody knows, and the rest was not reached
            self._may_have_arrived(_parts(claim)[1], self.spec)
        elif fate in ("unknown", "doubted"):
            self._may_have_arrived(claim, self.spec)
            self._asleep += [(claim, self.spec)] if fate == "doubted" else []
        elif fate == "late":  # it was acknowledged, after the next run had begun
            left = self._delivered(claim)
            self._late.append(self._acknowledged(claim, seq, left, None, known))
        self._unsettled.append((claim, self.spec, fate))

    def _may_have_arrived(self, claim: Claim, spec: Spec) -> None:
        for key in self._keys(claim):
            if self._is_visible(key, claim.snapshot, spec) and spec.mode in PUTS:
                self.account.put(key, self._images[claim.snapshot][key])

    def _settle_unknown(self) -> None:
        """What the record tells: before the next run has planned, so its account comes first."""
        for claim, spec, fate in self._unsettled:
            if fate in ("landed", "partly"):
                for key in self._keys(claim if fate == "landed" else _parts(claim)[0]):
                    self._tell(key, claim.snapshot, spec)

    def _start(self, state: State, **stated: object) -> None:
        self._now += timedelta(minutes=1)
        texts = {spec.id: spec.text for spec in SPECS}
        positions = state.positions if state.fence else (Range(0, BUCKETS, 0, self.spec.id),)
        started = RunStarted(
            self._id, self._fence, f"run{self._fence}", self._now, self.head, self.spec.id, texts, positions, state.claims,
            tuple(state.undelivered.values()), self._now, "here", "sync", "uuid", known_from=self._known_from,
        )  # fmt: skip
        self._append(replace(started, **stated))  # type: ignore[arg-type]
        for fact in self._late:
            self._append(replace(fact, at=self._now + timedelta(seconds=1)))  # type: ignore[call-arg]
        self._late = []
        closed = [(claim, fate) for claim, _, fate in self._unsettled if fate in ("landed", "lost", "partly")]
        if closed:
            partly = [_parts(claim) for claim, fate in closed if fate == "partly"]
            landed = [claim for claim, fate in closed if fate == "landed"] + [known for known, _ in partly]
            delivered = tuple(Range(c.lo, c.hi, c.snapshot, c.spec) for c in landed if c.lo < c.hi)
            ids, kept = tuple(claim.id for claim, _ in closed), tuple(unknown for _, unknown in partly)
            self._append(ClaimsSettled(self._id, self._fence, 0, self._now, delivered, ids, kept, texts))
        for claim, _, fate in self._unsettled:
            if fate == "doubted":
                doubt = replace(claim, id=f"{claim.id}-doubt", everything=True)
                self._append(DoubtRecorded(self._id, self._fence, self._now, (claim.id,), (doubt,), texts))
        self._unsettled = []

    def _carry_out(self, asked: str, state: State) -> None:
        """What an operator asked for: the positions are stated, nothing is sent."""
        everywhere = (Range(0, BUCKETS, self.head, self.spec.id),)
        if asked == "adopt":
            self._settle_unknown()
            self._start(state, positions=everywhere, claims=(), undelivered=())
            for key in self._places:
                if self._is_visible(key, self.head, self.spec) and self.spec.mode in PUTS:
                    self.account.put(key, self._images[self.head][key])
        elif asked == "lost":  # nothing of what was before is known any more
            self._known_from, self.account, self._unsettled, self._late = self._fence, Account(), [], []
            self._start(state, positions=(replace(everywhere[0], snapshot=0),), claims=(), undelivered=())
        else:
            self._settle_unknown()
            claims = [
                Claim(f"r{self._fence}-{n}", place.lo, place.hi, place.snapshot, place.spec, everything=True, ordered=True)
                for n, place in enumerate(state.positions) if place.snapshot
            ]  # fmt: skip
            self._start(state, claims=(*state.claims, *claims))
        self._append(RunFinished(self._id, self._fence, 1, self._now, asked, NO_COUNTS, NO_ROWS))

    def _acknowledged(
        self, claim: Claim, seq: int, left: list[Undelivered], following: Claim | None, known: set[str]
    ) -> WaveAcknowledged:
        return WaveAcknowledged(
            self._id, self._fence, seq, self._now, claim.lo, claim.hi, claim.snapshot, claim.spec, NO_COUNTS, tuple(left),
            (*known, claim.id), (following,) if following else (), self._now,
        )  # fmt: skip

    def _undelivered(self, key: Key, *, maybe: bool) -> Undelivered:
        name, bucket = self._places[key]
        outcome = "unknown" if maybe else "rejected"
        return Undelivered(name, bucket, None, None, maybe, maybe, self.head, "insert", outcome, "", 1, self._now, None)

    def _append(self, fact: Fact) -> None:
        self._facts.append(fact)


def _parts(claim: Claim) -> tuple[Claim, Claim]:
    """What the record tells of a claim, and what it leaves in doubt; of one in three that is all of it."""
    third = (claim.hi - claim.lo) // 3
    if int(claim.id[1:]) % 3 == 0:
        return replace(claim, hi=claim.lo), claim
    return replace(claim, hi=claim.lo + third), replace(claim, lo=claim.lo + third, hi=claim.hi - third)
