"""The files sink: JSON Lines, CSV or Parquet parts in a folder for each object, on disk or in object storage, and a manifest that lists them.

A part holds changes, not the state of the object: `_operation` (insert, update, delete), `_event_id`, then the fields;
of a delete only the key fields count. A consumer applies the parts in the order of `manifest.json`, each change by key.
The manifest is replaced atomically with each batch, and a claim's parts are listed when the claim is closed: what was
reported as delivered is always on record, and what a crash cut off is never listed. The parts of a full load are written without
a word in the manifest; the swap lists them in place of all others. A file that the manifest does not list must not be read.
`manifest.py` says how.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import pyarrow as pa

from dbt_reverse_etl.base.errors import Problem, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, Rights, Sink, SinkTask, options_of
from dbt_reverse_etl.sinks.fence import refuse_newer, refuse_older
from dbt_reverse_etl.sinks.files.bucket import Bucket
from dbt_reverse_etl.sinks.files.disk import Directory
from dbt_reverse_etl.sinks.files.manifest import MANIFEST, Manifest, ManifestFile
from dbt_reverse_etl.sinks.files.partitions import MOST_FOLDERS, TooManyFolders, problems
from dbt_reverse_etl.sinks.files.parts import encoded
from dbt_reverse_etl.sinks.files.reading import read_rows
from dbt_reverse_etl.sinks.files.run import OTHER_SYNC, FilesRun, Piece
from dbt_reverse_etl.sinks.files.settings import FilesOptions, FilesSettings, is_remote
from dbt_reverse_etl.sinks.files.store import ReplacedError, Store, UnusableError, error_name
from dbt_reverse_etl.sinks.refusals import nan_keys, refused_deletes

_OBJECT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]*(/[A-Za-z0-9_-][A-Za-z0-9_. -]*)*")
_HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
_REFUSED = (
    *("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH"),
    *("AuthorizationPermissionMismatch", "AuthorizationFailure", "ContainerNotFound"),  # Azure's; of gs:// it is EACCES
)


class FilesSink(Sink):
    """Writes each batch as one immutable part, or as one for each partition."""

    type = "files"
    settings_model = FilesSettings
    options_model = FilesOptions
    modes = frozenset({Mode.UPSERT, Mode.MIRROR})
    transactional = True
    full_loads = True
    validates_early = True
    promise = "exactly-once listing: manifest.json lists each complete part once, and none of a claim that was cut off"

    _run: FilesRun

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._closing = ExitStack()
        self._place = Bucket(settings.path, settings.storage) if is_remote(settings.path) else Directory(settings.path)

    @property
    def identity(self) -> str:
        return self._place.uri

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002
        return Limits(rows=100_000, bytes=64 * 2**20, concurrency=1)

    def validate(self, task: SinkTask) -> None:
        """Refuse objects that are no relative path, fields with a name of the sink, and those that name no folder."""
        where = f"sync {task.sync}"
        found = []
        if not _OBJECT.fullmatch(task.object):
            expected = "letters, digits, . _ - and spaces, in parts divided by /"
            found.append(Problem(f"{where}: object", "no plain relative path", expected, "rename the object"))
        found += [
            Problem(where, f"field {name}", "a name that the sink does not use itself", "rename it under fields")
            for name in sorted({OPERATION, EVENT_ID} & set(task.schema.names))
        ]
        found += problems(task, options_of(task, FilesOptions).partition_by)
        raise_if_any(found)

    def check(self) -> None:
        """Look for the directory, or for one in which it can be made; nothing is made."""
        self._look()

    def rights(self, task: SinkTask) -> Rights:
        """The folder of the object may be another one's."""
        self._look(task.object)
        unasked = ("whether it may write: an object storage tells that to a writer alone",)
        return Rights(untried=unasked if is_remote(self._settings.path) else ())

    def _look(self, name: str = "") -> None:
        try:
            problem = self._place.problem(name)
        except OSError as error:
            problem = error_name(error), "a place that can be reached", "look at path and storage"
        if problem:
            raise self.problem(*problem)

    def missing(self, task: SinkTask) -> str | None:
        with self._explained("a place that can be read"):
            manifest = ManifestFile(self._store(task)).read()
        if manifest is None:
            return None if task.first else f"no {MANIFEST} of object {task.object}"
        if manifest.sync_id != task.sync_id:
            raise self.problem(*OTHER_SYNC)
        refuse_newer(manifest.fence, task)
        refuse_older(manifest.fence, task)
        return None

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        """What a consumer sees who reads the manifest now."""
        with self._explained("a folder that can be read"):
            manifest = ManifestFile(self._store(task)).read()
            if manifest is None or manifest.sync_id != task.sync_id:
                raise UnusableError(f"no {MANIFEST} of this sync", "the record of its deliveries", "push, or resync")
            yield from read_rows(self._store(task), manifest, task)

    def is_nan_null(self, task: SinkTask) -> bool:
        """By `options.nan`; Parquet keeps them."""
        return options_of(task, FilesOptions).nan == "null" and self._settings.format != "parquet"

    def open(self, task: SinkTask) -> None:
        """Take the fence and remove what a crash left."""
        with self._explained("a place that can be read"):
            is_lost = not task.first and self._store(task).read(MANIFEST) is None
        if is_lost:
            next_step = "bring the directory back, or dbt run-operation resync for this sync"
            raise self.problem(f"no {MANIFEST} of object {task.object}", "the record of earlier deliveries", next_step)
        with self._explained("a place that can be written"):
            run = FilesRun(self._store(task), task)
            run.begin()
        self._run = run
        self._closing.callback(run.change, Manifest.stopped)

    def settle(self, claims: Sequence[str]) -> dict[str, bool | None]:
        """See the contract; a claim that was cut off left nothing that a reader could see, so it has no record."""
        with self._explained("a place that can be written"):
            known = self._run.change(lambda manifest: manifest.settled(set(claims))).claims
        return {
            claim: (known[claim].closed and known[claim].left_out == 0) if claim in known else None for claim in claims
        }

    def deliver(self, batch: Batch) -> Delivery:
        """Write the batch and put it on record; all of it or nothing."""
        if not batch.rows.num_rows and not batch.last:
            return Delivery()
        run = self._run
        try:
            keyless = nan_keys(batch.rows, run.task.key, as_null=self.is_nan_null(run.task))
            refused = keyless | refused_deletes(batch.rows, run.task.mode)
            parts, refused = encoded(batch, refused, run.task.fence, self._settings, options_of(run.task, FilesOptions))
        except TooManyFolders:
            reason = f"partition_by makes more than {MOST_FOLDERS} folders of one batch"
            return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, reason)
        failed = _recorded(run, batch, parts, len(refused))
        results = {row: RowResult(row, Outcome.REJECTED, reason) for row, reason in refused.items()}
        if failed is not None:
            outcome, reason = failed
            results = {row: RowResult(row, outcome, reason) for row in range(batch.rows.num_rows)} | results
        return Delivery(tuple(results[row] for row in sorted(results)))

    def swap(self, claim: str) -> None:
        """List what was loaded in place of everything else: one replacement of the manifest."""
        with self._explained(f"a {MANIFEST} to replace"):
            self._run.swap(claim)

    def finish(self, claim: str = "", *, complete: bool = False) -> None:
        """List everything that was delivered, unlist what is too old, and forget all claims but this one."""
        days = self._settings.keep_days
        with self._explained(f"a {MANIFEST} to replace"):
            self._run.finish(claim, None if days is None else timedelta(days=days), complete=complete)

    def close(self) -> None:
        """List what this run delivered; if that fails, the next run does it."""
        with suppress(OSError, UnusableError):
            self._closing.close()

    def _store(self, task: SinkTask) -> Store:
        return self._place.store(task.object)

    @contextmanager
    def _explained(self, expected: str) -> Iterator[None]:
        """Errors of the place as problems in three parts."""
        try:
            yield
        except UnusableError as error:
            raise self.problem(*error.args) from None
        except OSError as error:
            raise self.problem(error_name(error), expected, "look at path, storage and disk") from None


def _recorded(run: FilesRun, batch: Batch, pieces: list[Piece], refused: int) -> tuple[Outcome, str] | None:
    """None if the batch is on record, else what became of all its rows."""
    try:
        run.record(batch, pieces, refused)
    except UnusableError as error:
        return Outcome.FATAL, error.args[0]
    except ReplacedError as error:
        return Outcome.UNKNOWN, f"the part is listed, or not, or not on disk: {error_name(error)}"
    except OSError as error:
        is_hopeless = error.errno in _HOPELESS or error_name(error).endswith(_REFUSED)
        return (Outcome.FATAL if is_hopeless else Outcome.RETRYABLE), error_name(error)
    return None
