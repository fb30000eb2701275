"""Runs a Singer target for `process`, as a program of its own: `python -I -S guard.py SOCKET CONFIG COMMAND...`.

The socket is a life line: a byte on it asks the target to end (SIGTERM); when it closes, for our process has ended in
whatever way, the target and all that it started in its process group are killed. So no target outlives the run that
fed it, and writes an old value over a newer one. At the end the answer goes back: `exit N` (negative: a signal) or
`error ERRNO` if the target could not be started. Standard library only.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress


def main(descriptor: str, config: str, command: list[str]) -> None:
    line = socket.socket(fileno=int(descriptor))
    try:
        target = subprocess.Popen(command, start_new_session=True)  # noqa: S603  (a list, never a shell)
    except OSError as error:
        answer = f"error {error.errno}"
    else:
        threading.Thread(target=_watch, args=(line, target.pid), daemon=True).start()
        answer = f"exit {target.wait()}"
        _end(target.pid, signal.SIGKILL)
    with suppress(OSError):
        os.unlink(config)  # noqa: PTH108  (pathlib costs start-up time)
    with suppress(OSError):
        line.sendall(answer.encode())


def _watch(line: socket.socket, group: int) -> None:
    with suppress(OSError):
        while line.recv(1):
            _end(group, signal.SIGTERM)
    _end(group, signal.SIGKILL)


def _end(group: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
