"""The process that holds a sync, as the ledger names it, and whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_alive(owner: str) -> bool:
    """Whether the process of an unfinished run still lives; on another machine only its lease tells."""
    host, _, process = owner.rpartition(":")
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return int(process) != os.getpid() and not _is_zombie(process)


def _is_zombie(process: str) -> bool:
    """It has ended, and nobody has asked how: so it stays in a container whose first process is no init."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # not on Linux, or gone by now
        return False
