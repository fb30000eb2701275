"""Where a service runs, how patient it is, and what a test may change of both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.config.profiles import profile_directories
from dbt_reverse_etl.delivery.gate import jitter
from dbt_reverse_etl.delivery.progress import Step, no_step
from dbt_reverse_etl.serve.position import Run, Trouble

# Tries that failed alike, and seconds since the first of them: a run fails when both are spent.
Limit = tuple[int, float]
_LONGEST_PAUSE = 3600.0  # seconds that the API may ask to wait


@dataclass(frozen=True)
class Patience:
    """How long something is tried.

    Attributes:
        first, most: seconds between two tries; the wait doubles from one to the other, with jitter.
        fetch, push, busy: before a run fails; `busy` while another run holds a sync, which after a kill elsewhere lasts as long as its lease.
    """

    first: float = 5
    most: float = 600
    fetch: Limit = (10, 6 * 3600)
    push: Limit = (4, 0)
    busy: Limit = (4, 2 * 3600)

    def is_spent(self, run: Run, now: float) -> bool:
        """Whether a run fails: it was tried, and for long enough, for the trouble that it has."""
        tries, seconds = {Trouble.FETCH: self.fetch, Trouble.BUSY: self.busy}.get(run.trouble, self.push)
        return run.tries >= tries and now - (run.since or run.found_at) >= seconds

    def wait(self, tries: int, asked: float = 0.0, most: float = math.inf) -> float:
        """Seconds before the next try, at most `most`; but at least as many as were asked for, up to an hour."""
        longest = min(self.most, most, self.first * 2.0 ** min(tries, 30))
        return max(longest * (0.5 + jitter() / 2), min(asked, _LONGEST_PAUSE))


@dataclass(frozen=True)
class Surroundings:
    """The project, and where its log goes.

    Attributes:
        tell: a line of the log and its level: info, warn, error.
        log_format: of a push and a report.
        step: called between any two steps, so that a test may kill the process there.
        clock: of the waits between tries.
    """

    project_dir: Path
    profiles_dir: Path | None
    env: Mapping[str, str]
    tell: Callable[[str, str], None]
    log_format: str = "text"
    patience: Patience = field(default_factory=Patience)
    step: Step = no_step
    clock: Callable[[], float] = time.monotonic

    @property
    def profiles(self) -> list[Path]:
        """Where profiles.yml may stand."""
        return profile_directories(self.profiles_dir, self.project_dir, self.env)

    def say(self, text: str, level: str) -> None:
        """A line of the log, without any secret."""
        self.tell(redact(text), level)

    def arguments(self, command: str, artifacts: Path, target: str, *more: str) -> Sequence[str]:
        """The words after `dbt-reverse-etl`, to push or to report the artifacts of a folder."""
        profiles = ["--profiles-dir", str(self.profiles_dir.resolve())] if self.profiles_dir else []
        place = ["--project-dir", str(self.project_dir), *profiles, "--target-path", str(artifacts.resolve())]
        return [command, *place, "--target", target, "--log-format", self.log_format, *more]
