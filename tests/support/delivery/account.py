"""What a sync owes its destination, kept in plain Python by what the documentation says: the oracle of how a run must end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

FIRST, CAP, ATTEMPTS, AGE = timedelta(minutes=5), timedelta(hours=1), 3, timedelta(days=1)
NO_MATCH = "no_match"


@dataclass(frozen=True)
class Owed:
    """A row that the destination did not take, or does not have."""

    value: int
    why: str
    reason: str
    tries: int
    since: datetime
    again: datetime | None  # None: parked

    def waits(self, now: datetime) -> bool:
        return self.again is None or self.again > now


@dataclass
class Ended:
    """How a push must end: its exit code, the health of the sync, what is in the brackets of its line, and the lines below."""

    code: int
    health: str
    line: str
    details: list[str]


@dataclass
class Account:
    """Rows that only ever appear and change: `update_only` knows no delete, and calls all of them updates."""

    updates_only: bool = False
    delivered: dict[str, int] = field(default_factory=dict)
    owed: dict[str, Owed] = field(default_factory=dict)
    last: str = ""  # how the newest run ended
    lost: int = 0  # rows that it planned, and of which it has neither brought nor listed any
    head: int = 0  # that was pushed last, to its end

    @property
    def missing(self) -> dict[str, Owed]:
        return {key: one for key, one in self.owed.items() if one.why != NO_MATCH}

    def push(
        self,
        image: Mapping[str, int],
        head: int,
        now: datetime,
        *,
        refused: Mapping[str, str],
        absent: Collection[str],
        broken: bool,
        allowed: int | None,
        retry: bool,
    ) -> Ended:
        """A push of this image to a destination that refuses some rows for a reason, and does not have others."""
        due = any(retry or not one.waits(now) for one in self.owed.values())
        if head == self.head and self.last == "ended" and not due:
            return self._ended("nothing to send", now, allowed, idle=True)
        planned = {key: value for key, value in image.items() if self.delivered.get(key) != value}
        waiting = {key for key in planned if not retry and self._waits(key, planned[key], now)}
        tried = planned.keys() - waiting
        self.lost = 0
        if broken and tried:
            self.last = "failed"
            unmatched = sum(self.owed[key].why == NO_MATCH for key in waiting)
            self.lost = max(0, len(planned) - unmatched - len(self.missing))
            return self._ended("ERROR failed", now, allowed)
        inserts = updates = 0
        before, self.owed = self.owed, {key: self.owed[key] for key in waiting}
        for key in tried:
            if key in absent or key in refused:
                why, reason = (NO_MATCH, "no row to update") if key in absent else ("rejected", refused[key])
                self.owed[key] = _again(before.get(key), planned[key], why, reason, now)
            else:
                is_new = key not in self.delivered and not self.updates_only
                inserts, updates = inserts + is_new, updates + (not is_new)
                self.delivered[key] = planned[key]
        self.last, self.head = "ended", head
        counts = {
            "rejected": sum(key in tried for key in self.missing),
            "waiting": sum(key in waiting for key in self.missing),
            "no match": len(self.owed) - len(self.missing),
        }
        told = [f"{number} {name}" for name, number in counts.items() if number]
        return self._ended(", ".join([f"+{inserts} ~{updates} -0", *told]), now, allowed)

    def _waits(self, key: str, value: int, now: datetime) -> bool:
        """A row that changed since then does not wait."""
        one = self.owed.get(key)
        return one is not None and one.value == value and one.waits(now)

    def _ended(self, line: str, now: datetime, allowed: int | None, *, idle: bool = False) -> Ended:
        if idle:
            numbers = {"undelivered": len(self.missing), "no match": len(self.owed) - len(self.missing)}
            line = ", ".join([line, *(f"{number} {name}" for name, number in numbers.items() if number)])
        bad = self.last == "failed" or (allowed is not None and len(self.missing) > allowed)
        return Ended(int(bad), "failing" if bad else "ok", line, self._details(now))

    def _details(self, now: datetime) -> list[str]:
        alike: dict[tuple[str, str, str], list[Owed]] = {}
        for one in self.missing.values():
            how = "parked" if one.again is None else "due" if one.again <= now else "waits"
            alike.setdefault((one.why, one.reason, how), []).append(one)
        lines: list[tuple[int, str]] = []
        for (why, reason, how), rows in sorted(alike.items(), key=lambda group: (-len(group[1]), group[0])):
            times = sorted({f"{one.again:%Y-%m-%d %H:%M}" for one in rows if one.again})
            when = (
                "the next run tries again"
                if how == "due"
                else f"tried again from {times[0]} to {times[-1]} UTC"
                if times
                else ""
            )
            if how == "parked":
                when = "tried again when the row or the mapping changes, or by dbt-reverse-etl retry"
            elif how == "waits" and len(times) == 1:
                when = f"tried again after {times[0]} UTC"
            lines.append((len(rows), f"undelivered: {len(rows)} {why}: {reason}; {when}"))
        if self.lost:
            told = f"undelivered: {self.lost} not acknowledged: the run ended before; the next run tries again"
            lines.append((self.lost, told))
        return [text for _, text in sorted(lines, key=lambda line: -line[0])]


def _again(before: Owed | None, value: int, why: str, reason: str, now: datetime) -> Owed:
    """5 minutes, doubling to an hour; rejected three times and for a day: parked. What is not there is never parked."""
    same = before if before is not None and before.value == value else None
    tries, since = (same.tries + 1, same.since) if same else (1, now)
    owed = Owed(value, why, reason, tries, since, now + min(CAP, FIRST * 2 ** (tries - 1)))
    parked = why == "rejected" and tries >= ATTEMPTS and now - since >= AGE
    return replace(owed, why="parked", again=None) if parked else owed
