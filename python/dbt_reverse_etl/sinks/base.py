"""The contract between the delivery engine and a sink.

The engine calls, in one process and for one sync:

    sink = SinkClass(settings)            # validated settings, no I/O
    sink.check()                          # read-only: can the destination be reached with these credentials?
    sink.rights(task)                     # read-only, for `dbt-reverse-etl check` alone: what would a push lack?
    sink.open(task)                       # checks the object and the fields; takes the fence where there is one
    sink.settle(claims)                   # transactional sinks only: what became of the claims of a crashed run
    sink.prepare(rows) ...                # optional: what costs less for some thousands of rows at once
    sink.deliver(batch) ...               # from `limits.concurrency` threads at once, as `prepare`
    sink.swap(claim)                      # full loads only: what was delivered takes the place of what the object holds
    sink.close()

Waves, retries, backoff, rate limits, bisection and progress belong to the engine, never to a sink.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.base.untraced import without_traces
from dbt_reverse_etl.sinks.buckets import BatchBuckets
from dbt_reverse_etl.sinks.ranges import Ranges

OPERATION, EVENT_ID = "_operation", "_event_id"
# What a sink may ask for beside them: the snapshot of the key's last change (int64), its time (timestamp in UTC), and the row that the
# destination holds because of us: a struct of the task's fields, NULL where it holds none or where that is not known.
SNAPSHOT, CAPTURED_AT, BEFORE = "_changed", "_captured_at", "_before"


class Mode(str, Enum):
    """What a sync may do to its object."""

    UPSERT = "upsert"
    MIRROR = "mirror"
    INSERT_ONLY = "insert_only"
    UPDATE_ONLY = "update_only"
    CHANGELOG = "changelog"

    @property
    def deletes(self) -> bool:
        """Whether the destination is told of deletes."""
        return self in (Mode.MIRROR, Mode.CHANGELOG)


class Settings(BaseModel):
    """Base of a sink's settings: unknown keys are errors, secrets are `SecretStr`, and pydantic's text of an error shows no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Options(Settings):
    """What one sync may say to this type of sink under `meta.reverse_etl.options`."""


@dataclass(frozen=True)
class Limits:
    """What the engine must respect."""

    rows: int = 10_000  # most in one batch
    bytes: int = 16 * 2**20  # most of Arrow data in one batch
    concurrency: int = 1  # how many `deliver` calls may run at once
    requests_per_second: float | None = None  # budget of the whole sync


@dataclass(frozen=True)
class SinkTask:
    """One sync as its sink sees it.

    Attributes:
        sync_id: stable identity of the sync, a hex string.
        sync: its name, for messages.
        fence: grows with each run of the sync; a transactional sink refuses an older one.
        object: table, path or endpoint.
        mode: what may be done.
        key: the destination fields that identify a row, in order.
        schema: the destination fields with their Arrow types, in order, key fields included.
        first: nothing was delivered by this sync before; a transactional sink that holds no record of an earlier fence
            although this is False lost its data, and raises DestinationError that offers `resync`.
        options: the sink's own `Options`, validated.
        project_dir: the dbt project to which files in the options are relative; None: that of the working directory.
        texts: contents of those files, where the task is another machine's that has no project: `Sink.texts`.
        full_load: the one claim of this run holds every row that the object shall hold, all of them inserts. They are loaded beside it,
            where nobody sees them, until `Sink.swap`; only for a sink with `full_loads`.
        owns_object: a full load replaces whatever the object holds, so that nothing of it is anybody else's.
        sends_all: this run is the first of those that send every row: nothing was delivered, or all of it was asked for again.
        adopted: of `adopt` alone: the object holds every row, whoever wrote it.
        wrote: of `Sink.missing` alone: the run of `fence` has written, so that no record of it is older.
        known: what of `schema` is known. `types`: all of it. Before the model is read, for `Sink.validate` and `Sink.rights` alone: `names`, for `fields`
            names them, and each stands there as a text; `key`: nothing but the key fields, as texts, for `fields` names none.
    """

    sync_id: str
    sync: str
    fence: int
    object: str
    mode: Mode
    key: tuple[str, ...]
    schema: pa.Schema
    first: bool = True
    options: Options = field(default_factory=Options)
    project_dir: Path | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    full_load: bool = False
    owns_object: bool = False
    sends_all: bool = False
    adopted: bool = False
    wrote: bool = False
    known: Literal["key", "names", "types"] = "types"


def always() -> bool:
    """Nobody counts requests."""
    return True


