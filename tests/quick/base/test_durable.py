"""What is on the disk when a write returns, on a Mac, whose fsync leaves it in the memory of the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from dbt_reverse_etl.base.durable import sync_directory, write

FULL = 51  # F_FULLFSYNC of macOS


@pytest.mark.parametrize("step", [lambda folder: write(folder / "file", b"x"), sync_directory])
@pytest.mark.parametrize(("error", "fails"), [(None, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_on_a_mac_the_memory_of_the_disk_is_emptied_too_where_the_file_system_can(
    step: Callable[[Path], None], error: int | None, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[int] = []

    def emptied(descriptor: int, command: int) -> None:
        os.fstat(descriptor)  # still open
        commands.append(command)
        if error:
            raise OSError(error, "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", emptied)
    with pytest.raises(OSError) if fails else nullcontext():
        step(tmp_path)
    assert commands == [FULL]
