"""The file that an option of a command names, to be written in place of a former one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dbt_reverse_etl.base.durable import put
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError, mistake


def refuse_unwritable(option: str, file: Path) -> None:
    """Before any work. Raises ConfigurationError."""
    if _is_stream(file):
        return
    file = file.resolve()  # a link stays one
    folder, next_step = file.parent, "make it, or name another"
    if not folder.is_dir():
        raise mistake(option, f"no folder {folder}", "a folder that is there", next_step)
    if file.exists() and not file.is_file():
        raise mistake(option, f"{file}, which is no file", "a file: it is replaced", "name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        found, expected = f"the folder {folder}, which cannot be written", "one that this user may write"
        raise mistake(option, found, expected, "name a file in another folder")


def write_out(option: str, file: Path, text: str) -> None:
    """Write it whole, or leave the former one. Raises ReverseEtlError."""
    try:
        if file == Path("/dev/stdout"):
            click.echo(text.encode(), nl=not text.endswith("\n"))  # where the other lines of the command go
        elif _is_stream(file):
            with file.open("a", encoding="utf-8") as opened:
                opened.write(text)
        else:
            put(file.resolve(), text.encode())
    except OSError as error:
        found = f"{file}, which cannot be written ({type(error).__name__})"
        next_step = "free the disk, or name a file in another folder"
        raise ReverseEtlError(Problem(option, found, "room, and the right to write it", next_step)) from None


def _is_stream(file: Path) -> bool:
    """A pipe, a terminal, or what the shell has opened, such as /dev/stdout: nothing takes its place."""
    return file.is_fifo() or file.is_char_device() or file.parent in (Path("/dev"), Path("/dev/fd"))
