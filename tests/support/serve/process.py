"""`serve` and `poll` in a process of their own: quick to try again, and killed at the step that KILL_AT names."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dbt_reverse_etl import cli
from dbt_reverse_etl.serve import parts, service
from dbt_reverse_etl.serve.worker import Patience

QUICK = Patience(first=0.05, most=0.1, fetches=4, fetch_seconds=1, final_fetches=3, pushes=3)


def die(name: str) -> None:
    if name == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """As a shell would start it, with the log for what it says."""
    os.environ.update(env)
    with log.open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    made = parts.Surroundings

    def surroundings(folder: Path, profiles: Path | None, env: dict[str, str], tell: parts.Say) -> parts.Surroundings:
        return made(folder, profiles, env, tell, QUICK, die)

    service.Surroundings = surroundings  # type: ignore[assignment,misc]
    sys.argv = ["dbt-reverse-etl", *words]
    cli.main()
