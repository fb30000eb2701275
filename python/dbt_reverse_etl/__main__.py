"""The process of the command, which hears of signals before it imports anything, and until it ends."""

from __future__ import annotations

import sys

from dbt_reverse_etl.base.interrupts import INTERRUPTED, end_at_once


def main() -> None:
    """Entry point."""
    end_at_once()
    from dbt_reverse_etl import cli

    try:
        try:
            cli.main()
        finally:
            end_at_once()
    except KeyboardInterrupt:  # while the command was ending
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
