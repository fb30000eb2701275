"""Writes the rows of a batch in an open transaction, and says which of them the table refused: all at once, or else as a search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.refusals import NO_ROW
from dbt_reverse_etl.sinks.sql.columns import Changes, columns_of
from dbt_reverse_etl.sinks.sql.dialect import Dialect, Fault, RolledBack
from dbt_reverse_etl.sinks.sql.table import Name, Table, soft_delete
from dbt_reverse_etl.values.arrow import is_text

IGNORED = "the table ignored the row (a trigger?)"
MOVED = "another session changed rows of the batch, which was rolled back"
OTHER_SPELLING = "the table has or shows this key in another spelling"
OTHER_KEY = "the table stored the row under another key (a trigger or a generated key?)"
PASSES = 8  # a row may wait for what a later row of the batch gives up, or brings
INEFFECTIVE: Fault = ("ineffective",)  # a statement changed fewer rows than it should
MISPLACED: Fault = (OTHER_KEY,)
Found = dict[int, Fault]


class Step(Enum):
    """What is done with the rows of a batch."""

    DELETE = "delete"
    WRITE = "write"


class Ineffective(Exception):
    """A statement changed fewer rows than it should."""


class Writer(ABC):
    """Writes the batches of one sync into its table.

    Class attributes:
        one_statement: a step is one, so that it leaves nothing behind if it fails.
    """

    one_statement: ClassVar[bool] = True

    def __init__(self, dialect: Dialect, task: SinkTask, name: Name, table: Table) -> None:
        self.columns: dict[str, Any] = {field: table.columns[dialect.fold(field)] for field in task.schema.names}
        # An update of what a generated key is made of moves the row, as a trigger may.
        if not all(self.columns[key].writable for key in task.key):
            table = replace(table, rewrites=True)
        self.dialect, self.task, self.name, self.table = dialect, task, name, table
        self.strict = self.counts and task.mode is not Mode.INSERT_ONLY  # a write must change each of its rows
        self.looks = table.rewrites  # a search asks after each write whether its rows are in the table
        self.changed_rows = 0  # by the writes of a search
        self.links = [field for field in task.schema.names if dialect.fold(field) in table.cascades]

    def changes(self, rows: pa.Table) -> Changes:
        """The rows of a batch in the form of the database."""
        return replace(self.packed(columns_of(rows, self.columns, self.task, self.dialect)), fields={})

    @property
    def others(self) -> Sequence[str]:
        """What a write changes of a row that is there: the fields beside the key, if there are any."""
        return [name for name in self.task.schema.names if name not in self.task.key] or self.task.key

    @property
    def text_keys(self) -> Sequence[str]:
        """Fields of the key that are texts."""
        return [key for key in self.task.key if is_text(self.task.schema.field(key).type)]

    @property
    def counts(self) -> bool:
        """Whether a write tells how many rows it changed, so that one that a trigger ignored is noticed."""
        return True

    @abstractmethod
    def packed(self, changes: Changes) -> Changes:
        """The same, also in the form of the database."""

    def stage(self, connection: Any, changes: Changes) -> None:  # noqa: B027  (most databases stage in the transaction)
        """What is done before the transaction of a batch."""

    def write(self, connection: Any, changes: Changes) -> dict[int, str]:
        """Apply the deletes, then the writes, which may need a unique value that a delete gives up; or in the order of `steps`.

        Returns: place -> reason of each row that was refused.

        Raises:
            RolledBack: the table refused the batch as one.
            Exception: of the driver, the database's fault.
        """
        if not changes.writes + changes.deletes:
            return {}
        self.load(connection, changes)
        self.dialect.run(connection, "SAVEPOINT all_rows")
        try:
            return self.at_once(connection, changes)
        except Ineffective:
            pass
        except self.dialect.failure_type as error:
            self.fault_of(connection, error)
        self.dialect.run(connection, "ROLLBACK TO all_rows")
        return self._apart(connection, changes)

    def load(self, connection: Any, changes: Changes) -> None:  # noqa: B027  (SQLite's rows go straight into the table)
        """Put the rows where the statements find them."""

    @abstractmethod
    def apply(self, connection: Any, step: Step, changes: Changes, rows: range | None = None) -> int:
        """Carry out a step for the rows in these places, or for all; how many it changed."""

    @abstractmethod
    def absent(self, connection: Any, changes: Changes, rows: range | None = None) -> Collection[int]:
        """Places of the writes, all or those in these places, whose key is not in the table."""

    @abstractmethod
    def undeleted(self, connection: Any, changes: Changes) -> Collection[int]:
        """Places of the deletes whose row is still there."""

    def undone(self, connection: Any, changes: Changes) -> Collection[int]:
        """Places of the writes that a delete took with it, or whose `links` it changed."""
        return ()

    @abstractmethod
    def drop(self, connection: Any, changes: Changes, rows: Collection[int]) -> None:
        """Take the rows in these places out of what is to be written."""

    def already(self, connection: Any) -> Collection[int]:
        """Places of the writes that the table holds as they are, so that a trigger that ignored them did no harm."""
        return ()

    def misspelt(self, connection: Any) -> Collection[int]:
        """Places of the writes whose key the table has or shows in another spelling; the first only where rows are inserted."""
        return ()

    def check_now(self, connection: Any) -> None:  # noqa: B027  (most databases check each row at once)
        """Let deferred constraints speak from now on."""

    def begin_search(self, connection: Any) -> None:
        """Prepare for `search`, in which each row is checked at once."""
        self.check_now(connection)

    def fault_of(self, connection: Any, error: Any) -> Fault:
        """Raises the error if no row is at fault."""
        fault = self.dialect.fault(connection, error)
        if fault is None:
            raise error
        return fault

    def is_moved(self, changes: Changes, others: int) -> bool:
        """Whether another session changed rows while they were searched; `others`: writes that are refused or have no row."""
        return False

    def waits(self, fault: Fault) -> bool:
        """Whether what another row of the batch does may mend it."""
        return False

    def reasons(self, connection: Any, found: Found) -> dict[int, str]:
        """Place -> reason, without a value of the row."""
        return {row: self.unchanged if fault == INEFFECTIVE else str(fault[-1]) for row, fault in found.items()}

    @property
    def unchanged(self) -> str:
        """Why a write had no effect."""
        return IGNORED

    def at_once(self, connection: Any, changes: Changes) -> dict[int, str]:
        """Everything, or an error."""
        refused: dict[int, str] = {}
        for step in self.steps(changes):
            carry_out = self.write_all if step is Step.WRITE else self.delete_all
            refused |= carry_out(connection, changes)
        self.check_now(connection)
        if self.writes_first(changes) and self.undone(connection, changes):
            raise Ineffective
        return refused

    def writes_first(self, changes: Changes) -> bool:
        """Whether a delete could take a row with it that the batch gives another parent."""
        return bool(self.table.cascades and changes.deletes and changes.writes) and not soft_delete(self.task)

    def steps(self, changes: Changes) -> list[Step]:
        """What is to be done, in this order."""
        wanted = [Step.DELETE] * bool(changes.deletes) + [Step.WRITE] * bool(changes.writes)
        return wanted[::-1] if self.writes_first(changes) else wanted

    def delete_all(self, connection: Any, changes: Changes) -> dict[int, str]:
        """The deletes, or an error."""
        if self.apply(connection, Step.DELETE, changes) < changes.deletes:
            return dict.fromkeys(self.undeleted(connection, changes), IGNORED)
        return {}

    def write_all(self, connection: Any, changes: Changes) -> dict[int, str]:
        """The writes, or an error."""
        changed = self.apply(connection, Step.WRITE, changes)
        unchanged = max(changes.writes - changed, 0) if self.counts else 0
        if not unchanged and not self.table.rewrites:
            return {}
        is_update = self.task.mode is Mode.UPDATE_ONLY
        if unchanged and self.strict and not is_update:
            raise Ineffective
        absent = self.absent(connection, changes)
        if is_update and len(absent) < unchanged:
            raise Ineffective
        # A row that was written, and is not there, is there under another key.
        if self.table.rewrites and len(absent) > (unchanged if is_update else 0):
            raise Ineffective
        return self._without_row(connection, absent)

    def _apart(self, connection: Any, changes: Changes) -> dict[int, str]:
        self.changed_rows = 0
        self.begin_search(connection)
        found = self._searched(connection, changes)
        if self._hides_rows(connection, changes, found):
            self.looks = True
            self.dialect.run(connection, "ROLLBACK TO all_rows")
            return self._apart(connection, changes)
        refused = self.reasons(connection, found)
        # What is asked below reads the values, which those of a refused row may not stand.
        self.drop(connection, changes, [row for row, fault in found.items() if fault != INEFFECTIVE])
        if INEFFECTIVE in found.values():
            misspelt = (row for row in self.misspelt(connection) if row in found)
            refused |= dict.fromkeys(misspelt, OTHER_SPELLING)
            for row in self.already(connection):
                refused.pop(row, None)
        if changes.deletes:
            refused |= dict.fromkeys(self.undeleted(connection, changes), IGNORED)
        if self.task.mode is Mode.UPDATE_ONLY:
            absent = self.absent(connection, changes)
            if self.is_moved(changes, len({*absent, *found})):
                raise RolledBack(MOVED, Outcome.RETRYABLE)
            refused |= self._without_row(connection, absent)
        elif self.counts and not self.strict:
            refused |= self._without_row(connection, self.absent(connection, changes))
        return refused

    def _hides_rows(self, connection: Any, changes: Changes, found: Found) -> bool:
        """Whether a write that went well has no row, and the search was not looking."""
        return self.table.rewrites and not self.looks and bool(set(self.absent(connection, changes)) - found.keys())

    def _searched(self, connection: Any, changes: Changes) -> Found:
        """Each row for which its step cannot be carried out, also after what the others have done."""
        every = [range(len(changes.deleted))]
        found = {step: self.search(connection, step, changes, every) for step in self.steps(changes)}
        for turn in range(PASSES - 1):
            before = sum(map(len, found.values()))
            if not any(self.waits(fault) for of_step in found.values() for fault in of_step.values()):
                break
            # A chain of rows that wait for each other is done in one pass in the right direction.
            direction = -1 if turn % 2 == 0 else 1
            found = {step: self._again(connection, step, changes, rows, direction) for step, rows in found.items()}
            if turn and sum(map(len, found.values())) == before:
                break
        if self.writes_first(changes):  # what a delete undid, and what needs a value that it gave up
            found[Step.WRITE] = self.search(connection, Step.WRITE, changes, every)
        return {row: fault for of_step in found.values() for row, fault in of_step.items()}

    def _without_row(self, connection: Any, absent: Collection[int]) -> dict[int, str]:
        """Why each of these writes has no row in the table."""
        misspelt = set(self.misspelt(connection)) if absent else set[int]()
        other = NO_ROW if self.task.mode is Mode.UPDATE_ONLY else self.unchanged
        return {row: OTHER_SPELLING if row in misspelt else other for row in absent}

    def _again(self, connection: Any, step: Step, changes: Changes, found: Found, direction: int) -> Found:
        waiting = sorted(row for row, fault in found.items() if self.waits(fault))
        rest = {row: fault for row, fault in found.items() if not self.waits(fault)}
        return rest | self.search(connection, step, changes, [range(row, row + 1) for row in waiting[::direction]])

    def search(self, connection: Any, step: Step, changes: Changes, ranges: Sequence[range]) -> Found:
        """Each row for which a step cannot be carried out; it is carried out for the others.

        Halves a range until the row stands alone: an attempt that fails leaves nothing behind."""
        found, left = Found(), list(ranges[::-1])
        while left:
            rows = left.pop()
            fault = self.attempt(connection, step, changes, rows)
            if fault is None:
                continue
            if len(rows) == 1:
                found[rows.start] = fault
            else:
                middle = len(rows) // 2
                left += [rows[middle:], rows[:middle]]
        return found

    def attempt(self, connection: Any, step: Step, changes: Changes, rows: range) -> Fault | None:
        """Carry out a step for these rows, or for none of them."""
        if self.one_statement and not (self.looks and step is Step.WRITE):
            return self._tried(connection, step, changes, rows)
        self.dialect.run(connection, "SAVEPOINT some_rows")
        fault = self._tried(connection, step, changes, rows)
        if fault:
            self.dialect.run(connection, "ROLLBACK TO some_rows")
        self.dialect.run(connection, "RELEASE SAVEPOINT some_rows")
        return fault

    def _tried(self, connection: Any, step: Step, changes: Changes, rows: range) -> Fault | None:
        try:
            changed = self.apply(connection, step, changes, rows)
            if step is Step.DELETE:
                return None
            if self.is_ineffective(changes, rows, changed):
                return INEFFECTIVE
            if self.looks and self.absent(connection, changes, rows):
                return MISPLACED if changed else INEFFECTIVE
            self.changed_rows += changed
        except self.dialect.failure_type as error:
            return self.fault_of(connection, error)
        return None

    def is_ineffective(self, changes: Changes, rows: range, changed: int) -> bool:
        """Whether a write of these rows changed fewer than it should."""
        return False
