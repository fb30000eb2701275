"""A push or a report, in a process of its own: what becomes of it never takes the server down."""

from __future__ import annotations

import fcntl
import math
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

STOP_GRACE = 30.0  # seconds; a push that is told to end needs up to ten
_GLANCE = 0.2


class Stopped(Exception):
    """We were told to stop before the push began."""


class PushProcess:
    """Runs pushes one after the other.

    The lock is handed down to the process: a push that outlives its killed server is waited for by the next one.

    Args:
        command: how to start the push; arguments are appended.
        lock: a file that is locked while a push runs.
        stopping: once it is set, a push that runs is told to end.
    """

    def __init__(self, command: Sequence[str], lock: Path, stopping: threading.Event) -> None:
        self._command, self._lock, self._stopping = command, lock, stopping

    def run(self, arguments: Sequence[str], seconds: float = math.inf) -> int:
        """Its exit code; negative for the signal that ended it. After so many seconds it is told to end.

        Raises:
            Stopped: it was not begun.
            OSError: it cannot be started.
        """
        with self._locked() as lock:
            # Its output is ours: a pipe would break, and the push with it, when the server is killed.
            process = subprocess.Popen(  # noqa: S603  (the command is the user's own setting)
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
            return self._ended(process, time.monotonic() + seconds)

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        with self._lock.open("a") as lock:
            while True:
                if self._stopping.is_set():
                    raise Stopped
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._stopping.wait(_GLANCE)
            yield lock

    def _ended(self, process: subprocess.Popen[bytes], until: float) -> int:
        while not self._stopping.is_set() and time.monotonic() < until:
            try:
                return process.wait(_GLANCE)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
