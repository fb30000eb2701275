"""The process of the command, which hears of signals before it imports anything, and until it ends."""

from __future__ import annotations

import atexit
import os
import sys

from dbt_reverse_etl.base.interrupts import INTERRUPTED, end_at_once

_UNFLUSHED = 120  # as Python has it


def main() -> None:
    """Entry point."""
    end_at_once()
    code = 1  # of what nobody caught

    def leave() -> None:
        # Python's own end gives the signals back first, and dies of a SIGINT that an `exec` saw.
        os._exit(code if _flushed() else code or _UNFLUSHED)

    atexit.register(leave)  # before all others, to be the last of them
    from dbt_reverse_etl import cli

    try:
        try:
            code = cli.main()
        finally:
            end_at_once()
    except KeyboardInterrupt:  # while the command was ending
        code = INTERRUPTED


def _flushed() -> bool:
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # full, or closed
        return False
    return True


if __name__ == "__main__":
    main()
