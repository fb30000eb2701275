"""A table of an SQLite file. Types: see `values`.

Each batch is one transaction: the fence row is checked, the rows and their record are written, commit.
Two tables of our own stand beside the user's tables; a user's table gets no extra column.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pydantic import Field, field_validator

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Applied, Batch, Limits, Mode, Rights, Settings, Sink, SinkTask, refuse_newer
from dbt_reverse_etl.sinks.reading import rows_of
from dbt_reverse_etl.sinks.sql.claim_record import Part, Unanswered, answers_of, parts_of
from dbt_reverse_etl.sinks.sql.database import FENCES, LOST_RECORD, RolledBack, fence_not_taken, rejections
from dbt_reverse_etl.sinks.sql.rights import UNTRIED
from dbt_reverse_etl.sinks.sql.sqlite.record import Record
from dbt_reverse_etl.sinks.sql.sqlite.rows import DISK_FULL, RowWriter, failure
from dbt_reverse_etl.sinks.sql.sqlite.table import (
    object_exists,
    select,
    statements,
    table_problems,
    task_problems,
)
from dbt_reverse_etl.sinks.sql.sqlite.values import Changes, changes_of, texts_of

OLDEST_SQLITE = (3, 31, 0)  # the first that tells generated columns
READ_AT_ONCE = 100_000
RESYNC = "restore the file, or dbt run-operation resync for this sync"


class SqliteSettings(Settings):
    """What profiles.yml says about an SQLite destination.

    Attributes:
        path: the file; it is created by the first push, its directory is not.
        create_object: make a missing table, with the key as its PRIMARY KEY.
        timeout: seconds to wait for another program's lock.
    """

    path: str = Field(min_length=1)
    create_object: bool = True
    timeout: float = Field(default=30.0, ge=0, le=3600)

    @field_validator("path")
    @classmethod
    def _is_a_file(cls, path: str) -> str:
        if path.startswith((":", "file:")) or "\0" in path:
            raise ValueError("expected the path of a file, not a URI and not a database in memory")
        return path


class SqliteSink(Sink):
    """Keeps one table of an SQLite file equal to a model."""

    type = "sqlite"
    settings_model = SqliteSettings
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    transactional = True
    settles_buckets = True
    validates_early = True
    promise = "Exactly-once effect, in order per key: the rows and their record are one transaction."

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, SqliteSettings)  # noqa: S101  (the engine validates with settings_model)
        self._settings = settings
        self._path = Path(settings.path).expanduser().resolve()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @property
    def identity(self) -> str:
        """The absolute path, links followed."""
        return str(self._path)

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """One writer, and batches that keep the number of commits low."""
        return Limits(rows=50_000, bytes=32 * 2**20, concurrency=1)

    def validate(self, task: SinkTask) -> None:
        """Refuse reserved names, keys that are not mapped, and types without an SQLite form."""
        problems = task_problems(task)
        if problems:
            raise ConfigurationError(*problems)

    def check(self) -> None:
        """Read the file if it is there; never creates it."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise self._error(f"SQLite {sqlite3.sqlite_version}", "3.31 or newer", "use a newer Python")
        directory = self._path.parent
        if not directory.is_dir():
            raise self._error("no such directory", "an existing directory", f"make it: mkdir -p '{directory}'")
        if not os.access(directory, os.W_OK):
            raise self._error("a directory that cannot be written", "write permission", "change its permissions")
        if not self._path.exists():
            return
        if not self._path.is_file() or not os.access(self._path, os.R_OK | os.W_OK):
            raise self._error("no file that can be read and written", "a regular file", "change path or permissions")
        with self._explained(), closing(self._connect("ro")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (a file has no rights of its own tables)
        """`check` has looked at the file."""
        return Rights(untried=(UNTRIED,))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the file, the table or the fence row is gone, although rows were delivered."""
        if not self._path.exists():
            return None if task.first else f"the file {self._path}"
        with self._explained(), closing(self._connect("ro")) as connection:
            fence = _record_of(task).fence(connection) if object_exists(connection, FENCES) else None
            refuse_newer(fence, task)
            if task.first:
                return None
            if not object_exists(connection, task.object):
                return f"the table {task.object}"
            return f"the record of this sync in {FENCES}" if fence is None else None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """The table as one query sees it."""
        with self._explained(), closing(self._connect("ro")) as connection:
            # A text that is not UTF-8 is a row that differs, no error.
            connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
            cursor = connection.execute(select(task))
            while rows := cursor.fetchmany(READ_AT_ONCE):
                columns = zip(*rows, strict=True)
                texts = {name: texts_of(column) for name, column in zip(task.schema.names, columns, strict=True)}
                yield rows_of(texts, task.schema)

    def open(self, task: SinkTask) -> None:
        """Take the fence and prepare the table, in one transaction."""
        self.validate(task)
        if not task.first and not self._path.exists():
            raise self._error(LOST_RECORD, "the file of the last push", RESYNC)
        self._task, self._record, self._sql = task, _record_of(task), statements(task)
        self._unanswered = Unanswered()
        with self._lock, self._explained():
            self._drop_connection()
            self._connection = self._connect("rwc")
            with _transaction(self._connection):
                self._take_fence(self._connection)
                self._prepare_table(self._connection)
            self._file = self._file_now()

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        """Answers stay the same until the ledger no longer lists a claim as open."""
        with self._lock, self._explained(), _transaction(self._connected()) as connection:
            lost = self._record.lost(connection)
            if lost:
                raise self._error(lost, f"fence {self._task.fence}", "let the other run finish, then push again")
            self._record.forget(connection, but=claims)
            answers = answers_of(self._record.parts(connection))
            return {claim: answers.get(claim) for claim in claims}

    def deliver(self, batch: Batch) -> Delivery:
        """Apply one batch and its record in one transaction; rows that the table refuses are left out of it."""
        with self._lock:
            changes = changes_of(batch.rows, self._task.schema.names, self._task.key)
            try:
                return self._deliver(batch, changes)
            except RolledBack as refusal:
                return Delivery.of_all(batch.rows.num_rows, Outcome.REJECTED, str(refusal))
            except sqlite3.Error as error:
                return Delivery.of_all(batch.rows.num_rows, *failure(error))

    def finish(self, claim: str = "") -> None:
        """Forget the records of all claims but this one."""
        with self._lock, suppress(sqlite3.Error, DestinationError), _transaction(self._connected()) as connection:
            if not self._record.lost(connection):
                self._record.forget(connection, but=[claim])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._drop_connection()

    def _deliver(self, batch: Batch, changes: Changes) -> Delivery:
        rows = batch.rows.num_rows
        if self._file_now() != self._file:
            return Delivery.of_all(rows, Outcome.FATAL, "the file was removed or replaced during the run")
        connection = self._connected()
        with _rollback_on_error(connection):
            connection.execute("BEGIN IMMEDIATE")
            lost = self._record.lost(connection)
            if lost:
                connection.execute("ROLLBACK")
                return Delivery.of_all(rows, Outcome.FATAL, lost)
            before = self._unanswered
            if before.is_of(batch) and self._record.has(connection, batch.claim, before.part):
                connection.execute("ROLLBACK")
                return before.answer
            refused = changes.refused | RowWriter(connection, self._sql, self._task.mode).write(changes)
            parts = parts_of(batch, refused)
            self._record.add(connection, batch.claim, parts)
            return self._commit(connection, batch, parts[0], rejections(refused))

    def _commit(self, connection: sqlite3.Connection, batch: Batch, part: Part, answer: Delivery) -> Delivery:
        """Only a lock and a full disk leave surely nothing on the disk."""
        try:
            connection.execute("COMMIT")
        except sqlite3.IntegrityError as error:
            raise RolledBack("a deferred constraint of the table refused the batch") from error
        except sqlite3.Error as error:
            outcome, reason = failure(error)
            if outcome is Outcome.RETRYABLE or reason == DISK_FULL:
                raise
            self._drop_connection()
            self._unanswered.note(batch, part, answer)
            return Delivery.of_all(batch.rows.num_rows, Outcome.UNKNOWN, f"{reason}, at the commit")
        return answer

    def _take_fence(self, connection: sqlite3.Connection) -> None:
        self._record.create(connection)
        lost = self._record.take(connection, first=self._task.first)
        if lost:
            fence = self._record.fence(connection)
            raise self._error(*fence_not_taken(self._task, lost, fence, FENCES))

    def _prepare_table(self, connection: sqlite3.Connection) -> None:
        task = self._task
        if object_exists(connection, task.object):
            problems = table_problems(connection, task)
            if problems:
                raise DestinationError(*problems)
        elif not task.first:
            raise self._error(f"the table {task.object} has vanished", "the table of the last push", RESYNC)
        elif not self._settings.create_object or task.mode is Mode.UPDATE_ONLY:
            next_step = "create it, or set create_object: true and a mode that inserts"
            raise self._error(f"no table {task.object}", "an existing table", next_step)
        else:
            connection.execute(self._sql.create)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect("rw")
        return self._connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self._settings.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        # The user's constraints hold for us too, and an acknowledged commit survives a power cut.
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _file_now(self) -> tuple[int, int] | None:
        """Tells the file apart from one that replaced it: writes to an unlinked file would vanish without an error."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            _, reason = failure(error)
            expected, next_step = "an SQLite file that can be read and written", "see the reason, then push again"
            raise self._error(reason, expected, next_step) from error

    def _error(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"SQLite file {self._path}", found, expected, next_step))


def _record_of(task: SinkTask) -> Record:
    return Record(task.sync_id, task.fence)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with _rollback_on_error(connection):
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


@contextmanager
def _rollback_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise
