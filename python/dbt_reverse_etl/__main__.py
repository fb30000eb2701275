"""The process of the command, which hears of signals before it imports anything, and until it ends."""

from __future__ import annotations

from dbt_reverse_etl.base.interrupts import end_at_once


def main() -> None:
    """Entry point."""
    end_at_once()
    from dbt_reverse_etl import cli

    try:
        cli.main()
    finally:
        end_at_once()


if __name__ == "__main__":
    main()