@dataclass(frozen=True)
class Batch:
    """Rows to deliver, each key at most once.

    Attributes:
        rows: columns `_operation` (insert, update, delete), `_event_id` (hex, stable over retries of one change), the
            `Sink.extra_columns`, and the fields of the task's schema. A delete carries the key fields; the others are NULL.
        claim: id of the claim that covers the rows.
        last: no further batch of this claim follows.
        left_out: rows of this claim that were planned and are not in any batch (parked, waiting).
        prepared: what `Sink.prepare` returned for these rows; None: it was not asked.
        buckets: which buckets of the claim the batch completes, for a sink that `settles_buckets`; None: that is not known.
        go_on: a sink that makes several requests of one batch asks it before each but the first: it waits for the budget of requests.
            False: the sync stops, and the rows of further requests are RETRYABLE. What it raises must pass through `deliver`.
    """

    rows: pa.Table
    claim: str
    last: bool = True
    left_out: int = 0
    prepared: Sequence[Any] | None = None
    buckets: BatchBuckets | None = None
    go_on: Callable[[], bool] = always


@dataclass(frozen=True)
class Applied:
    """What a sink's records say of the buckets of a claim. In all others nothing was applied, and nothing can be any more."""

    delivered: Ranges = ()  # every planned row of these was applied
    in_doubt: Ranges = ()  # some rows of these were applied and others were left out


@dataclass(frozen=True)
class Rights:
    """What a push needs at its destination, as far as it can be asked without writing."""

    missing: tuple[Problem, ...] = ()  # what it refuses, each with what grants it
    untried: tuple[str, ...] = ()  # what only a push will show, in a few words each


# The calls that may reach the destination, with keys, rows and credentials that must not get into traces.
_REACHING = frozenset(
    ["check", "rights", "open", "missing", "read", "settle", "applied", "prepare", "deliver", "swap", "finish", "close"]
)


_AnyOptions = TypeVar("_AnyOptions", bound=Options)


def options_of(task: SinkTask, model: type[_AnyOptions]) -> _AnyOptions:
    """The options of a task, or their defaults."""
    return task.options if isinstance(task.options, model) else model.model_validate({})


