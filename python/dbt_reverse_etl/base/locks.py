"""Locks of the kernel, which go with their process: what Windows does not have."""

from __future__ import annotations

from importlib.util import find_spec


def no_locks() -> tuple[str, str, str] | None:
    """What was found, expected and is to be done, if this system has none."""
    if find_spec("fcntl"):
        return None
    return "an operating system without fcntl", "Linux or macOS", "run it there, on Windows through WSL"
