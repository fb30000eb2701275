"""Where the parts and manifests of the files sink stand: what a directory (`disk`) and an object storage (`bucket`) offer.

Both promise the same: a file is replaced as a whole, and a reader sees the new content or the old one. A name may lead through
folders of a partition, which are known by a `=` in each; any other folder is that of another object, and none of our business.
"""

from __future__ import annotations

import errno
import re
from contextlib import AbstractContextManager
from typing import Protocol

TEMPORARY = ".tmp-"
AT_ONCE = 8  # files that are written or removed at once
_CODE = re.compile(r"(?:AWS Error (?:UNKNOWN \(HTTP status )?|Azure Error: \[)(\w+)")


class ReplacedError(OSError):
    """A file may be in place although its write failed: on this machine it is, but its directory could not be made durable."""


class UnusableError(Exception):
    """An object that this run cannot or must not use: what was found, what was expected, what to do next."""


def is_of_partition(folder: str) -> bool:
    """Whether a folder of this name belongs to a partition of the object around it; no object may have such a name."""
    return "=" in folder


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
        """The files, those in folders of partitions included. Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file that may be gone. Raises OSError."""

    def locked(self) -> AbstractContextManager[None]:
        """Changes of processes on one machine follow each other."""
