"""Rows counted by operation, and the balance that every run must show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

INSERT, UPDATE, DELETE = "insert", "update", "delete"


@dataclass(frozen=True)
class PerOperation:
    """Rows of each operation."""

    insert: int = 0
    update: int = 0
    delete: int = 0

    @staticmethod
    def of(operations: Iterable[str]) -> PerOperation:
        """Count the operations of rows; an unknown word is a TypeError."""
        return PerOperation(**Counter(operations))

    def __add__(self, other: PerOperation) -> PerOperation:
        return PerOperation(self.insert + other.insert, self.update + other.update, self.delete + other.delete)

    def __sub__(self, other: PerOperation) -> PerOperation:
        return PerOperation(self.insert - other.insert, self.update - other.update, self.delete - other.delete)

    @property
    def total(self) -> int:
        return self.insert + self.update + self.delete


NO_ROWS = PerOperation()


@dataclass(frozen=True)
class Counts:
    """What became of the planned rows.

    Attributes:
        planned: rows that differ, or are in doubt.
        delivered: acknowledged by the destination.
        rejected: refused for the row's own fault.
        failed: attempted; retryable, unknown or fatal at the end.
        skipped: not attempted: waiting, parked, or the run stopped before.
        no_match: the destination has no such row to update, as it said now or when it was asked last.
    """

    planned: PerOperation = NO_ROWS
    delivered: PerOperation = NO_ROWS
    rejected: PerOperation = NO_ROWS
    failed: PerOperation = NO_ROWS
    skipped: PerOperation = NO_ROWS
    no_match: PerOperation = NO_ROWS

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def balanced(self) -> bool:
        """planned = delivered + rejected + failed + skipped + no_match, for each operation."""
        return self.planned == self.delivered + self.rejected + self.failed + self.skipped + self.no_match

    @property
    def complete(self) -> bool:
        """Every planned row was delivered, but for those that the destination does not have."""
        return self.planned == self.delivered + self.no_match


NO_COUNTS = Counts()
