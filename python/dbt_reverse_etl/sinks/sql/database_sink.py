"""What the sinks of database servers do alike: the fence, one transaction for a batch and its record, commits without an answer.

A sink of one database says the rest: how to connect, its SQL, and what its errors mean.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Applied, Batch, Mode, Rights, Settings, Sink, SinkTask, refuse_newer
from dbt_reverse_etl.sinks.sql.claim_record import Part, Unanswered, answer_of, answers_of, parts_of, whole_part
from dbt_reverse_etl.sinks.sql.database import CLAIMS, NEVER_DELETES, RESYNC, RolledBack, fence_not_taken, rejections
from dbt_reverse_etl.sinks.sql.rights import UNTRIED, Lack

LOST_AT_COMMIT = "the connection was lost at the commit"


@dataclass(frozen=True)
class Database:
    """What the modules of one database offer under the same names.

    Attributes:
        name: what people call it.
        failure_type: base of the driver's errors.
    """

    name: str
    failure_type: type[Exception]
    failure: Callable[[Any], tuple[Outcome, str]]
    rollback_on_error: Callable[[Any], AbstractContextManager[None]]
    read_table: Callable[[Any, Any], Any]
    read_rows: Callable[[Any, Any, Any, SinkTask], Iterator[pa.Table]]
    table_problems: Callable[[Any, Any, SinkTask], list[Problem]]
    create_table: Callable[[Any, SinkTask], Any]
    missing_fields: Callable[[Any, SinkTask], list[pa.Field]]
    add_column: Callable[[Any, pa.Field], Any]


class DatabaseSink(Sink):
    """Keeps one table of a database server equal to a model; a subclass says what its database does differently.

    Class attributes:
        database: its modules.
    """

    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    settles_buckets = True
    distributable = True
    full_loads = True
    validates_early = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    database: ClassVar[Database]

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, self.settings_model)  # noqa: S101  (the engine validates with it)
        self._settings: Any = settings
        self._lock = threading.Lock()
        self._connection: Any = None
        self._unanswered = Unanswered()

    @property
    def identity(self) -> str:
        """host:port/database."""
        host = self._settings.host if self._settings.host.startswith("/") else self._settings.host.lower()
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self._settings.port}/{self._settings.database}"

    def validate(self, task: SinkTask) -> None:
        """Refuse names that the database does not take, keys that are not mapped, and types without an exact form."""
        problems = self._task_problems(task)
        if problems:
            raise ConfigurationError(*problems)

    def rights(self, task: SinkTask) -> Rights:
        """Ask the server, on a connection of its own; nothing is written."""
        fences = self._record_of(task).fences
        with self._explained(), closing(self._connect()) as connection:
            found = self._lacks(connection, task, [fences, replace(fences, name=CLAIMS)])
        where, expected = f"{self.database.name} database {self.identity}", f"the rights of docs/{self.type}.md"
        return Rights(tuple(Problem(where, what, expected, next_step) for what, next_step in found), (UNTRIED,))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the table or the fence row is gone, although rows were delivered."""
        name, record = self._name(task), self._record_of(task)
        with self._reading() as connection:
            fence = record.fence(connection) if record.exists(connection) else None
            refuse_newer(fence, task)
            if task.first:
                return None
            if self.database.read_table(connection, name) is None:
                return f"the table {name}"
            return f"the record of this sync in {record.fences}" if fence is None else None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one transaction sees it; rows marked by `soft_delete` are left out."""
        name = self._name(task)
        with self._reading() as connection:
            table = self.database.read_table(connection, name)
            if table is None:
                raise self._error(f"no table {name}", "the table of the last push", RESYNC)
            problems = self.database.table_problems(table, name, task)
            if problems:
                raise DestinationError(*problems)
            yield from self.database.read_rows(connection, name, table, task)

    def open(self, task: SinkTask) -> None:
        """Take the fence and prepare the table."""
        self.validate(task)
        self._task, self._record = task, self._record_of(task)
        self._loaded = self._left_out = 0
        self._unanswered = Unanswered()
        with self._lock, self._explained():
            self._drop_connection()
            self._open(self._connected())

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), self._transaction(self._connected()) as connection:
            self._hold_fence(connection)
            self._record.forget(connection, but=claims)
            answers = answers_of(self._record.parts(connection))
            return {claim: answers.get(claim) for claim in claims}

    def applied(self, claim: str) -> Applied:
        """Of the claim that is under way."""
        with self._lock, self._explained(), self._transaction(self._connected()) as connection:
            known = answer_of(part for _, part in self._record.parts(connection, claim))
            return known if isinstance(known, Applied) else Applied()

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; rows that the table refuses are left out of it."""
        changes = self._changes(batch.rows, None if self._task.mode is Mode.MIRROR else NEVER_DELETES)
        with self._lock:
            try:
                return self._deliver(batch, changes)
            except RolledBack as refusal:
                return Delivery.of_all(batch.rows.num_rows, refusal.outcome, str(refusal))
            except self.database.failure_type as error:
                return Delivery.of_all(batch.rows.num_rows, *self.database.failure(error))

    def swap(self, claim: str) -> None:
        """The loaded rows take the place of what the object holds."""
        with self._lock, self._explained():
            self._swap(self._connected(), claim)

    def finish(self, claim: str = "") -> None:
        """Forget the records of all claims but this one."""
        with (
            self._lock,
            suppress(self.database.failure_type, DestinationError),
            self._transaction(self._connected()) as connection,
        ):
            if not self._record.lost(connection):
                self._record.forget(connection, but=[claim])

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop_connection()

    @abstractmethod
    def _lacks(self, connection: Any, task: SinkTask, record: Sequence[Any]) -> list[Lack]:
        """What the login lacks for a push, on the object and on the tables of our record."""

    @abstractmethod
    def _task_problems(self, task: SinkTask) -> list[Problem]:
        """What makes a task impossible on any table."""

    @abstractmethod
    def _object_name(self, task: SinkTask) -> Any:
        """The object as a name, or None."""

    @abstractmethod
    def _record_of(self, task: SinkTask) -> Any:
        """Our two tables: the fence of the sync, and one row for each batch that was applied."""

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, in autocommit mode."""

    @abstractmethod
    def _is_connected(self, connection: Any) -> bool:
        """Whether a connection may still be used."""

    @abstractmethod
    def _begin(self, connection: Any, *, read_only: bool = False) -> None:
        """Start a transaction."""

    @abstractmethod
    def _run(self, connection: Any, statement: Any) -> Any:
        """One statement."""

    @abstractmethod
    def _is_rolled_back(self, connection: Any, error: Any) -> bool:
        """Whether a COMMIT that failed so was surely not carried out. Raises RolledBack where the rows are at fault."""

    @abstractmethod
    def _open(self, connection: Any) -> None:
        """Take the fence and prepare the table."""

    @abstractmethod
    def _changes(self, rows: pa.Table, deletes: str | None) -> Any:
        """The rows of a batch in the form of the database; all deletes are refused if `deletes` says why."""

    def _stage(self, connection: Any, changes: Any) -> None:
        """What is done before the transaction of a batch."""

    @abstractmethod
    def _write(self, connection: Any, changes: Any) -> dict[int, str]:
        """Apply a batch in the transaction that is open: index -> reason of each row that the table refused."""

    @abstractmethod
    def _swap(self, connection: Any, claim: str) -> None:
        """The end of a full load. Raises DestinationError, or the driver's error."""

    def _shown(self, statement: Any) -> str:
        """A statement as text."""
        return str(statement)

    def _deliver(self, batch: Batch, changes: Any) -> Delivery:
        connection = self._connected()
        self._stage(connection, changes)
        with self.database.rollback_on_error(connection):
            self._begin(connection)
            lost = self._record.lost(connection)
            if lost:
                self._run(connection, "ROLLBACK")
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, lost)
            late = self._late_answer(connection, batch)
            if late:
                self._run(connection, "ROLLBACK")
                return late
            refused = changes.refused | self._write(connection, changes)
            if self._task.full_load:
                return self._loaded_by(connection, batch.rows.num_rows, refused, batch.left_out + len(refused))
            parts = parts_of(batch, refused)
            self._record.add(connection, batch.claim, parts)
            if self._commit(connection):
                return rejections(refused)
        return self._after_lost_commit(batch, parts[0], rejections(refused))

    def _loaded_by(self, connection: Any, rows: int, refused: Mapping[int, str], left_out: int) -> Delivery:
        """No record before the swap. Nobody reads what is loaded, and a key replaces itself: what is in doubt may be sent again."""
        if not self._commit(connection):
            self._drop_connection()
            return Delivery.of_all(rows, Outcome.RETRYABLE, LOST_AT_COMMIT)
        self._loaded += rows - len(refused)
        self._left_out += left_out
        return rejections(refused)

    def _commit(self, connection: Any) -> bool:
        """Whether it is known that it was carried out."""
        try:
            self._run(connection, "COMMIT")
        except self.database.failure_type as error:
            if self._is_rolled_back(connection, error):
                raise
            return False
        return True

    def _after_lost_commit(self, batch: Batch, part: Part, answer: Delivery) -> Delivery:
        rows = batch.rows.num_rows
        is_recorded, unsure = self._recorded(batch.claim, part)
        if is_recorded:
            return answer
        if not unsure:  # a newer run may have removed the record
            return Delivery.of_all(rows, Outcome.RETRYABLE, "the connection was lost, the batch was rolled back")
        self._unanswered.note(batch, part, answer)
        return Delivery.of_all(rows, Outcome.UNKNOWN, f"{LOST_AT_COMMIT}; {unsure}")

    def _late_answer(self, connection: Any, batch: Batch) -> Delivery | None:
        """Of a commit that had none, where its batch comes again and was carried out after all."""
        before = self._unanswered
        return before.answer if before.is_of(batch) and self._record.has(connection, batch.claim, before.part) else None

    def _recorded(self, claim: str, part: Part) -> tuple[bool, str | None]:
        """Whether a commit without an answer was carried out, and why a no is not sure.

        It asks the record, on a connection of its own, which answers only when the doubtful transaction has ended."""
        try:
            self._drop_connection()
            with self._transaction(self._connected()) as connection:
                lost = self._record.lost(connection)
                return self._record.has(connection, claim, part), lost
        except self.database.failure_type as error:
            return False, self.database.failure(error)[1]

    def _swapped_in_a_transaction(self, connection: Any, claim: str, replace: Callable[[], str | None]) -> None:
        """`replace` puts the loaded rows in place, or says why that cannot be; the claim is closed with it."""
        part = whole_part(self._left_out)
        try:
            with self.database.rollback_on_error(connection):
                self._begin(connection)
                self._hold_fence(connection)
                wrong = replace()
                if wrong:
                    raise self._error(wrong, "the rows that were loaded", "push again")
                self._record.add(connection, claim, [part])
                is_sure = self._commit(connection)
        except RolledBack as refusal:
            raise self._not_taken(str(refusal)) from None
        if not is_sure and not self._recorded(claim, part)[0]:
            raise self._error(LOST_AT_COMMIT, "an answer", "push again: the next run asks what became of it")

    def _not_taken(self, reason: str) -> DestinationError:
        """A row was refused that the table beside the object had taken."""
        next_step = "set owns_object: false, so that such rows are found and listed one by one"
        return self._error(f"{reason}, when the loaded rows were put in place", "rows that the object takes", next_step)

    def _hold_fence(self, connection: Any) -> None:
        lost = self._record.lost(connection)
        if lost:
            raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")

    def _take_fence(self, connection: Any) -> None:
        lost = self._record.take(connection, first=self._task.first)
        if lost:
            fence = self._record.fence(connection)
            raise self._error(*fence_not_taken(self._task, lost, fence, self._record.fences))

    def _prepared_table(self, connection: Any) -> Any:
        name = self._name(self._task)
        table = self.database.read_table(connection, name)
        if table is None:
            self._create(connection, name)
        elif self._settings.on_new_column == "add":
            for field in self.database.missing_fields(table, self._task):
                self._run(connection, self.database.add_column(name, field))
        table = self.database.read_table(connection, name)
        if table is None:
            raise self._error(f"no table {name}", "the table just made", "push again")
        problems = self.database.table_problems(table, name, self._task)
        if problems:
            raise DestinationError(*problems)
        return table

    def _create(self, connection: Any, name: Any) -> None:
        if not self._task.first:
            raise self._error(f"the table {name} has vanished", "the table of the last push", RESYNC)
        statement = self.database.create_table(name, self._task)
        if not self._settings.create_object or self._task.mode is Mode.UPDATE_ONLY:
            next_step = f"run: {self._shown(statement)}; or set create_object: true and a mode that inserts"
            raise self._error(f"no table {name}", "an existing table", next_step)
        self._run(connection, statement)

    def _name(self, task: SinkTask) -> Any:
        name = self._object_name(task)
        if name is None:
            raise ConfigurationError(*self._task_problems(task))
        return name

    def _connected(self) -> Any:
        if self._connection is None or not self._is_connected(self._connection):
            self._connection = self._connect()
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self.database.failure_type):
                connection.close()

    @contextmanager
    def _transaction(self, connection: Any, *, read_only: bool = False) -> Iterator[Any]:
        with self.database.rollback_on_error(connection):
            self._begin(connection, read_only=read_only)
            yield connection
            self._run(connection, "COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        with (
            self._explained(),
            closing(self._connect()) as connection,
            self._transaction(connection, read_only=True),
        ):
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self.database.failure_type as error:
            _, reason = self.database.failure(error)
            next_step = f"see docs/{self.type}.md, then push again"
            raise self._error(reason, "a database that can be read and written", next_step) from None

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"{self.database.name} database {self.identity}", found, expected, next_step))
