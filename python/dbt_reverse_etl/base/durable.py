"""What is on the disk when a call returns, also after a power failure."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

_NOT_SUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def write(file: Path, content: bytes) -> None:
    """Write a file and its content to the disk; its name needs `sync_directory`."""
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        _sync(opened.fileno())


def put(file: Path, content: bytes) -> None:
    """Write a file in place of the one that is there, with its rights: a full disk, a kill or a power failure leaves the former one.

    Raises:
        OSError: it cannot be written.
    """
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(0o600 if file.exists() else 0o666)
        write(new, content)
        if file.exists():
            with suppress(OSError):  # on some mounts nobody may
                shutil.copymode(file, new)
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # the file is there
        sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)
    if sys.platform == "darwin":  # where it may still be in the memory of the disk
        import fcntl

        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:  # of a file system that knows no more than fsync
            if error.errno not in _NOT_SUPPORTED:
                raise
