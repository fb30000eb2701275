"""What the command line writes: text for people, or one JSON object per line for a collector of logs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO

import click
import orjson

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.terminal.screen import Bars, Screen, Write, colours, on_terminal

_COLOURS = {"error": "red", "warn": "yellow"}
# Control characters and marks of direction (Unicode Annex 9): keys and names come from others.
_MOVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FORMATS = ("text", "timed", "json")


def screen(
    log_format: str, env: Mapping[str, str], *, quiet: bool = False, verbose: bool = False, document: bool = False
) -> Screen:
    """Where the lines of a command go. `quiet`: errors only; `document`: stdout is for one JSON document, so that lines go to stderr."""
    as_json = log_format == "json"
    write = _json_lines(to_stderr=document) if as_json else _text(env, timed=log_format == "timed", to_stderr=document)
    if quiet:
        write = _errors_of(write)
    if not quiet and log_format == "text" and on_terminal(sys.stderr, env):
        return Bars(write, sys.stderr, colours=colours(env), verbose=verbose)
    return Screen(write, verbose=verbose)


def _text(env: Mapping[str, str], *, timed: bool, to_stderr: bool) -> Write:
    def write(text: str, level: str, about: Mapping[str, Any]) -> None:  # noqa: ARG001  (the shape of Write)
        if timed:
            head = f"{_now()} {level:5} "
            text = "\n".join(head + line for line in text.splitlines())
        err = to_stderr or level == "error"
        text = _in_letters_of(sys.stderr if err else sys.stdout, text)
        click.secho(text, fg=_COLOURS.get(level), err=err, color=None if colours(env) else False)

    return write


def _json_lines(*, to_stderr: bool) -> Write:
    def write(text: str, level: str, about: Mapping[str, Any]) -> None:
        line = _dumped({"at": _now(), "level": level, "message": text.strip(), **about}).decode()
        _put_utf_8(_unmoving(line).encode(), err=to_stderr)

    return write


def put(text: str) -> None:
    """A table, or text below it, on stdout. Raises ReverseEtlError."""
    with _written():
        click.echo(_in_letters_of(sys.stdout, text))


def put_json(document: object) -> None:
    """One JSON document on stdout, in UTF-8 whatever the terminal takes. Raises ReverseEtlError."""
    with _written():
        _put_utf_8(_dumped(document, orjson.OPT_INDENT_2))


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of `| head`, which click ends
        raise
    except OSError as error:
        found = f"{error.strerror or type(error).__name__}, so nothing more can be written"
        next_step = "free the disk, or write elsewhere"
        raise ReverseEtlError(Problem("standard output", found, "room, and the right to write", next_step)) from None


def _dumped(document: object, option: int | None = None) -> bytes:
    try:
        return orjson.dumps(document, option=option)
    except TypeError:  # the name of a file need not be UTF-8
        return orjson.dumps(_in_utf_8(document), option=option)


def _in_utf_8(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_in_utf_8(key): _in_utf_8(one) for key, one in value.items()}
    return [*map(_in_utf_8, value)] if isinstance(value, (list, tuple)) else value


def _put_utf_8(text: bytes, *, err: bool = False) -> None:
    """JSON is UTF-8. A stream that replaces standard output, as in a notebook, may take text alone."""
    is_binary = hasattr(sys.stderr if err else sys.stdout, "buffer")
    click.echo(text if is_binary else text.decode(), err=err)


def _in_letters_of(stream: TextIO | None, text: str) -> str:
    """A name that the terminal has no letters for must not end a push, and none may move its cursor or turn the line around."""
    encoding = (stream and stream.encoding) or "utf-8"
    return _unmoving(text).encode(encoding, "backslashreplace").decode(encoding)


def _unmoving(text: str) -> str:
    return _MOVES.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _errors_of(write: Write) -> Write:
    def only(text: str, level: str, about: Mapping[str, Any]) -> None:
        if level == "error":
            write(text, level, about)

    return only
