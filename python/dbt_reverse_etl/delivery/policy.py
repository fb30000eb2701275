"""The numbers of a delivery, in one place."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from datetime import timedelta

from dbt_reverse_etl.delivery.facts import LONGEST_WAIT
from dbt_reverse_etl.delivery.waves import WaveSize

_MOST_LISTED = 10_000


@dataclass(frozen=True)
class Retries:
    """Re-sending within one run.

    Attributes:
        first, cap: seconds; after n requests in a row that settled nothing, the next waits a random part of
            min(cap, first * 2**n).
        attempts: of one batch; then it is set aside, so that one row which always fails does not hold up the others,
            and gets as many again at the end of the wave.
        seconds: how long the destination may go without settling a single row; then the rest is left for the next run.
        requests, share: extra requests allowed: so many, plus this share of the first attempts. A repeat that the
            destination asked for with Retry-After is bounded by `seconds` and `attempts` alone.
    """

    first: float = 0.5
    cap: float = 30.0
    attempts: int = 5
    seconds: float = 300.0
    requests: int = 50
    share: float = 0.1


@dataclass(frozen=True)
class Rejections:
    """Rows that the destination refuses for their own fault.

    Attributes:
        first, cap: the wait before the next attempt of an unchanged row doubles from `first` to `cap`.
        attempts, age: an unchanged row is parked when both are spent.
        breaker_rows, breaker_share: more rejected rows than both in a wave, and more than delivered, stop the sync.
    """

    first: timedelta = timedelta(minutes=5)
    cap: timedelta = LONGEST_WAIT
    attempts: int = 10
    age: timedelta = timedelta(days=1)
    breaker_rows: int = 50
    breaker_share: float = 0.05


@dataclass(frozen=True)
class Policy:
    """All that a run may decide by number.

    Attributes:
        lease: longer than the request timeout and than reading one wave; renewed when half of it is spent.
        abandoned_for: how long the head of a run that never finished is kept from pruning.
        executors_from: rows of a push that is sent from the executors, where the sink can.
        executor_waves: the waves of such a push; their rows never stand in one place. Tasks cannot renew the lease, so the first
            wave is no larger than the ledger can list: whatever is left of it, the sync gets on.
        most_listed: undelivered rows of one wave that the ledger lists when the sync stops within it.
        syncs_at_once: of one push; most of their time is waiting.
        retry_now: send waiting and parked rows too (the command `retry`).
        park_doubt: a row that the destination may or may not hold is never sent again by itself; it waits for `retry`.
    """

    waves: WaveSize = field(default_factory=WaveSize)
    retries: Retries = field(default_factory=Retries)
    rejections: Rejections = field(default_factory=Rejections)
    lease: timedelta = timedelta(minutes=15)
    abandoned_for: timedelta = timedelta(days=7)
    executors_from: int = 200_000
    executor_waves: WaveSize = field(
        default_factory=lambda: WaveSize(rows=_MOST_LISTED, most=5_000_000, most_bytes=sys.maxsize)
    )
    most_listed: int = _MOST_LISTED
    syncs_at_once: int = 4
    retry_now: bool = False
    park_doubt: bool = False

    def parking_doubt(self) -> Policy:
        """For a destination that must not get a row twice: the waves are so small that the ledger can list one that is lost,
        and leave from the driver, for Spark repeats a task by itself."""
        waves = WaveSize(rows=self.most_listed, most=self.most_listed)
        return replace(self, park_doubt=True, waves=waves, executors_from=sys.maxsize)
