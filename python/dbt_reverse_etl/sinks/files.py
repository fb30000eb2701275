"""The files sink: JSON Lines or Parquet parts in a directory for each object, and a manifest that lists them.

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
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import model_validator

from dbt_reverse_etl.encoding import encode_rows, ndjson, unsupported
from dbt_reverse_etl.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, Options, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.files_manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    Part,
    ReplacedError,
    replace_durably,
    sync_directory,
)

_COMPRESSIONS = {"jsonl": ("none", "gzip"), "parquet": ("zstd", "snappy", "gzip", "none")}
_PART = re.compile(r"\d{10}-[A-Za-z0-9_-]+-[0-9a-f]{12}\.(jsonl|jsonl\.gz|parquet)")
_OBJECT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]*(/[A-Za-z0-9_-][A-Za-z0-9_. -]*)*")
_HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
_BUSY = "a newer run holds this sync"


class FilesSettings(Settings):
    """One directory that objects live in. Default compression: `none` for jsonl, `zstd` for parquet."""

    path: str
    format: Literal["jsonl", "parquet"] = "jsonl"
    compression: Literal["none", "gzip", "snappy", "zstd"] | None = None

    @model_validator(mode="after")
    def _fits(self) -> FilesSettings:
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
    """`nan`: what JSON Lines does with NaN and Infinity; Parquet keeps them."""

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
        self._root = Path(os.path.abspath(Path(settings.path).expanduser()))  # noqa: PTH100  (resolve() does I/O)
        self._task: SinkTask | None = None

    @property
    def identity(self) -> str:
        return self._root.as_uri()

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
        if find_spec("fcntl") is None:
            raise self._problem("an operating system without fcntl", "Linux or macOS", "run it there")
        nearest = next(path for path in (self._root, *self._root.parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise self._problem(f"{nearest} not to be a writable directory", "one", "correct path or its permissions")

    def missing(self, task: SinkTask) -> str | None:
        if task.first or (self._directory(task) / MANIFEST).exists():
            return None
        return f"{MANIFEST} of object {task.object}"

    def open(self, task: SinkTask) -> None:
        """Take the fence and remove what a crash left."""
        directory = self._directory(task)
        if self.missing(task) is not None:
            next_step = "bring the directory back, or dbt run-operation resync for this sync"
            raise self._problem(f"no {directory / MANIFEST}", "the record of earlier deliveries", next_step)
        try:
            _make_directory(directory)
            file = ManifestFile(directory)
            file.change(lambda before: _taken(before, task))
            file.sweep(lambda name: _PART.fullmatch(name) is not None)
        except _FencedError as fenced:
            raise self._problem(
                str(fenced), "an object of this sync alone", "let the other run end, or rename"
            ) from None
        except OSError as error:
            raise self._problem(_name(error), "a writable directory", "look at path and disk") from None
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
            raise self._problem(_name(error), "a writable directory", "look at path and disk") from None
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
        """List everything that was delivered and forget the claims."""
        try:
            self._change(Manifest.finished)
        except (OSError, _FencedError) as error:
            found = _name(error) if isinstance(error, OSError) else str(error)
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
        path = self._directory(self._opened()) / part.name if part else None

        def add(manifest: Manifest) -> Manifest:
            return manifest.with_part(part, batch.claim, last=batch.last, left_out=batch.left_out + refused)

        try:
            if part and path:
                if self._is_repeat(part):
                    part = None
                else:
                    _write(path, content)
            self._change(add)
        except _FencedError as fenced:
            return Outcome.FATAL, str(fenced)
        except ReplacedError as error:
            return Outcome.UNKNOWN, f"listed, but maybe not on disk: {_name(error)}"
        except OSError as error:
            return (Outcome.FATAL if error.errno in _HOPELESS else Outcome.RETRYABLE), _name(error)
        except ValueError:
            return Outcome.FATAL, f"{MANIFEST} is damaged"
        return None

    def _is_repeat(self, part: Part) -> bool:
        manifest = ManifestFile(self._directory(self._opened())).read()
        return manifest is not None and manifest.repeats(part.claim, part.events)

    def _change(self, by: Callable[[Manifest], Manifest]) -> Manifest:
        task = self._opened()
        return ManifestFile(self._directory(task)).change(lambda manifest: by(_held(manifest, task)))

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
        )

    @property
    def _extension(self) -> str:
        return (
            "jsonl.gz" if (self._settings.format, self._settings.codec) == ("jsonl", "gzip") else self._settings.format
        )

    def _encoded(self, rows: pa.Table) -> tuple[bytes, dict[int, str]]:
        """The content of a part (empty if it has no rows), and the rows that it cannot hold with their reasons."""
        refused = self._not_allowed(rows)
        if self._settings.format == "parquet":
            kept = rows.take(pa.array([row for row in range(rows.num_rows) if row not in refused], pa.int64()))
            return (_parquet(kept, self._settings.codec) if kept.num_rows else b""), refused
        options = self._opened().options
        encoded = encode_rows(rows, nan=options.nan if isinstance(options, FilesOptions) else "reject")
        refused = encoded.rejected | refused
        lines = ndjson([line for row, line in enumerate(encoded.rows) if line is not None and row not in refused])
        return (gzip.compress(lines, mtime=0) if lines and self._settings.codec == "gzip" else lines), refused

    def _not_allowed(self, rows: pa.Table) -> dict[int, str]:
        if self._opened().mode is Mode.MIRROR:
            return {}
        deletes = pc.indices_nonzero(pc.equal(rows.column(OPERATION), "delete")).to_pylist()
        return dict.fromkeys(deletes, "the mode of this sync has no delete")

    def _unsupported(self, schema: pa.Schema) -> list[str]:
        if self._settings.format == "jsonl":
            return unsupported(schema)
        return [field.name for field in schema if not _fits_parquet(field)]

    def _directory(self, task: SinkTask) -> Path:
        return self._root / task.object

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


def _write(path: Path, content: bytes) -> None:
    try:
        replace_durably(path, content)
    except ReplacedError as error:  # not listed yet, so nothing was delivered
        raise OSError(*error.args) from None


def _make_directory(directory: Path) -> None:
    absent = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in absent:
        sync_directory(path.parent)


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


def _name(error: OSError) -> str:
    return f"{type(error).__name__} {errno.errorcode.get(error.errno or 0, '')}".strip()
