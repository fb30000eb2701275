"""What became of one row. The sink decides, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """The six outcomes of a row."""

    DELIVERED = "delivered"
    REJECTED = "rejected"  # the row's fault
    NO_MATCH = "no_match"  # update_only: the destination has no such row, which is nobody's fault
    RETRYABLE = "retryable"  # the destination's fault, surely not applied
    UNKNOWN = "unknown"  # may be applied; stays until delivered
    FATAL = "fatal"  # configuration or auth: stops the sync

    def then(self, later: Outcome) -> Outcome:
        """Join the outcome of a later attempt: only `delivered` takes `unknown` away."""
        if self is Outcome.UNKNOWN and later is not Outcome.DELIVERED:
            return Outcome.UNKNOWN
        return later


TROUBLE = (Outcome.RETRYABLE, Outcome.UNKNOWN)  # of the destination, and of no row


@dataclass(frozen=True)
class RowResult:
    """The outcome of one row that was not delivered.

    Attributes:
        index: position of the row in its batch, from 0.
        outcome: never `delivered`: a delivered row needs no result.
        reason: a short text without row values and without secrets.
    """

    index: int
    outcome: Outcome
    reason: str


def malformed(answer: object) -> str | None:
    """The name of the type that a sink answered with, or that its results have, where it has not the form of a `Delivery`."""
    if not isinstance(answer, Delivery):
        return type(answer).__name__
    results: object = answer.results
    if not isinstance(results, tuple):
        return type(results).__name__
    for name, kinds in (("retry_after", (int, float)), ("stop", str)):
        given = getattr(answer, name)
        if given is not None and not isinstance(given, kinds):
            return f"{name} of {type(given).__name__}"
    for indexes in (answer.maybe_applied, answer.in_part):
        if not isinstance(indexes, tuple) or not all(isinstance(index, int) for index in indexes):
            return "maybe_applied or in_part that is no tuple of int"
    wrong = (one for one in results if not _is_result(one))
    return next((f"a result of {type(one).__name__}" for one in wrong), None)


def _is_result(one: object) -> bool:
    if not isinstance(one, RowResult):
        return False
    reason: object = one.reason
    return isinstance(one.index, int) and isinstance(one.outcome, Outcome) and isinstance(reason, str)


@dataclass(frozen=True)
class Delivery:
    """A sink's answer for one batch: a positive statement for each row that is not listed in `results`.

    Attributes:
        results: one entry for each row that was not delivered, each index at most once.
        retry_after: seconds for which the destination asks every worker of the sync to pause, or None.
        refused_whole: the destination refused the batch as one, and did not say which row is at fault; all rows are `rejected`, and the
            engine may bisect. It applied none of them but those in `maybe_applied`.
        maybe_applied: indexes of rows in `results` that may be applied, for the destination refused some of them only. What it says
            later of such a row alone holds.
        in_part: indexes of rows in `results` that are applied in part, as an event without its tombstone. Such a row is in doubt until it
            is delivered, whatever the destination says of it later; a `rejected` one waits like any other refused row.
        stop: why the sync must stop although the rows in `results` may be applied (they are `unknown`), or None; a
            `fatal` row stops it too, and was surely not applied.
    """

    results: tuple[RowResult, ...] = ()
    retry_after: float | None = None
    refused_whole: bool = False
    maybe_applied: tuple[int, ...] = ()
    in_part: tuple[int, ...] = ()
    stop: str | None = None

    @staticmethod
    def of_all(rows: int, outcome: Outcome, reason: str, *, retry_after: float | None = None) -> Delivery:
        """The same outcome for every row of a batch."""
        results = tuple(RowResult(index, outcome, reason) for index in range(rows))
        return Delivery(results, retry_after, refused_whole=outcome is Outcome.REJECTED)

    def violation(self, rows: int) -> str | None:
        """The rule that the answer to a batch of so many rows breaks, or None: nothing in such an answer can be believed."""
        indexes = {result.index for result in self.results}
        named = (*indexes, *self.maybe_applied, *self.in_part)
        if len(indexes) < len(self.results) or any(not 0 <= index < rows for index in named):
            return "the sink answered for a row it was not sent, or twice for one row"
        if any(result.outcome is Outcome.DELIVERED for result in self.results):
            return "the sink listed a delivered row among its failures"
        return None
