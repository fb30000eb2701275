"""One process of a Singer target: fed, listened to and ended in time. What its answer means is decided in `singer`."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import IO, Any

GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_DRAIN = 2.0  # seconds for the rest of stdout, once the target has ended
_GUARD = Path(__file__).with_name("guard.py")
_PIECE = 1 << 16
_LONGEST_LINE = 1 << 20


class NotStartedError(Exception):
    """The program could not be started, so nothing was read; the text is a reason."""


@dataclass(frozen=True)
class Program:
    """How to run a target.

    Attributes:
        command: program and arguments; `--config FILE` is added.
        config: the content of that file, which exists as long as the process, readable for this user only.
        env: the whole environment of the target.
        timeout: seconds from start to end.
        log_file: what the target writes to stderr is appended there; None: thrown away.
        folder: its working directory, to which paths of its arguments and its config are relative; None: ours.
    """

    command: Sequence[str]
    config: Mapping[str, Any]
    env: Mapping[str, str]
    timeout: float
    log_file: Path | None
    folder: Path | None = None


@dataclass(frozen=True)
class Ended:
    """How a target ended.

    Attributes:
        code: exit code, negative for a signal; None: nobody knows.
        in_time: False: it was ended after the timeout.
        last_line: of what it wrote to stdout, without blanks around it.
    """

    code: int | None
    in_time: bool
    last_line: bytes


def run(program: Program, messages: Iterable[bytes]) -> Ended:
    """Start the target, write the messages to its stdin, close it, and wait for the end.

    Raises:
        NotStartedError: it never ran.
    """
    with _guarded(program) as (guard, line), closing(_Talk(guard, line, messages)) as talk:
        in_time = talk.until(monotonic() + program.timeout)
        if not in_time:
            with suppress(OSError):
                line.send(b"T")
            talk.until(monotonic() + GRACE)
    kind, _, number = talk.answer.decode().partition(" ")
    if kind == "error":
        raise NotStartedError(os.strerror(int(number)))
    return Ended(int(number) if kind == "exit" else None, in_time, talk.last_line)


@contextmanager
def _guarded(program: Program) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The guard with the target, our end of its life line, and a file with the configuration for as long as it runs."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        try:
            config = _written(program.config)
            stack.callback(config.unlink, missing_ok=True)
            guard = _started(program, config, theirs)
        except OSError as error:
            raise NotStartedError(error.strerror or type(error).__name__) from None
        theirs.close()  # held by the guard alone, so that its end is seen
        stack.callback(_reaped, guard)
        stack.callback(ours.close)  # the first of these at the end: the guard kills what is left
        yield guard, ours


def _written(config: Mapping[str, Any]) -> Path:
    text = json.dumps(config)
    descriptor, name = tempfile.mkstemp(prefix="dbt-reverse-etl-", suffix=".json")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _started(program: Program, config: Path, line: socket.socket) -> subprocess.Popen[bytes]:
    command = [*program.command, "--config", str(config)]
    log = _log(program.log_file)
    try:
        return subprocess.Popen(  # noqa: S603  (a list, never a shell)
            [sys.executable, "-I", "-S", str(_GUARD), str(line.fileno()), str(config), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(program.env),
            cwd=program.folder,
            pass_fds=[line.fileno()],
            bufsize=0,
            start_new_session=True,  # Ctrl-C at the terminal is for us: the batch under way ends first
        )
    finally:
        if log != subprocess.DEVNULL:
            os.close(log)


def _log(path: Path | None) -> int:
    if path is None:
        return subprocess.DEVNULL
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise NotStartedError(f"log_file cannot be opened: {error.strerror}") from None


class _Talk:
    """Writes and reads at once, so that neither side waits for the other for ever; keeps the last line only."""

    def __init__(self, guard: subprocess.Popen[bytes], line: socket.socket, messages: Iterable[bytes]) -> None:
        assert guard.stdin is not None  # noqa: S101  (a pipe, as stdout)
        assert guard.stdout is not None  # noqa: S101
        self._pipes: tuple[IO[bytes], IO[bytes]] = (guard.stdin, guard.stdout)
        self._line = line
        self._messages = iter(messages)
        self._rest = memoryview(b"")
        self._tail = self._last = b""
        self.answer = b""
        self._drained_by = inf
        os.set_blocking(guard.stdin.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(guard.stdin, selectors.EVENT_WRITE, self._write)
        self._selector.register(guard.stdout, selectors.EVENT_READ, self._read)
        self._selector.register(line, selectors.EVENT_READ, self._take_answer)

    @property
    def last_line(self) -> bytes:
        return self._tail.strip() or self._last.strip()

    def until(self, deadline: float) -> bool:
        """Whether the target ended before the deadline. A process that it left behind may hold its stdout for ever."""
        while self._is_on(self._pipes[1]) or self._is_on(self._line):
            left = min(deadline, self._drained_by) - monotonic()
            if left <= 0:
                return bool(self.answer)
            for key, _events in self._selector.select(left):
                key.data()
        return True

    def close(self) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()

    def _is_on(self, file: IO[bytes] | socket.socket) -> bool:
        return file in self._selector.get_map()

    def _write(self) -> None:
        stdin = self._pipes[0]
        if not self._rest:
            self._rest = memoryview(next(self._messages, b""))
        try:
            written = os.write(stdin.fileno(), self._rest[:_PIECE]) if self._rest else 0
        except BlockingIOError:
            return
        except OSError:  # it reads no more; its exit code says why
            written = 0
        self._rest = self._rest[written:]
        if not written:
            self._selector.unregister(stdin)
            stdin.close()

    def _read(self) -> None:
        stdout = self._pipes[1]
        piece = os.read(stdout.fileno(), _PIECE)
        if not piece:
            self._selector.unregister(stdout)
        *lines, tail = (self._tail + piece).split(b"\n")
        self._last = next((line for line in reversed(lines) if line.strip()), self._last)
        self._tail = tail[-_LONGEST_LINE:]

    def _take_answer(self) -> None:
        with suppress(OSError):
            self.answer = self._line.recv(64)
        self._selector.unregister(self._line)
        if self.answer:  # without one the target may still run
            self._drained_by = monotonic() + _DRAIN


def _reaped(guard: subprocess.Popen[bytes]) -> None:
    try:
        guard.wait(GRACE)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
