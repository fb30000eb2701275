"""Where the parts and manifests of the files sink stand: a directory of this machine, or a prefix of an object storage.

Both promise the same: a file is replaced as a whole, and a reader sees the new content or the old one. On this machine
changes of a manifest follow each other by a lock of the kernel. Object storage has no lock that ends with its holder:
there the ledger's lease keeps runners apart, and the fence in the manifest is looked at before each change.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.hosts import is_loopback

TEMPORARY = ".tmp-"
_LOCK = ".lock"
_REMOTE = re.compile(r"((s3|gs|gcs)://[^/@:\s]+|abfss?://[^/@:\s]+@[^/@:\s]+\.dfs\.core\.windows\.net)(/[^?#\s]*)?")
_CODE = re.compile(r"AWS Error (?:UNKNOWN \(HTTP status )?(\w+)")


class ReplacedError(OSError):
    """A file may be in place although its write failed: on this machine it is, but its directory could not be made durable."""


class StorageSettings(Settings):
    """How to reach an object storage; what is not said comes from its usual environment.

    Attributes:
        endpoint: URL of a server that speaks S3; https, except on this machine.
        region, access_key, secret_key, session_token: the usual ones of S3.
        timeout: seconds to connect, and for each request.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: SecretStr | None = None
    session_token: SecretStr | None = None
    timeout: float = Field(default=30, ge=1, le=300)

    @field_validator("endpoint")
    @classmethod
    def _is_safe(cls, endpoint: str | None) -> str | None:
        url = urlsplit(endpoint or "https://default")
        if url.scheme == "https" or (url.scheme == "http" and is_loopback(url.hostname or "")):
            return endpoint
        raise ValueError("found an endpoint without TLS; expected https:// away from this machine; next: correct it")

    @model_validator(mode="after")
    def _is_a_pair(self) -> StorageSettings:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("found one of access_key and secret_key; expected both; next: name the other")
        return self

    def s3(self) -> dict[str, Any]:
        """What pyarrow's S3 client is told; holds the secrets."""
        url = urlsplit(self.endpoint or "")
        token = self.session_token.get_secret_value() if self.session_token else None
        told = {
            "region": self.region,
            "endpoint_override": url.netloc or None,
            "scheme": url.scheme or None,
            "access_key": self.access_key,
            "secret_key": self.secret_key.get_secret_value() if self.secret_key else None,
            "session_token": token,
            "connect_timeout": self.timeout,
            "request_timeout": self.timeout,
        }
        return {name: value for name, value in told.items() if value is not None}


def is_remote(path: str) -> bool:
    """Whether a path of the settings names an object storage."""
    return "://" in path


def is_supported(path: str) -> bool:
    """Whether a path is that of a directory, or a URL that we know."""
    return not is_remote(path) or _REMOTE.fullmatch(path) is not None


def error_name(error: OSError) -> str:
    """What went wrong, without the words of a server."""
    code = _CODE.search(str(error))
    if code:
        return f"object storage: {code[1]}"
    return f"{type(error).__name__} {errno.errorcode.get(error.errno or 0, '')}".strip()


class Store(Protocol):
    """The files of one object."""

    def make(self) -> None:
        """Prepare it for the first file. Raises OSError."""

    def read(self, name: str) -> bytes | None:
        """A file, or None if there is none. Raises OSError."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a file as a whole. Raises ReplacedError if it may be in place, another OSError if nothing changed."""

    def names(self) -> list[str]:
        """The files. Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file that may be gone. Raises OSError."""

    def locked(self) -> AbstractContextManager[None]:
        """Changes of processes on one machine follow each other."""


class Place(Protocol):
    """Where objects live."""

    @property
    def uri(self) -> str:
        """Names it, without credentials."""

    def problem(self) -> tuple[str, str, str] | None:
        """What was found, expected and to be done next if it cannot be used; read-only. Raises OSError."""

    def store(self, name: str) -> Store:
        """The files of an object."""


def place_of(path: str, storage: StorageSettings) -> Place:
    """The place that the settings name; no I/O."""
    return Bucket(path, storage) if is_remote(path) else Directory(path)


class Directory:
    """A directory of this machine."""

    def __init__(self, path: str) -> None:
        self._root = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  (resolve() does I/O)

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def problem(self) -> tuple[str, str, str] | None:
        if find_spec("fcntl") is None:
            return "an operating system without fcntl", "Linux or macOS", "run it there"
        nearest = next(path for path in (self._root, *self._root.parents) if path.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return None
        return f"{nearest} not to be a writable directory", "one", "correct path or its permissions"

    def store(self, name: str) -> Store:
        return DirectoryStore(self._root / name)


class DirectoryStore:
    """Files of a directory; each is durable before it is named."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self) -> None:
        absent = [path for path in (self._directory, *self._directory.parents) if not path.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in absent:
            sync_directory(path.parent)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """As the protocol says, also after a power failure."""
        path = self._directory / name
        temporary = _written(path, content)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        try:
            sync_directory(path.parent)
        except OSError as error:
            raise ReplacedError(*error.args) from None

    def names(self) -> list[str]:
        return [path.name for path in self._directory.iterdir()]

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        import fcntl  # not on Windows, whose users get one clear error from the sink

        # Of two runners that overlap the fence decides, not this lock: it only makes their changes follow each other.
        with (self._directory / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Bucket:
    """A prefix of an object storage."""

    def __init__(self, path: str, storage: StorageSettings) -> None:
        self._path, self._storage = path.rstrip("/"), storage

    @property
    def uri(self) -> str:
        endpoint = self._storage.endpoint
        return f"{self._path} at {urlsplit(endpoint).netloc}" if endpoint else self._path

    def problem(self) -> tuple[str, str, str] | None:
        from pyarrow.fs import FileType

        filesystem, prefix = self._filesystem
        if filesystem.get_file_info(prefix.partition("/")[0]).type is FileType.NotFound:
            return "no such bucket or container", "one that exists", "make it, or correct path and storage"
        return None

    def store(self, name: str) -> Store:
        filesystem, prefix = self._filesystem
        return BucketStore(filesystem, f"{prefix}/{name}")

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem, S3FileSystem

        if self._path.startswith("s3://"):
            return S3FileSystem(**self._storage.s3()), self._path.removeprefix("s3://")
        filesystem, prefix = FileSystem.from_uri(self._path)
        return filesystem, prefix.rstrip("/")


class BucketStore:
    """Files below a prefix: the storage itself shows a whole new file or the one before."""

    def __init__(self, filesystem: Any, prefix: str) -> None:
        self._filesystem, self._prefix = filesystem, prefix

    def make(self) -> None:
        """A prefix needs no making."""

    def read(self, name: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(f"{self._prefix}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        try:
            with self._filesystem.open_output_stream(f"{self._prefix}/{name}") as file:
                file.write(content)
        except OSError as error:  # the answer may have been lost after the file was stored
            raise ReplacedError(*error.args) from None

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self._filesystem.get_file_info(FileSelector(self._prefix, allow_not_found=True))
        return [file.base_name for file in found if file.type is FileType.File]

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._prefix}/{name}")

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary
