"""Files below a prefix of an object storage.

It has no lock that ends with its holder: the ledger's lease keeps runners apart, and the fence in the manifest is looked at before each change.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from pyarrow import fs

from dbt_reverse_etl.sinks.files.manifest import MANIFEST
from dbt_reverse_etl.sinks.files.settings import StorageSettings
from dbt_reverse_etl.sinks.files.store import TEMPORARY, ReplacedError, Store, is_of_partition


class Bucket:
    """A prefix of an object storage."""

    def __init__(self, path: str, storage: StorageSettings) -> None:
        self._path, self._storage = path.rstrip("/"), storage

    @property
    def uri(self) -> str:
        """Names it, without credentials."""
        endpoint = self._storage.endpoint
        return f"{self._path} at {urlsplit(endpoint).netloc}" if endpoint else self._path

    def problem(self, name: str) -> tuple[str, str, str] | None:  # noqa: ARG002  (a prefix needs no making)
        """What was found, expected and to be done next if an object in it cannot be used (empty: any); read-only. Raises OSError."""
        filesystem, prefix = self._filesystem
        if filesystem.get_file_info(prefix.partition("/")[0]).type is fs.FileType.NotFound:
            return "no such bucket or container", "one that exists", "make it, or correct path and storage"
        return None

    def store(self, name: str) -> Store:
        """The files of an object."""
        filesystem, prefix = self._filesystem
        return BucketStore(filesystem, f"{prefix}/{name}")

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        if self._path.startswith("s3://"):
            return fs.S3FileSystem(**self._storage.s3()), self._path.removeprefix("s3://")
        # Without a limit Google's client tries for a quarter of an hour, as long as a lease lasts.
        limit = "?retry_limit_seconds=60" if self._path.startswith(("gs://", "gcs://")) else ""
        filesystem, prefix = fs.FileSystem.from_uri(self._path + limit)
        return filesystem, prefix.rstrip("/")


class BucketStore:
    """Files below a prefix: the storage itself shows a whole new file or the one before.

    Without `compression=None` Arrow packs and unpacks a file by its name.
    """

    def __init__(self, filesystem: Any, prefix: str) -> None:
        self._filesystem, self._prefix = filesystem, prefix
        # Left for the next run's sweep: to remove it after each change would cost Azure four more requests.
        self._temporary = f"{TEMPORARY}{uuid4().hex}-{MANIFEST}"

    def make(self) -> None:
        """A prefix needs no making."""

    def read(self, name: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(f"{self._prefix}/{name}", compression=None) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        # Arrow begins a file of Azure by emptying it; nobody reads a part meanwhile.
        is_copied = name == MANIFEST and self._filesystem.type_name == "abfs"
        if is_copied:
            self._write(self._temporary, content)
        try:
            if is_copied:
                self._filesystem.copy_file(f"{self._prefix}/{self._temporary}", f"{self._prefix}/{name}")
            else:
                self._write(name, content)
        except OSError as error:  # the answer may have been lost after the file was stored
            raise ReplacedError(*error.args) from None

    def _write(self, name: str, content: bytes) -> None:
        with self._filesystem.open_output_stream(f"{self._prefix}/{name}", compression=None) as file:
            file.write(content)

    def names(self) -> list[str]:
        below = fs.FileSelector(self._prefix, allow_not_found=True, recursive=True)
        found = self._filesystem.get_file_info(below)
        names = [file.path[len(self._prefix) + 1 :] for file in found if file.type is fs.FileType.File]
        return [name for name in names if all(map(is_of_partition, name.split("/")[:-1]))]

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._prefix}/{name}")

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()
