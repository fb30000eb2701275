"""The process of the command, which hears of signals before it imports anything, and until it ends."""

from __future__ import annotations

import atexit
import sys

from dbt_reverse_etl.base.interrupts import INTERRUPTED, end_at_once, end_in_peace


def main() -> None:
    """Entry point."""
    end_at_once()
    atexit.register(end_in_peace)  # before all others, to be the last of them
    from dbt_reverse_etl import cli

    try:
        try:
            code = cli.main()
        finally:
            end_at_once()
    except KeyboardInterrupt:  # while the command was ending
        code = INTERRUPTED
    # Python ends itself by SIGINT once an `exec` has seen one, unless another one came after it.
    exec("")  # noqa: S102
    sys.exit(code)


if __name__ == "__main__":
    main()
