"""One table of a relational database, kept equal to a model; the protocol is the same for every database.

Each batch is one transaction under the fence of the sync: the rows and the record of the batch are committed together. Two tables of
ours stand beside the user's; a user's table gets no extra column. A `Dialect` says what its database does differently.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any, ClassVar

import pyarrow as pa

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Applied, Batch, Limits, Mode, Rights, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.fence import refuse_newer, refuse_older
from dbt_reverse_etl.sinks.refusals import LOST_RECORD, rejections
from dbt_reverse_etl.sinks.sql import checks
from dbt_reverse_etl.sinks.sql.claim_record import Part, Unanswered, answer_of, parts_of
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialect import Dialect, OpenMode, RolledBack
from dbt_reverse_etl.sinks.sql.record import Record
from dbt_reverse_etl.sinks.sql.rights import OR_LET_IT_BE_MADE, UNTRIED, Lack, needs
from dbt_reverse_etl.sinks.sql.rows import Writer
from dbt_reverse_etl.sinks.sql.table import Name, Table, Wrong

LOST_AT_COMMIT = "the connection was lost at the commit"
REPLACED = "the file was removed or replaced during the run"


class SqlSink(Sink):
    """Keeps one table of a database equal to a model.

    Class attributes:
        dialect_type: of its database.
        writer_type: writes the rows of a run.
    """

    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    settles_buckets = True
    validates_early = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    dialect_type: ClassVar[type[Dialect]]
    writer_type: ClassVar[type[Writer]]

    _task: SinkTask
    _record: Record
    _writer: Writer

    def __init__(self, settings: Settings) -> None:
        self._settings: Any = settings
        self._dialect: Dialect = self.dialect_type(settings)
        self._lock = threading.Lock()
        self._connection: Any = None
        self._place: Any = None
        self._unanswered: Unanswered | None = None

    @property
    def identity(self) -> str:
        """host:port/database, or the file."""
        return self._dialect.identity

    def place_of(self, object_name: str) -> str:
        """What holds the table, and the table in it."""
        name = self._dialect.object_name(object_name)
        return f"{self._dialect.holder} {self._dialect.one_table(name) if name else object_name}"

    def limits(self, task: SinkTask) -> Limits:
        """Batches that keep the number of commits low."""
        return self._dialect.limits

    def validate(self, task: SinkTask) -> None:
        """Refuse names and decimals that the database does not take, and keys that are not mapped or not compared exactly."""
        raise_if_any(checks.task_problems(task, self._dialect))

    def check(self) -> None:
        """Log in and read, nothing else; a file that is not there is made by the first push."""
        self._refuse(self._dialect.place_problem())
        if self._dialect.absent_file():
            return
        with self._reading() as connection:
            self._refuse(self._dialect.unfit_server(connection) or self._dialect.server_problem(connection))

    def rights(self, task: SinkTask) -> Rights:
        """Ask on a connection of its own, and if no right is missing, look at the table; the rights on a file `check` has seen."""
        dialect, record, name = self._dialect, self._record_of(task), self._name(task)
        ours, creates = (record.fences, record.claims), self._settings.create_object
        wanted = needs(task, name, ours, create_object=creates, insert_only=dialect.insert_only)
        found, table, other = list[Lack](), None, None
        if not dialect.absent_file():
            with self._explained(), closing(dialect.connect("ro")) as connection:
                other = checks.other_case(connection, name, dialect)
                found = dialect.lacks(connection, wanted[:-1] if other else wanted)
                table = None if found else dialect.read_table(connection, name)
        where, expected = f"{dialect.name} database {self.identity}", f"the rights of {dialect.page}"
        missing = [Problem(where, what, expected, next_step) for what, next_step in found]
        if other:
            missing += self._error(*other).problems
        elif table:
            missing += checks.table_problems(table, name, task, dialect)
        elif dialect.is_file and not wanted[-1].is_made:  # a server's lack names it, with the grant
            missing += self._error(f"no table {name}", "an existing table", f"make it; {OR_LET_IT_BE_MADE}").problems
        return Rights(tuple(missing), (UNTRIED,))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the file, the table or the fence row is gone, although rows were delivered."""
        file = self._dialect.absent_file()
        if file:
            return None if task.first else f"no file {file}"
        name, record = self._name(task), self._record_of(task)
        with self._reading() as connection:
            fence = record.fence(connection) if record.exists(connection) else None
            refuse_newer(fence, task)
            if task.first:
                return None
            if not self._dialect.exists(connection, name):
                return f"no table {name}"
            if fence is None:
                setting = self._dialect.state_setting
                moved = f" (was {setting} changed? then set it back)" if hasattr(self._settings, setting) else ""
                return f"no record of this sync in {record.fences}{moved}"
            refuse_older(fence, task)
            return None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one transaction sees it; rows marked by `soft_delete` are left out."""
        name, file = self._name(task), self._dialect.absent_file()
        if file:
            raise self._error(f"no file {file}", "the file of the last push", self._resync)
        with self._reading() as connection:
            table = self._dialect.read_table(connection, name)
            if table is None:
                raise self._error(f"no table {name}", "the table of the last push", self._resync)
            self._refuse(table.wrong)
            missing = [field.name for field in checks.missing_fields(table, task, self._dialect)]
            if missing:
                raise self._error(f"no column {', '.join(missing)} in {name}", "a column for each field", "add it")
            yield from self._dialect.read_rows(connection, name, table, task)

    def open(self, task: SinkTask) -> None:
        """Take the fence and prepare the table."""
        self.validate(task)
        if not task.first and self._dialect.absent_file():
            raise self._error(LOST_RECORD, "the file of the last push", self._resync)
        self._task, self._record = task, self._record_of(task)
        self._unanswered = None
        with self._lock, self._explained():
            self._drop_connection()
            self._open(self._connected("rwc"))
            self._place = self._dialect.place()

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), self._transaction(self._connected()) as connection:
            self._hold_fence(connection)
            self._record.forget(connection, but=claims)
            return {claim: answer_of(self._record.parts(connection, claim)) for claim in claims}

    def applied(self, claim: str) -> Applied:
        """Of the claim that is under way."""
        with self._lock, self._explained(), self._transaction(self._connected()) as connection:
            known = answer_of(self._record.parts(connection, claim))
            return known if isinstance(known, Applied) else Applied()

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; rows that the table refuses are left out of it."""
        changes = self._writer.changes(batch.rows)
        with self._lock:
            try:
                return self._deliver(batch, changes)
            except RolledBack as refusal:
                return Delivery.of_all(batch.rows.num_rows, refusal.outcome, str(refusal))
            except self._dialect.failure_type as error:
                outcome, reason = self._dialect.failure(error)
                if outcome is Outcome.RETRYABLE and not self._dialect.is_file:
                    self._drop_connection()  # the name may lead to another server by now
                return Delivery.of_all(batch.rows.num_rows, outcome, reason)

    def finish(self, claim: str = "", *, complete: bool = False) -> None:
        """Forget the records of all claims but this one."""
        ignored = suppress(self._dialect.failure_type, DestinationError)
        with self._lock, ignored, self._transaction(self._connected()) as connection:
            if not self._record.lost(connection):
                self._record.forget(connection, but=[claim])

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def _open(self, connection: Any) -> None:
        """All in one transaction; where DDL commits, only the fence is taken in one."""
        self._refuse(self._dialect.unfit_server(connection))
        whole = self._dialect.transactional_ddl
        with self._transaction(connection) if whole else nullcontext():
            self._record.create(connection)
            for name in (self._record.fences, self._record.claims):
                self._refuse(self._dialect.unsafe_record(connection, name))
            with nullcontext() if whole else self._transaction(connection):
                self._take_fence(connection)
            name, table = self._name(self._task), self._prepared_table(connection)
            self._writer = self._writer_for(connection, name, table)

    def _writer_for(self, connection: Any, name: Name, table: Table) -> Writer:
        return self.writer_type(self._dialect, self._task, name, table)

    def _deliver(self, batch: Batch, changes: Changes) -> Delivery:
        rows = batch.rows.num_rows
        if self._dialect.place() != self._place:
            return Delivery.of_all(rows, Outcome.FATAL, REPLACED)
        connection = self._connected()
        self._writer.stage(connection, changes)
        with self._rolled_back_on_error(connection):
            self._dialect.begin(connection)
            lost = self._record.lost(connection)
            early = Delivery.of_all(rows, Outcome.FATAL, lost) if lost else self._late_answer(connection, batch)
            if early:
                self._dialect.run(connection, "ROLLBACK")
                return early
            refused = changes.refused | self._writer.write(connection, changes)
            parts = parts_of(batch, refused)
            self._record.add(connection, batch.claim, parts)
            doubt = self._commit(connection)
        answer = rejections(refused)
        return answer if doubt is None else self._after_lost_commit(batch, parts[0], answer, doubt)

    def _commit(self, connection: Any) -> str | None:
        """Why nobody knows whether it was carried out; None: it was. Raises where it surely was not."""
        try:
            self._dialect.run(connection, "COMMIT")
        except self._dialect.failure_type as error:
            if self._dialect.is_rolled_back(connection, error):
                raise
            return self._dialect.failure(error)[1]
        return None

    def _after_lost_commit(self, batch: Batch, part: Part, answer: Delivery, doubt: str) -> Delivery:
        """Ask the record, on a connection of its own, which answers only when the doubtful transaction has ended."""
        rows = batch.rows.num_rows
        self._drop_connection()
        try:
            if self._dialect.is_file:  # whose disk has just failed
                is_recorded, unsure = False, doubt
            else:
                with self._transaction(self._connected()) as connection:
                    unsure = self._record.lost(connection) or ""
                    is_recorded = self._record.has(connection, batch.claim, part)
        except self._dialect.failure_type as error:
            is_recorded, unsure = False, self._dialect.failure(error)[1]
        if is_recorded:
            return answer
        if not unsure:  # a newer run may have removed the record
            return Delivery.of_all(rows, Outcome.RETRYABLE, "the connection was lost, the batch was rolled back")
        self._unanswered = Unanswered(batch, part, answer)
        return Delivery.of_all(rows, Outcome.UNKNOWN, f"{LOST_AT_COMMIT}; {unsure}")

    def _late_answer(self, connection: Any, batch: Batch) -> Delivery | None:
        """Of a commit that had none, where its batch comes again and was carried out after all."""
        before = self._unanswered
        if before and before.is_of(batch) and self._record.has(connection, batch.claim, before.part):
            return before.answer
        return None

    def _hold_fence(self, connection: Any) -> None:
        lost = self._record.lost(connection)
        if lost:
            raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")

    def _take_fence(self, connection: Any) -> None:
        lost, fences = self._record.take(connection, first=self._task.first), self._record.fences
        if lost == LOST_RECORD:
            raise self._error(lost, f"the row of sync {self._task.sync} in {fences}", self._resync)
        if lost:
            found = f"{lost} (fence {self._record.fence(connection)})"
            next_step = f"let it finish; if the ledger was reset, remove the row of {self._task.sync_id} from {fences}"
            raise self._error(found, f"none newer than {self._task.fence}", next_step)

    def _prepared_table(self, connection: Any) -> Table:
        name = self._name(self._task)
        table = self._dialect.read_table(connection, name)
        if table is None:
            self._create(connection, name)
        elif self._dialect.adds_columns:
            for field in checks.fields_to_add(table, self._task, self._dialect):
                self._dialect.run(connection, checks.add_column(self._dialect, name, field))
        table = self._dialect.read_table(connection, name)
        if table is None:
            raise self._error(f"no table {name}", "the table just made", "push again")
        problems = checks.table_problems(table, name, self._task, self._dialect)
        if problems:
            raise DestinationError(*problems)
        return table

    def _create(self, connection: Any, name: Name) -> None:
        if not self._task.first:
            raise self._error(f"the table {name} has vanished", "the table of the last push", self._resync)
        self._refuse(checks.other_case(connection, name, self._dialect))
        statement = checks.create_table(self._dialect, name, self._task)
        if not self._settings.create_object or self._task.mode is Mode.UPDATE_ONLY:
            next_step = f"run: {statement}; {OR_LET_IT_BE_MADE}"
            raise self._error(f"no table {name}", "an existing table", next_step)
        self._dialect.run(connection, statement)

    def _name(self, task: SinkTask) -> Name:
        name = self._dialect.object_name(task.object)
        if name is None:
            raise ConfigurationError(*checks.task_problems(task, self._dialect))
        return name

    def _record_of(self, task: SinkTask) -> Record:
        return Record(self._dialect, self._dialect.state_schema or self._name(task).schema, task.sync_id, task.fence)

    def _connected(self, mode: OpenMode = "rw") -> Any:
        if self._connection is None or not self._dialect.is_open(self._connection):
            self._connection = self._dialect.connect(mode)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._dialect.failure_type):
                connection.close()

    @contextmanager
    def _transaction(self, connection: Any, *, read_only: bool = False) -> Iterator[Any]:
        with self._rolled_back_on_error(connection):
            self._dialect.begin(connection, read_only=read_only)
            yield connection
            self._dialect.run(connection, "COMMIT")

    @contextmanager
    def _rolled_back_on_error(self, connection: Any) -> Iterator[None]:
        """Leaves no transaction open behind an error."""
        try:
            yield
        except BaseException:
            with suppress(self._dialect.failure_type):
                self._dialect.run(connection, "ROLLBACK")
            raise

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        with (
            self._explained(),
            closing(self._dialect.connect("ro")) as connection,
            self._transaction(connection, read_only=True),
        ):
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._dialect.failure_type as error:
            _, reason = self._dialect.failure(error)
            expected = "a database that can be read and written"
            next_step = self._dialect.next_step(error) or f"see {self._dialect.page}, then push again"
            raise self._error(reason, expected, next_step) from None

    @property
    def _resync(self) -> str:
        kind = "file" if self._dialect.is_file else "database"
        return f"restore the {kind}, or dbt run-operation resync for this sync"

    def _refuse(self, wrong: Wrong | None) -> None:
        if wrong:
            raise self._error(*wrong)

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        kind = "file" if self._dialect.is_file else "database"
        return DestinationError(Problem(f"{self._dialect.name} {kind} {self.identity}", found, expected, next_step))
