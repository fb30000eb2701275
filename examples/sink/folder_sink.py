"""A folder with one JSON file for each row: the smallest sink that keeps its promises. Copy it, and change what is below `_apply`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import quote

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import OPERATION, Batch, Limits, Mode, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.paths import ProjectFile
from dbt_reverse_etl.values.encoding import encode_rows, texts


class FolderSettings(Settings):
    """What profiles.yml says: unknown keys are refused; a secret would be a `SecretStr`. A relative path is that of the project."""

    path: ProjectFile


class FolderSink(Sink):
    """Keeps the files of a folder equal to a model."""

    type = "folder"
    settings_model = FolderSettings
    modes = frozenset({Mode.MIRROR, Mode.UPSERT})
    validates_early = True
    promise = "At least once, and a repeat changes nothing: a row is one file, replaced at once."

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, FolderSettings)  # noqa: S101  (the engine validates with settings_model)
        self._path = Path(settings.path).resolve()

    @property
    def identity(self) -> str:
        """Two destinations with the same text are the same one."""
        return str(self._path)

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """`deliver` is called with so many rows at most, from so many threads."""
        return Limits(rows=500, concurrency=4)

    def validate(self, task: SinkTask) -> None:
        """What can never work is said before anything is captured: it depends on no field, so `validates_early`."""
        if "/" in task.object or task.object in ("", ".", ".."):
            found = f"the object '{task.object}'"
            raise ConfigurationError(Problem(f"sync {task.sync}", found, "the name of a folder", "correct `object`"))

    def check(self) -> None:
        """Read-only."""
        if not self._path.is_dir():
            raise DestinationError(Problem(str(self._path), "no such folder", "an existing one", "make it"))

    def open(self, task: SinkTask) -> None:
        """Called once before the rows."""
        self._task, self._folder = task, self._path / task.object
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            expected, next_step = "a folder that this user can make", "correct `path`, or its permissions"
            raise DestinationError(Problem(str(self._folder), type(error).__name__, expected, next_step)) from None

    def deliver(self, batch: Batch) -> Delivery:
        """What is not mentioned in the answer was delivered."""
        rows = batch.rows
        encoded = encode_rows(rows.select(self._task.schema.names))
        keys = zip(*(texts(rows.column(name)) for name in self._task.key), strict=True)
        results = []
        for index, (operation, key) in enumerate(zip(rows.column(OPERATION).to_pylist(), keys, strict=True)):
            if None in key:
                results.append(RowResult(index, Outcome.REJECTED, "NULL in a key field"))
            elif operation == "delete" and self._task.mode is not Mode.MIRROR:
                results.append(RowResult(index, Outcome.REJECTED, "this mode never deletes"))
            elif operation != "delete" and index in encoded.rejected:
                results.append(RowResult(index, Outcome.REJECTED, encoded.rejected[index]))
            else:
                name = ",".join(_file_name(part) for part in key)
                results += self._apply(index, name, None if operation == "delete" else encoded.rows[index])
        return Delivery(tuple(results))

    def close(self) -> None:
        """Nothing is held open."""

    def _apply(self, index: int, name: str, content: bytes | None) -> list[RowResult]:
        """Errors of the destination are outcomes; never its own words, which may quote a row."""
        file = self._folder / f"{name}.json"
        try:
            if content is None:
                file.unlink(missing_ok=True)
            else:
                part = file.with_suffix(f".{os.getpid()}.part")
                part.write_bytes(content)
                part.replace(file)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return [RowResult(index, Outcome.REJECTED, "a key that is too long for the name of a file")]
            # It may have been done all the same: a folder may be on another machine.
            return [RowResult(index, Outcome.UNKNOWN, type(error).__name__)]
        return []


def _file_name(text: str) -> str:
    """Capital letters are written as numbers, too: some file systems take `A` and `a` for one."""
    return "".join(f"%{ord(one):02X}" if one.isupper() and one.isascii() else quote(one, safe="") for one in text)
