"""The process that holds a sync, as the ledger names it, and whether it still lives."""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PROC = Path("/proc")  # of Linux alone
_numbers = itertools.count()
_at_work = set[str]()


def this_process() -> str:
    """`host:process id:place:start`: containers and clones of a machine share names and numbers, and numbers come again."""
    return f"{socket.gethostname()}:{os.getpid()}:{_place()}:{_stat('self')[1]}"


@contextmanager
def at_work() -> Iterator[str]:
    """The name of a push of this process, which lives until its end: another thread may push the same sync."""
    name = f"{this_process()}:{next(_numbers)}"
    _at_work.add(name)
    try:
        yield name
    finally:
        _at_work.discard(name)


def is_alive(owner: str) -> bool:
    """Whether the push of an unfinished run still lives, by its process; elsewhere only its lease tells."""
    host, process, place, start = (owner.split(":") + [""] * 4)[:4]
    # Without a place, two machines of one name look alike; on Windows signal 0 is a Ctrl+C.
    if not place or (host, place) != (socket.gethostname(), _place()) or not process.isdecimal():
        return True
    if int(process) == os.getpid():  # us, or one that had our number before
        return owner in _at_work
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, started = _stat(process)
    # A zombie has ended, and nobody has asked how: so it stays in a container whose first process is no init.
    return state != "Z" and started in (start, "")


@cache
def _place() -> str:
    """Tells machines, their starts and the containers on them apart; empty where the system does not say."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        place = f"{boot} {(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        # A Mac has no containers of its own; without hardware that has a number, each process gets another one.
        place = str(uuid.getnode()) if sys.platform == "darwin" else ""
    return place and hashlib.sha256(place.encode()).hexdigest()[:8]


def _stat(process: str) -> tuple[str, str]:
    """State of a process and when it started, in clock ticks since the machine did (proc_pid_stat(5)); empty where the system does not say."""
    try:
        fields = (_PROC / process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
