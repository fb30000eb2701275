"""What is on the disk when a call returns, also after a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, content: bytes) -> None:
    """Write a file and its content to the disk; its name needs `sync_directory`."""
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