class Sink(ABC):
    """A type of destination.

    Class attributes:
        type: the word in profiles.yml.
        settings_model, options_model: what profiles.yml and `meta.reverse_etl.options` may say.
        modes: the modes that it can carry out.
        transactional: it keeps the record of each claim in the transaction of the data, and refuses old fences.
        settles_buckets: that record says which buckets of the claim each batch completes: `Batch.buckets`.
        distributable: it can be made and opened in several processes on other machines at once, each of which delivers other
            rows of one claim; the driver then closes the claim with an empty batch.
        full_loads: it can carry out a task with `full_load`.
        validates_early: `validate` is asked before the model is read, too, and heeds `SinkTask.known`.
        promise: one sentence for the documentation.
    """

    type: ClassVar[str]
    settings_model: ClassVar[builtins.type[Settings]] = Settings
    options_model: ClassVar[builtins.type[Options]] = Options
    modes: ClassVar[frozenset[Mode]]
    transactional: ClassVar[bool] = False
    settles_buckets: ClassVar[bool] = False
    distributable: ClassVar[bool] = False
    full_loads: ClassVar[bool] = False
    validates_early: ClassVar[bool] = False
    promise: ClassVar[str]

    @abstractmethod
    def __init__(self, settings: Settings) -> None: ...

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for call in _REACHING & vars(cls).keys():
            setattr(cls, call, without_traces(vars(cls)[call]))

    @classmethod
    def can_be_read(cls) -> bool:
        """Whether it says by `read` what an object holds."""
        return cls.read is not Sink.read

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names the destination without its credentials: the same text means the same rows, e.g. host and database."""

    def place_of(self, object_name: str) -> str:
        """Names an object of this destination: however it is spelled, the same rows have the same text."""
        return f"{self.identity} {object_name}"

    @property
    def address(self) -> str:
        """Where it is, for messages: no credential, and no path that may hold one."""
        return self.identity

    def problem(self, found: str, expected: str, next_step: str) -> DestinationError:
        """An error of this destination."""
        return DestinationError(Problem(f"destination {self.address}", found, expected, next_step))

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (a sink may depend on the options)
        """Limits for this sync."""
        return Limits()

    def extra_columns(self, task: SinkTask) -> tuple[str, ...]:  # noqa: ARG002  (most sinks need none)
        """Which of SNAPSHOT, CAPTURED_AT and BEFORE each row shall carry."""
        return ()

    def texts(self, task: SinkTask) -> Mapping[str, str]:  # noqa: ARG002  (most sinks read no file)
        """Contents of the files that the options of a sync name, by that name: its tasks on executors get them as `task.texts`."""
        return {}

    def validate(self, task: SinkTask) -> None:  # noqa: B027  (most sinks accept every task)
        """Refuse a task that could never work (placeholders, modes, types) before anything is sent; no I/O. Raises ConfigurationError with
        every problem at once."""

    @abstractmethod
    def check(self) -> None:
        """Reach the destination, read-only. Raises DestinationError."""

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (most sinks cannot ask)
        """Ask, without writing and without `open`, whether the destination would let a push of this task; after `check`.
        Raises DestinationError."""
        return Rights(untried=(f"whether it takes rows: a destination of type {self.type} cannot be asked",))

    @abstractmethod
    def open(self, task: SinkTask) -> None:
        """Prepare for the batches of one run. Raises DestinationError."""

    def missing(self, task: SinkTask) -> str | None:  # noqa: ARG002  (most sinks cannot tell)
        """What of this sync's object has vanished, as a message finds it (`no table people`), or None. Cheap and read-only, on its own connection: it is asked
        before `open`, and also when there is nothing to send. With `task.first` nothing can have vanished.

        A transactional sink raises NewerFence where its record holds a fence above `task.fence`, the newest in the ledger: `refuse_newer`;
        and OlderFence, once all else is there, where it holds one below a run that has written: `refuse_older`.
        Raises DestinationError."""
        return None

    def read(self, task: SinkTask) -> Iterator[pa.Table] | Any | None:  # noqa: ARG002  (most sinks cannot)
        """The rows that the object of a sync holds, foreign ones too, for `dbt-reverse-etl reconcile`; None: it cannot be read.

        Tables of `reading.rows_of`: the task's fields in their types, and `_unreadable`. Rows deleted by a mark are left out. A `SparkSink`
        returns one DataFrame of these columns, which is queried once.
        Read-only, on its own connection, without `open`. Raises DestinationError."""
        return None

    def key_form(self, task: SinkTask) -> str:  # noqa: ARG002  (a sink may depend on the options)
        """By which of its options the destination knows a key: with another one it takes each row for a new one. Empty: by none."""
        return ""

    def key_place(self, task: SinkTask) -> str:  # noqa: ARG002  (a sink may depend on the options)
        """Which of its options decide where in the object a key is: with others every row is sent again. Empty: none."""
        return ""

    def is_nan_null(self, task: SinkTask) -> bool:  # noqa: ARG002  (a sink may depend on the options)
        """Whether NaN and Infinity arrive as NULL: what `read` gives is compared so."""
        return False

    def settle(self, claims: Sequence[str]) -> Mapping[str, bool | Applied | None]:
        """For each claim of a crashed run: True if it was closed with nothing left out, False if some was applied,
        None if there is no record of it (and none can appear any more, for the fence is held). A sink that
        `settles_buckets` says which buckets it knows of.

        `claims` are all claims of the sync that the ledger holds open; a sink may forget its records of any other."""
        return dict.fromkeys(claims, False)

    def applied(self, claim: str) -> Applied:  # noqa: ARG002  (most sinks cannot tell)
        """What an earlier attempt of a task applied of the claim that is under way; only where the sink `settles_buckets`."""
        return Applied()

    def prepare(self, rows: pa.Table) -> Sequence[Any] | None:  # noqa: ARG002  (most sinks need none)
        """Optional: what costs less for some thousands of rows at once than batch by batch, e.g. their JSON. One entry for
        each row, of any kind; `deliver` gets those of its rows. Depends on nothing but the rows."""
        return None

    @abstractmethod
    def deliver(self, batch: Batch) -> Delivery:
        """Deliver one batch. Never raises for an answer of the destination: that is an outcome."""

    def swap(self, claim: str) -> None:
        """The end of a full load: every row of the claim is loaded. It takes the place of what the object holds, at once and whole; a
        transactional sink closes its record of the claim in the same transaction. Raises DestinationError: the object is as it was, or
        `settle` will tell."""
        raise NotImplementedError

    def finish(self, claim: str = "", *, complete: bool = False) -> None:  # noqa: B027  (only sinks that publish need it)
        """Every wave was sent: publish what `deliver` did not, e.g. a manifest. All but the one of `claim` are acknowledged, so that no
        record but that of this claim is needed any more; its own is recorded with the end of the run. `complete`: every row of the sync
        is delivered at the head: none was refused, waits, is parked or in doubt."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Called once, also after a failure; its errors are ignored, so nothing is written here."""


class SparkSink(Sink):
    """A destination that Spark itself writes and reads: all rows at once, which never leave Spark."""

    @abstractmethod
    def push(self, rows: Any, claim: str) -> Delivery:
        """Apply a DataFrame of `sent_columns`: every row, or none, closed with nothing left out; in a full load it takes the place of what
        the object holds, without `swap`.

        An outcome for row 0 stands for all; a refused row is looked for by `deliver`."""


def close_quietly(sink: Sink) -> None:
    """Close it: an error, such as of a dead connection, changes nothing of what was delivered, and must not hide an earlier one."""
    with suppress(Exception):
        sink.close()


def sent_columns(sink: Sink, task: SinkTask) -> list[str]:
    """The columns of `Batch.rows`."""
    return [OPERATION, EVENT_ID, *sink.extra_columns(task), *task.schema.names]
