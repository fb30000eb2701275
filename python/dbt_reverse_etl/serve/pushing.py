"""A push or a report, in a process of its own: what becomes of it never takes the server down."""

from __future__ import annotations

import fcntl
import math
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NOT_STARTED = 127  # what a shell says of a command that is not there
_STOP_GRACE = 30.0  # seconds; a push needs up to ten to end
_GLANCE = 0.2


class PushProcess:
    """Runs pushes one after the other.

    The lock is handed down to the process: a push that outlives its killed server is waited for by the next one.

    Args:
        command: how to start the push; arguments are appended.
        lock: a file that is locked while a push runs.
        stopping: once it is set, a running push gets SIGTERM.
        umask: of the process: what a push writes may be for others, too.
    """

    def __init__(self, command: Sequence[str], lock: Path, stopping: threading.Event, umask: int) -> None:
        self._command, self._lock, self._stopping, self._umask = command, lock, stopping, umask
        self.is_running = False

    def run(self, arguments: Sequence[str], seconds: float = math.inf) -> int:
        """Its exit code; negative for the signal that ended it, or that came before it began. After so many seconds it gets SIGTERM."""
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.is_running = True
            try:
                if self._stopping.is_set():
                    return -signal.SIGTERM
                return self._ended(self._started(arguments, lock.fileno()), time.monotonic() + seconds)
            except OSError:
                return NOT_STARTED
            finally:
                self.is_running = False

    def _started(self, arguments: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
        # Its output is ours: a pipe would break, and the push with it, when the server is killed.
        return subprocess.Popen(  # noqa: S603  (the command is the user's own setting)
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
            umask=self._umask,
        )

    def _ended(self, process: subprocess.Popen[bytes], until: float) -> int:
        while not self._stopping.is_set() and time.monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_GLANCE)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(_STOP_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
