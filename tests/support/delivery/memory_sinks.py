"""A plain and a transactional destination in memory, and what happens to each attempt of a row, on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Applied, Batch, Limits, Mode, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.sql.claim_record import Part, Unanswered, answer_of, parts_of


@dataclass
class Destination:
    """What outlives the runs: the rows, and a transactional sink's records.

    Attributes:
        applied: how often each change was, by its event id.
        taken: of each operation, the rows that a plain sink took and did not answer for.
    """

    rows: dict[str, int] = field(default_factory=dict)
    records: dict[str, list[Part]] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    fence: int = 0
    deleted: list[str] = field(default_factory=list)
    swaps: int = 0

    def put(self, row: Mapping[str, object]) -> None:
        key = str(row["key"])
        self.applied[str(row["_event_id"])] += 1
        if row["_operation"] == "delete":
            self.deleted.append(key)
            self.rows.pop(key, None)
        else:
            self.rows[key] = int(str(row["value"]))


Script = dict[str, list[str]]  # per key, what happens to each attempt: see `FAULTS`
NOT_ASKED = ("retryable", "fatal", "raised")  # of a whole batch: nothing reaches the destination
FAULTS = ("rejected", "retryable", "unknown_applied", "unknown_lost", "no_match", "fatal", "raised")
_OUTCOMES = {
    "rejected": Outcome.REJECTED,
    "retryable": Outcome.RETRYABLE,
    "unknown_applied": Outcome.UNKNOWN,
    "unknown_lost": Outcome.UNKNOWN,
    "no_match": Outcome.NO_MATCH,
    "fatal": Outcome.FATAL,
}


class PlainSink(Sink):
    """Applies row by row and keeps no record."""

    type = "plain"
    full_loads = True
    modes = frozenset(Mode)
    promise = "at least once"

    def __init__(self, settings: Settings | None = None) -> None:
        self.destination = Destination()
        self.script: Script = {}
        self.batch_rows = 2
        self.loaded: dict[str, int] = {}
        self.atomic = False  # a batch with a refused row is refused as one

    @property
    def identity(self) -> str:
        return "memory"

    def limits(self, task: SinkTask) -> Limits:
        return Limits(rows=self.batch_rows)

    def check(self) -> None: ...

    def open(self, task: SinkTask) -> None:
        self.task = task

    def close(self) -> None: ...

    def swap(self, claim: str) -> None:
        word = self._next("swap")
        if word in (None, "unknown_applied"):
            self._put_in_place(claim)
        if word is not None:
            raise DestinationError(Problem("memory", word, "a swap", "push again"))

    def _put_in_place(self, claim: str) -> None:
        self.destination.rows = dict(self.loaded)
        self.destination.swaps += 1

    def _put(self, row: Mapping[str, object]) -> None:
        if self.task.full_load:
            if row["_operation"] != "delete":
                self.loaded[str(row["key"])] = int(str(row["value"]))
        else:
            self.destination.put(row)

    def deliver(self, batch: Batch) -> Delivery:
        rows = batch.rows.to_pylist()
        words = [self._next(row["key"]) for row in rows]
        if "raised" in words:
            raise ValueError("a text that nobody may see")
        if self.atomic and len(rows) > 1 and "rejected" in words and not self._is_down(words):
            for row, word in zip(rows, words, strict=True):
                if word is not None:
                    self.script.setdefault(row["key"], []).insert(0, word)
            return Delivery.of_all(len(rows), Outcome.REJECTED, "refused")
        return self._apply(batch, rows, words)

    def _is_down(self, words: Sequence[str | None]) -> bool:
        """One of these words says so of the destination, not of its row alone."""
        return False

    def _apply(self, batch: Batch, rows: Sequence[dict[str, object]], words: Sequence[str | None]) -> Delivery:
        results = []
        for index, (row, word) in enumerate(zip(rows, words, strict=True)):
            if word in (None, "unknown_applied"):
                self._put(row)
            if word is None:
                self.destination.taken[str(row["_operation"])] += 1
            else:
                results.append(RowResult(index, _OUTCOMES[word], word))
        return Delivery(tuple(results), refused_whole=self.atomic and len(rows) == 1 and words == ["rejected"])

    def _next(self, key: str) -> str | None:
        script = self.script.get(key)
        return script.pop(0) if script else None


class TransactionalSink(PlainSink):
    """One transaction per batch, the record of the claim within it, under a fence."""

    type = "transactional"
    transactional = True
    settles_buckets = True
    promise = "exactly once"

    def open(self, task: SinkTask) -> None:
        self.task = task
        self._unanswered: Unanswered | None = None
        assert task.first or self.destination.fence, "the destination lost its record"
        self.destination.fence = max(self.destination.fence, task.fence)

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        return {claim: self._said_of(claim) for claim in claims}

    def applied(self, claim: str) -> Applied:
        known = self._said_of(claim)
        return known if isinstance(known, Applied) else Applied()

    def _said_of(self, claim: str) -> bool | Applied | None:
        return answer_of(self.destination.records.get(claim, []))

    def _put_in_place(self, claim: str) -> None:
        if not self._holds_fence:
            raise DestinationError(Problem("memory", "a newer fence", "none", "push again"))
        super()._put_in_place(claim)
        self.destination.records[claim] = [Part("whole", closed=True, left_out=0)]

    def deliver(self, batch: Batch) -> Delivery:
        before = self._unanswered
        records = self.destination.records.get(batch.claim, [])
        if before and before.is_of(batch) and before.part in records and self._holds_fence:
            words = [word for key in batch.rows.column("key").to_pylist() for word in self.script.get(key, [])[:1]]
            if not self._is_down(words):
                return before.answer
        return super().deliver(batch)

    def _is_down(self, words: Sequence[str | None]) -> bool:
        return any(word in NOT_ASKED for word in words)

    @property
    def _holds_fence(self) -> bool:
        return self.task.fence >= self.destination.fence

    def _apply(self, batch: Batch, rows: Sequence[dict[str, object]], words: Sequence[str | None]) -> Delivery:
        of_rows = (None, "rejected", "no_match")
        wrong = sorted({word for word in words if word not in of_rows}, key=lambda word: (word not in NOT_ASKED, word))
        whole = wrong[0] if wrong else None
        if not self._holds_fence:
            whole = "fatal"
        if whole not in (None, "unknown_applied"):
            return Delivery.of_all(len(rows), _OUTCOMES[whole], whole)
        refused = {index: _OUTCOMES[word] for index, word in enumerate(words) if word in ("rejected", "no_match")}
        if Outcome.REJECTED in refused.values() and self.atomic:
            return Delivery.of_all(len(rows), Outcome.REJECTED, "refused")
        for index, row in enumerate(rows):
            if index not in refused:
                self._put(row)
        parts = parts_of(batch, [*refused])
        if not self.task.full_load:
            self.destination.records.setdefault(batch.claim, []).extend(parts)
        answer = Delivery(tuple(RowResult(index, outcome, outcome.value) for index, outcome in refused.items()))
        if whole is None:
            return answer
        if not self.task.full_load:
            self._unanswered = Unanswered(batch, parts[0], answer)
        return Delivery.of_all(len(rows), Outcome.UNKNOWN, whole)
