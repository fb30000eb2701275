"""`serve` and `poll` in a process of their own: quick to try again, and killed, or told to end, at the step that SIGNAL_AT names."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dbt_reverse_etl import cli
from dbt_reverse_etl.serve import (
    connections,
    service,  # noqa: F401  (imported once, before the processes fork)
    surroundings,
)

QUICK = surroundings.Patience(first=0.05, most=0.1, fetch=(4, 1), push=(3, 0), busy=(5, 0))


def at_step(name: str) -> None:
    """SIGNAL_AT names a step and what comes there: SIGKILL ends the process, SIGTERM is taken up by it."""
    step, _, number = os.environ.get("SIGNAL_AT", "").partition(":")
    if name == step:
        os.kill(os.getpid(), int(number))
        while "stopping" not in Path(os.environ["LOG"]).read_text():
            time.sleep(0.01)


def main(words: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """As a shell would start it, with the log for what it says."""
    os.environ.update(env, LOG=str(log))
    with log.open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    connections.LIFE = float(env.get("LIFE", connections.LIFE))
    surroundings.Surroundings = partial(surroundings.Surroundings, patience=QUICK, step=at_step)  # type: ignore[misc, assignment]
    sys.argv = ["dbt-reverse-etl", *words]
    sys.exit(cli.main())
