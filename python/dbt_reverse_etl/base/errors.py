"""The errors that a user sees. Each has three parts: what was found, what was expected, what to do next."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process tells its caller; documented in docs/operations.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BLOCKED = 3
    BUSY = 4
    OTHER_CHANGELOG = 5
    OVERTAKEN = 6
    INTERRUPTED = 130


def worst(codes: Iterable[int]) -> int:
    """The exit code to act on; that a sync was overtaken is worse than success only."""
    return max(codes, key=lambda code: 0.5 if code == ExitCode.OVERTAKEN else code, default=ExitCode.OK)


NEXT = ". Next: "  # before what to do


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: file and key, or the name of the sync or destination.
        found: what stands there; never a secret, never a row value.
        expected: what is allowed there.
        next_step: what the user types or changes.
    """

    where: str
    found: str
    expected: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; expected {self.expected}{NEXT}{self.next_step}"


class ReverseEtlError(Exception):
    """A failure that a user can act on; it is shown without a traceback, and with lines that say more.

    Attributes:
        push_status: of the push that it stops; an error of a sink may have a `status` of HTTP.
    """

    exit_code = ExitCode.FAILED
    push_status: ClassVar[str] = "failed"

    def __init__(self, *problems: Problem, more: Sequence[str] = ()) -> None:
        super().__init__("\n".join([*map(str, problems), *more]))
        self.problems: tuple[Problem, ...] = problems


class ConfigurationError(ReverseEtlError):
    """Everything that is wrong in the configuration, at once, before anything is captured or sent."""

    exit_code = ExitCode.USAGE


def mistake(where: str, found: str, expected: str, next_step: str) -> ConfigurationError:
    """The error of one problem."""
    return ConfigurationError(Problem(where, found, expected, next_step))


class DestinationError(ReverseEtlError):
    """The destination or its configuration stops the whole sync (outcome `fatal`)."""


def raise_if_any(problems: Sequence[Problem], kind: type[ReverseEtlError] = ConfigurationError) -> None:
    """Raise an error with all of them, each once."""
    if problems:
        raise kind(*dict.fromkeys(problems))


class GuardBlocked(ReverseEtlError):
    """A guard refused the push before the first send."""

    exit_code = ExitCode.BLOCKED
    push_status = "blocked"


class SyncBusy(ReverseEtlError):
    """Another run holds the sync."""

    exit_code = ExitCode.BUSY
    push_status = "busy"


class PositionLost(ReverseEtlError):
    """The positions of the ledger do not say what the destination holds.

    Attributes:
        reason: its status in a few words, for the ledger.
        fence: the newest that the destination knows; runs of this ledger have to come after it.
    """

    exit_code = ExitCode.OTHER_CHANGELOG

    def __init__(self, problem: Problem, reason: str, fence: int = 0) -> None:
        super().__init__(problem)
        self.reason, self.fence = reason, fence


class OtherChangelog(PositionLost):
    """The sync's position belongs to a changelog that is gone."""

    push_status = "other_changelog"


class RestoredChangelog(PositionLost):
    """The changelog was taken back behind what was delivered."""

    push_status = "restored_changelog"


class OtherLedger(PositionLost):
    """Another ledger holds the positions of the sync, or this one was taken back."""

    push_status = "other_ledger"


class Renamed(ReverseEtlError):
    """The sync's position stands under a name that it had before."""

    exit_code = ExitCode.OTHER_CHANGELOG
    push_status = "renamed"


def unexpected(error: BaseException, where: str) -> Problem:
    """A problem for an exception that is not ours. Its text may hold row values, so only its type and its frames are kept, in a file."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    try:
        name = _file_of(f"{type(error).__name__}\n{frames}")
        next_step = f"report it with {name}, which holds no row values"
    except OSError:  # if it got out, Python would print the text of the first error with it
        next_step = "free the disk, or set TMPDIR to a folder that can be written, and run it again"
    return Problem(where, f"an unexpected {type(error).__name__}", "none", next_step)


_files: dict[str, str] = {}  # text -> name: an error that every sync meets fills no disk


def _file_of(text: str) -> str:
    """The file with this text, written once by this process."""
    if text not in _files or not Path(_files[text]).exists():
        with tempfile.NamedTemporaryFile(prefix="dbt-reverse-etl-", suffix=".txt", delete=False) as file:
            file.write(text.encode(errors="backslashreplace"))
        _files[text] = file.name
    return _files[text]
