"""The files sink: JSON Lines, CSV or Parquet parts in a folder for each object, on disk or in object storage, and a manifest that lists them.

A part holds changes, not the state of the object: `_operation` (insert, update, delete), `_event_id`, then the fields;
of a delete only the key fields count. A consumer applies the parts in the order of `manifest.json`, each change by key.
The manifest is replaced atomically with each batch, and a claim's parts are listed when the claim is closed: what was
reported as delivered is always on record, and what a crash cut off is never listed. A file that the manifest does not
list must not be read. `files_manifest.py` says how.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from dbt_reverse_etl.encoding import Nan, encode_rows, ndjson, unsupported
from dbt_reverse_etl.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, Options, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.files_csv import csv_part
from dbt_reverse_etl.sinks.files_manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    Part,
)
from dbt_reverse_etl.sinks.files_store import ReplacedError, StorageSettings, Store, error_name, is_supported, place_of

_COMPRESSIONS = {"jsonl": ("none", "gzip"), "csv": ("none", "gzip"), "parquet": ("zstd", "snappy", "gzip", "none")}
_PART = re.compile(r"\d{10}-[A-Za-z0-9_-]+-[0-9a-f]{12}\.((jsonl|csv)(\.gz)?|parquet)")
_OBJECT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]*(/[A-Za-z0-9_-][A-Za-z0-9_. -]*)*")
_HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
_REFUSED = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
_BUSY = "a newer run holds this sync"


class FilesSettings(Settings):
    """One directory, or prefix of an object storage, that objects live in.

    Default compression: `zstd` for parquet, `none` for the others. A part that is older than `keep_days` leaves the
    manifest when a run ends; its file is removed when the next one begins, so that a reader can end first.
    """

    path: str
    storage: StorageSettings = Field(default_factory=StorageSettings)
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    compression: Literal["none", "gzip", "snappy", "zstd"] | None = None
    keep_days: float | None = Field(default=None, gt=0, le=36_500)

    @field_validator("path")
    @classmethod
    def _is_known(cls, path: str) -> str:
        if not is_supported(path):
            raise ValueError(
                "found a URL of another kind; expected a directory, or s3://, gs:// or abfs:// with a bucket; next: correct path"
            )
        return path

    @model_validator(mode="after")
    def _fits(self) -> FilesSettings:
        if self.storage != StorageSettings() and not self.path.startswith("s3://"):
            raise ValueError("found storage without an s3:// path; expected it there only; next: remove storage")
        allowed = _COMPRESSIONS[self.format]
        if self.compression is not None and self.compression not in allowed:
            raise ValueError(
                f"found compression {self.compression} with {self.format}; expected one of {', '.join(allowed)}; "
                "next: change compression or format"
            )
        return self

    @property
    def codec(self) -> str:
        """The compression that is used."""
        return self.compression or _COMPRESSIONS[self.format][0]


class FilesOptions(Options):
    """`nan`: what JSON Lines and CSV do with NaN and Infinity; Parquet keeps them."""

    nan: Literal["reject", "null"] = "reject"


class _FencedError(Exception):
    """The manifest belongs to a newer run, to another sync, or to nobody any more; the text is a reason."""


class FilesSink(Sink):
    """Writes each batch as one immutable part."""

    type = "files"
    settings_model = FilesSettings
    options_model = FilesOptions
    modes = frozenset({Mode.UPSERT, Mode.MIRROR})
    transactional = True
    promise = (
        "exactly-once listing: manifest.json lists each complete part once, and no part of a claim that was cut off"
    )

    def __init__(self, settings: Settings) -> None:
        if not isinstance(settings, FilesSettings):
            raise TypeError("the files sink takes FilesSettings")
        self._settings = settings
        self._place = place_of(settings.path, settings.storage)
        self._task: SinkTask | None = None

    @property
    def identity(self) -> str:
        return self._place.uri

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002
        return Limits(rows=100_000, bytes=64 * 2**20, concurrency=1)

    def validate(self, task: SinkTask) -> None:
        """Refuse objects that are no relative path, and fields that the format cannot hold."""
        where = f"sync {task.sync}"
        problems = []
        if not _OBJECT.fullmatch(task.object):
            expected = "letters, digits, . _ - and spaces, in parts divided by /"
            problems.append(Problem(f"{where}: object", "no plain relative path", expected, "rename the object"))
        for name in self._unsupported(task.schema):
            found = f"field {name} of type {task.schema.field(name).type}"
            expected = f"a type that {self._settings.format} can hold"
            problems.append(Problem(where, found, expected, "cast the column in the model"))
        problems += [
            Problem(where, f"field {name}", "a name that the sink does not use itself", "rename it under fields")
            for name in sorted({OPERATION, EVENT_ID} & set(task.schema.names))
        ]
        if problems:
            raise ConfigurationError(*problems)

    def check(self) -> None:
        """Look for the directory, or for one in which it can be made; nothing is made."""
        try:
            problem = self._place.problem()
        except OSError as error:
            problem = error_name(error), "a place that can be reached", "look at path and storage"
        if problem:
            raise self._problem(*problem)

    def missing(self, task: SinkTask) -> str | None:
        try:
            if task.first or self._store(task).read(MANIFEST) is not None:
                return None
        except OSError as error:
            raise self._problem(error_name(error), "a place that can be read", "look at path and storage") from None
        return f"{MANIFEST} of object {task.object}"

    def open(self, task: SinkTask) -> None:
        """Take the fence and remove what a crash left."""
        if self.missing(task) is not None:
            next_step = "bring the directory back, or dbt run-operation resync for this sync"
            raise self._problem(f"no {MANIFEST} of object {task.object}", "the record of earlier deliveries", next_step)
        try:
            store = self._store(task)
            store.make()
            file = ManifestFile(store)
            file.change(lambda before: _taken(before, task))
            file.sweep(lambda name: _PART.fullmatch(name) is not None)
        except _FencedError as fenced:
            raise self._problem(
                str(fenced), "an object of this sync alone", "let the other run end, or rename"
            ) from None
        except OSError as error:
            raise self._problem(error_name(error), "a place that can be written", "look at path and disk") from None
        except ValueError:
            raise self._problem(f"a damaged {MANIFEST}", "one written by this sink", "restore it, or resync") from None
        self._task = task

    def settle(self, claims: Sequence[str]) -> dict[str, bool | None]:
        """See the contract; a claim that was cut off left nothing that a reader could see, so it has no record."""
        try:
            known = self._change(lambda manifest: manifest.settled(set(claims))).claims
        except _FencedError as fenced:
            raise self._problem(str(fenced), "the fence", "let the other run end") from None
        except OSError as error:
            raise self._problem(error_name(error), "a place that can be written", "look at path and disk") from None
        return {
            claim: (known[claim].closed and known[claim].left_out == 0) if claim in known else None for claim in claims
        }

    def deliver(self, batch: Batch) -> Delivery:
        """Write the batch as one part and put it on record; all of it or nothing."""
        content, refused = self._encoded(batch.rows)
        kept = [row for row in range(batch.rows.num_rows) if row not in refused]
        rows = batch.rows.take(pa.array(kept, pa.int64())) if refused else batch.rows
        failed = self._recorded(batch, rows, content, len(refused)) if batch.rows.num_rows or batch.last else None
        results = {row: RowResult(row, Outcome.REJECTED, reason) for row, reason in refused.items()}
        if failed is not None:
            outcome, reason = failed
            results |= {row: RowResult(row, outcome, reason) for row in kept}
        return Delivery(tuple(results[row] for row in sorted(results)))

    def finish(self) -> None:
        """List everything that was delivered, unlist what is too old, and forget the claims."""
        try:
            self._change(lambda manifest: manifest.finished(self._kept_from()))
        except (OSError, _FencedError) as error:
            found = error_name(error) if isinstance(error, OSError) else str(error)
            raise self._problem(found, f"a {MANIFEST} to replace", "run it again") from None

    def close(self) -> None:
        """List what this run delivered; if that fails, the next run does it."""
        if self._task is None:
            return
        try:
            self._change(Manifest.stopped)
        except (OSError, ValueError, _FencedError):
            pass
        finally:
            self._task = None

    def _recorded(self, batch: Batch, rows: pa.Table, content: bytes, refused: int) -> tuple[Outcome, str] | None:
        """None if the batch is on record, else what became of all its rows."""
        part = self._part(batch.claim, rows, content) if content else None

        def add(manifest: Manifest) -> Manifest:
            return manifest.with_part(part, batch.claim, last=batch.last, left_out=batch.left_out + refused)

        try:
            if part and self._is_repeat(part):
                part = None
            elif part:
                self._write(part, content)
            self._change(add)
        except _FencedError as fenced:
            return Outcome.FATAL, str(fenced)
        except ReplacedError as error:
            return Outcome.UNKNOWN, f"the part is listed, or not, or not on disk: {error_name(error)}"
        except OSError as error:
            return (Outcome.FATAL if _is_hopeless(error) else Outcome.RETRYABLE), error_name(error)
        except ValueError:
            return Outcome.FATAL, f"{MANIFEST} is damaged"
        return None

    def _is_repeat(self, part: Part) -> bool:
        manifest = ManifestFile(self._store(self._opened())).read()
        return manifest is not None and manifest.repeats(part.claim, part.events)

    def _change(self, by: Callable[[Manifest], Manifest]) -> Manifest:
        task = self._opened()
        return ManifestFile(self._store(task)).change(lambda manifest: by(_held(manifest, task)))

    def _opened(self) -> SinkTask:
        if self._task is None:
            raise RuntimeError("the sink is not open")
        return self._task

    def _part(self, claim: str, rows: pa.Table, content: bytes) -> Part:
        fence = self._opened().fence
        plain = re.sub(r"[^A-Za-z0-9_-]", "", claim)[:64] or "claim"
        counts = pc.value_counts(rows.column(OPERATION).combine_chunks())
        return Part(
            name=f"{fence:010d}-{plain}-{uuid4().hex[:12]}.{self._extension}",
            rows=rows.num_rows,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            fence=fence,
            claim=claim,
            events=hashlib.sha256("\n".join(rows.column(EVENT_ID).to_pylist()).encode()).hexdigest(),
            operations={entry["values"]: entry["counts"] for entry in counts.to_pylist()},
            written=datetime.now(timezone.utc),
        )

    @property
    def _extension(self) -> str:
        return self._settings.format + (".gz" if self._is_zipped else "")

    @property
    def _is_zipped(self) -> bool:
        return self._settings.format != "parquet" and self._settings.codec == "gzip"

    def _encoded(self, rows: pa.Table) -> tuple[bytes, dict[int, str]]:
        """The content of a part (empty if it has no rows), and the rows that it cannot hold with their reasons."""
        refused = self._not_allowed(rows)
        if self._settings.format == "parquet":
            kept = rows.take(pa.array([row for row in range(rows.num_rows) if row not in refused], pa.int64()))
            return (_parquet(kept, self._settings.codec) if kept.num_rows else b""), refused
        options = self._opened().options
        nan: Nan = options.nan if isinstance(options, FilesOptions) else "reject"
        content, refused = (csv_part if self._settings.format == "csv" else _json_lines)(rows, nan, refused)
        return (gzip.compress(content, mtime=0) if content and self._is_zipped else content), refused

    def _not_allowed(self, rows: pa.Table) -> dict[int, str]:
        if self._opened().mode is Mode.MIRROR:
            return {}
        deletes = pc.indices_nonzero(pc.equal(rows.column(OPERATION), "delete")).to_pylist()
        return dict.fromkeys(deletes, "the mode of this sync has no delete")

    def _unsupported(self, schema: pa.Schema) -> list[str]:
        if self._settings.format != "parquet":
            return unsupported(schema)
        return [field.name for field in schema if not _fits_parquet(field)]

    def _kept_from(self) -> datetime | None:
        days = self._settings.keep_days
        return None if days is None else datetime.now(timezone.utc) - timedelta(days=days)

    def _store(self, task: SinkTask) -> Store:
        return self._place.store(task.object)

    def _write(self, part: Part, content: bytes) -> None:
        try:
            self._store(self._opened()).replace(part.name, content)
        except ReplacedError as error:  # not listed yet, so nothing was delivered
            raise OSError(*error.args) from None

    def _problem(self, found: str, expected: str, next_step: str) -> DestinationError:
        return DestinationError(Problem(f"destination {self.identity}", found, expected, next_step))


def _taken(before: Manifest | None, task: SinkTask) -> Manifest:
    if before is None:
        return Manifest(sync_id=task.sync_id, object=task.object, key=list(task.key), fence=task.fence)
    if before.sync_id != task.sync_id:
        raise _FencedError("an object that belongs to another sync")
    if before.fence > task.fence:
        raise _FencedError(_BUSY)
    return before.model_copy(update={"fence": task.fence, "key": list(task.key)})


def _held(manifest: Manifest | None, task: SinkTask) -> Manifest:
    if manifest is None or manifest.sync_id != task.sync_id:
        raise _FencedError(f"{MANIFEST} was removed or replaced during the run")
    if manifest.fence != task.fence:
        raise _FencedError(_BUSY)
    return manifest


def _json_lines(rows: pa.Table, nan: Nan, refused: dict[int, str]) -> tuple[bytes, dict[int, str]]:
    encoded = encode_rows(rows, nan=nan)
    refused = encoded.rejected | refused
    return ndjson([line for row, line in enumerate(encoded.rows) if line is not None and row not in refused]), refused


def _parquet(rows: pa.Table, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression=codec)
    return bytes(sink.getvalue())


def _fits_parquet(field: pa.Field) -> bool:
    try:
        _parquet(pa.schema([field]).empty_table(), "none")
    except pa.ArrowException:
        return False
    return True


def _is_hopeless(error: OSError) -> bool:
    return error.errno in _HOPELESS or any(error_name(error).endswith(code) for code in _REFUSED)
