"""The whole configuration of one dbt target: its syncs, their destinations and the channels of its alerts, with every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from dbt_reverse_etl.alerts.channels import Channel, collect_channels
from dbt_reverse_etl.app.versions import other_macros
from dbt_reverse_etl.base.errors import ConfigurationError, Problem, raise_if_any
from dbt_reverse_etl.config.destinations import (
    Destination,
    PlanOnly,
    ResolvedSync,
    collect_destinations,
    collect_resolved,
)
from dbt_reverse_etl.config.manifest import Node, asked_destinations, collect_syncs, profile_of, target_of
from dbt_reverse_etl.config.profiles import DbtProject
from dbt_reverse_etl.config.settings import Sync


class Configuration(NamedTuple):
    """The whole configuration of one target. `unset`: by destination, the problems of variables that are not set; under an empty name those of the alerts."""

    syncs: list[Sync]
    destinations: PlanOnly | dict[str, Destination]
    resolved: list[ResolvedSync]
    alerts: Mapping[int, Channel] = MappingProxyType({})
    unset: Mapping[str, Sequence[Problem]] = MappingProxyType({})

    def refuse_unset(self, pushed: Iterable[Sync] = (), planned: Iterable[Sync] = ()) -> None:
        """Look at the variables of what is used now: no other command needs its secrets.

        A destination of which more than a secret is unset has no identity. Beside a push it might be another name of the same system.

        Raises:
            ConfigurationError: some are not set.
        """
        sent, shown = ({sync.settings.destination for sync in some if sync.enabled} for some in (pushed, planned))
        used = {sync.settings.destination for sync in self.syncs if sync.enabled} if sent else shown
        nameless = {name for name in used if isinstance(self.destinations, dict) and name not in self.destinations}
        asked = sent | nameless | ({""} if sent else set())
        raise_if_any([problem for name, problems in self.unset.items() if name in asked for problem in problems])


def configure(
    manifest: Node, directories: Sequence[Path], target: str, env: Mapping[str, str], project_dir: Path | None = None
) -> Configuration:
    """Syncs, destinations and both joined; `resolved` is empty where the target only plans or no sync is there.

    A variable that is not set is no error here: `Configuration.refuse_unset`.

    Args:
        project_dir: the folder to which the paths of destinations, alerts and a sync's options are relative.

    Raises:
        ConfigurationError: with every problem of all of them.
    """
    problems: list[Problem] = []
    found, metadata = collect_syncs(manifest, problems), manifest.get("metadata") or {}
    if not found and not problems:
        return Configuration([], {}, [])
    problems.extend(other_macros(manifest))
    problems.extend(_other_target(manifest, target))
    project = DbtProject(metadata.get("project_name") or "", profile_of(manifest), project_dir)
    try:
        loaded = collect_destinations(directories, target, env, project, asked_destinations(manifest))
    except ConfigurationError as error:
        raise ConfigurationError(*problems, *error.problems) from None
    if isinstance(loaded, PlanOnly):
        raise_if_any(problems)
        return Configuration(found, loaded, [])
    problems.extend(loaded.problems)
    enabled = [sync for sync in found if sync.enabled]
    resolved = collect_resolved(enabled, loaded.destinations, problems, project_dir)
    of_alerts: list[Problem] = []
    alerts = collect_channels(directories, target, env, problems, of_alerts, project_dir)
    raise_if_any(problems)
    return Configuration(found, loaded.destinations, resolved, alerts, {**loaded.unset, "": of_alerts})


def _other_target(manifest: Node, target: str) -> list[Problem]:
    """Rows of one target would go into the destinations of another. dbt's partial parsing does not see each change of the target."""
    written = target_of(manifest)
    if written in ("", target):
        return []
    next_step = "run dbt once with --no-partial-parse, and give dbtRunner no manifest of another target"
    found = f"the tables of target {written}, for which it was made"
    return [Problem("manifest.json", found, f"those of {target}, the target of this command", next_step)]
