"""Files in a directory of this machine. Changes of a manifest follow each other by a lock of the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbt_reverse_etl.base.durable import sync_directory, write
from dbt_reverse_etl.base.locks import no_locks
from dbt_reverse_etl.sinks.files.store import TEMPORARY, ReplacedError, Store, is_of_partition

_LOCK = ".lock"


class Directory:
    """A directory of this machine."""

    def __init__(self, path: str) -> None:
        self._root = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() does I/O)

    @property
    def uri(self) -> str:
        """Names it, without credentials."""
        return self._root.as_uri()

    def problem(self, name: str) -> tuple[str, str, str] | None:
        """What was found, expected and to be done next if an object in it cannot be used (empty: any); read-only. Raises OSError."""
        if wrong := no_locks():
            return wrong
        place = self._root / name
        nearest = next(path for path in (place, *place.parents) if path.exists())
        # An object may be writable in a directory that is not.
        writes = bool(name) or nearest != place
        if nearest.is_dir() and os.access(nearest, os.X_OK | (os.W_OK if writes else 0)):
            return None
        wanted = "writable directory" if writes else "directory to enter"
        return f"{nearest} not to be a {wanted}", "one", "correct path or its permissions"

    def store(self, name: str) -> Store:
        """The files of an object."""
        return DirectoryStore(self._root / name)


class DirectoryStore:
    """Files of a directory; each is durable before it is named."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self) -> None:
        _make(self._directory)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """As the protocol says, also after a power failure."""
        path = self._directory / name
        _make(path.parent)
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        try:
            write(temporary, content)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        try:
            sync_directory(path.parent)
        except OSError as error:
            raise ReplacedError(*error.args) from None

    def names(self) -> list[str]:
        found: list[str] = []
        for folder, folders, files in os.walk(self._directory, onerror=_raise):
            folders[:] = filter(is_of_partition, folders)
            inside = Path(folder).relative_to(self._directory)
            found += [(inside / file).as_posix() for file in files]
        return found

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        import fcntl  # not on Windows, whose users get one clear error from the sink

        # Of two runners that overlap the fence decides, not this lock: it only makes their changes follow each other.
        with (self._directory / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _make(directory: Path) -> None:
    absent = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in absent:
        sync_directory(path.parent)


def _raise(error: OSError) -> None:
    raise error
