"""The destinations of profiles.yml and the syncs that go there, or every problem of them as one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem, raise_if_any
from dbt_reverse_etl.config.destinations import (
    Destination,
    PlanOnly,
    ResolvedSync,
    collect_destinations,
    collect_resolved,
)
from dbt_reverse_etl.config.profiles import DbtProject
from dbt_reverse_etl.config.settings import Sync


def load_destinations(
    directories: Sequence[Path], target: str, env: Mapping[str, str]
) -> PlanOnly | dict[str, Destination]:
    loaded = collect_destinations(directories, target, env, DbtProject())
    if isinstance(loaded, PlanOnly):
        return loaded
    raise_if_any([*loaded.problems, *(problem for some in loaded.unset.values() for problem in some)])
    return loaded.destinations


def refused(directory: Path, env: Mapping[str, str] | None = None, target: str = "prod") -> list[str]:
    """The problems of a profiles.yml that must not load."""
    with pytest.raises(ConfigurationError) as caught:
        load_destinations([directory], target, env or {})
    assert caught.value.exit_code == ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def resolve(syncs: Iterable[Sync], destinations: Mapping[str, Destination]) -> list[ResolvedSync]:
    problems: list[Problem] = []
    resolved = collect_resolved(syncs, destinations, problems)
    raise_if_any(problems)
    return resolved
