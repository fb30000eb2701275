"""`serve` and `poll` in a process of their own: quick to try again, and killed at the step that KILL_AT names."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dbt_reverse_etl import cli
from dbt_reverse_etl.serve import parts
from dbt_reverse_etl.serve.worker import Patience

QUICK = Patience(first=0.05, most=0.1, fetches=4, fetch_seconds=1, final_fetches=3, pushes=3)


def die(name: str) -> None:
    if name == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    made = parts.Surroundings

    def surroundings(folder: Path, profiles: Path | None, env: dict[str, str], tell: parts.Say) -> parts.Surroundings:
        return made(folder, profiles, env, tell, QUICK, die)

    from dbt_reverse_etl.serve import service

    service.Surroundings = surroundings  # type: ignore[assignment,misc]
    sys.argv[0] = "dbt-reverse-etl"
    cli.main()


if __name__ == "__main__":
    main()
