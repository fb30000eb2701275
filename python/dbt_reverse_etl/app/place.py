"""A dbt project on disk, as the commands find it, and what those need that look into a ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dbt_reverse_etl.base.dbt_options import project_settings, told, variables
from dbt_reverse_etl.base.errors import ConfigurationError, mistake, raise_if_any
from dbt_reverse_etl.config import validation
from dbt_reverse_etl.config.destinations import PlanOnly, resolved_of
from dbt_reverse_etl.config.manifest import profile_of, target_of
from dbt_reverse_etl.config.profiles import profile_directories, read_profile
from dbt_reverse_etl.config.rendering import render

_SETTINGS = "dbt_project.yml"


class Place:
    """A dbt project on disk, and the target that holds for it."""

    def __init__(self, folder: Path, profiles_dir: Path | None, target: str | None, target_path: Path | None) -> None:
        folder = folder.resolve()
        self.folder, self.env = folder, dict(os.environ)
        self.profiles = profile_directories(profiles_dir, folder, self.env)
        self.artifacts = artifacts_folder(folder, target_path, self.env)
        self._target, self._made_with = target, ""
        profiles_dir = profiles_dir and profiles_dir.resolve()
        self._given = {"--profiles-dir": profiles_dir, "--target": target, "--target-path": target_path}

    def dbt_options(self, target: str | None = None) -> list[str]:
        """What tells dbt of the same place, and with `target` of the very target and profile that hold for this command."""
        given = {"--project-dir": self.folder, **self._given}
        if target is not None:
            folder = next((one for one in self.profiles if (one / "profiles.yml").is_file()), None)
            given |= {"--target": target, "--profiles-dir": folder and folder.resolve()}
        return [str(part) for name, value in given.items() if value for part in (name, value)]

    def project(self, target: str | None = None) -> Any:
        """The project for a target, by default for that of its artifacts; empty where none is needed."""
        from dbt_reverse_etl.app.project import Project

        target = self.target() if target is None else target
        return Project(self.artifacts, self.profiles, target, self.folder, self.env)

    def target(self) -> str:
        """That of the manifest, which names its tables; another one that is asked for, also as dbt's variable, is an error."""
        manifest = self.project("").manifest()
        written, self._made_with = target_of(manifest), profile_of(manifest)
        asked = self._target or told("TARGET", self.env)
        if asked and written and asked != written:
            where = "--target" if self._target else " or ".join(variables("TARGET"))
            next_step = f"run dbt with --target {asked}, or give --target {written} here"
            raise mistake(where, asked, f"{written}, the target of manifest.json", next_step)
        return written or self.asked_target()

    def asked_target(self) -> str:
        """The one that dbt would take now."""
        return self._target or told("TARGET", self.env) or self._default_target()

    def session(self, target: str) -> Callable[[], Any]:
        """What gives the Spark session that the dbt profile describes; the profile is read and checked at once.

        Raises:
            ConfigurationError: the profile describes no session in this process.
        """
        place, profile = self._profile()
        output = profile["outputs"].get(target)
        where = f"{place.at('outputs')}.{target}"
        if not isinstance(output, Mapping):
            raise mistake(where, "no such target", f"one of {', '.join(profile['outputs'])}", "correct --target")
        wanted = {name: output.get(name) for name in ("type", "method")}
        rendered = render({**wanted, "conf": output.get("server_side_parameters") or {}}, self.env, place)
        raise_if_any(rendered.problems)
        kind, method, conf = (rendered.value[name] for name in ("type", "method", "conf"))
        if (kind, method) != ("spark", "session"):
            found = f"type {kind}, method {method}"
            next_step = "push where Spark runs in the process"
            if kind == "databricks":
                next_step = "push with a Python model in the workspace: docs/databricks.md"
            raise mistake(where, found, "type: spark with method: session", next_step)
        os.chdir(self.folder)  # relative paths of the profile are those of the project, as for dbt
        from dbt_reverse_etl.warehouse.session import connect

        return partial(connect, {name: str(value) for name, value in conf.items()})

    def _profile(self) -> tuple[Any, Mapping[str, Any]]:
        """The one that is asked for; else that of the manifest, if the file has it, for that of dbt Cloud is not there; else the project's own."""
        if self._made_with and not told("PROFILE", self.env):
            with suppress(ConfigurationError):
                return read_profile(self.profiles, self._made_with)
        return read_profile(self.profiles, told("PROFILE", self.env) or str(_setting("profile", self.folder, self.env)))

    def _default_target(self) -> str:
        place, profile = self._profile()
        rendered = render(profile.get("target", "default"), self.env, place)
        raise_if_any(rendered.problems)
        return str(rendered.value)


def artifacts_folder(project: Path, target_path: Path | None, env: Mapping[str, str]) -> Path:
    """Where dbt leaves its artifacts: where it was told to, or where dbt_project.yml says."""
    if target_path is None and (project / _SETTINGS).is_file():
        target_path = _setting("target-path", project, env)
    return project / str(target_path or "target")


def _setting(name: str, project: Path, env: Mapping[str, str]) -> Any:
    """What dbt_project.yml says."""
    rendered = render(project_settings(project).get(name), env, validation.Place(_SETTINGS, (name,)))
    raise_if_any(rendered.problems)
    return rendered.value


class Opened:
    """What `plan`, `status` and `reconcile` need: the chosen syncs, the ledger's view of them, and a session.

    With `reaches`, the destinations are asked, so that their secrets are needed; with `sends`, rows are sent to them. With `sends` or `plans`,
    guards judge, so that overrides are read.
    """

    def __init__(
        self, place: Place, selectors: Iterable[str], *, reaches: bool = False, sends: bool = False, plans: bool = False
    ) -> None:
        from dbt_reverse_etl.app.project import overrides_of, refuse_switched_off
        from dbt_reverse_etl.config.artifacts import select

        self._place, self._project = place, place.project()
        self.target: str = self._project.target
        if sends:
            refuse_switched_off(self._project.env)
        self.manifest = self._project.manifest()
        configuration = self._project.configuration(self.manifest)
        if isinstance(configuration.destinations, PlanOnly):
            found = f"target {self.target} is `plan` in profiles.yml, so it has no destinations"
            raise mistake("profiles.yml", found, "a target with destinations", "add them, or use --target")
        self._overrides = overrides_of(configuration, self._project.env) if sends or plans else []
        named = select(configuration.syncs, tuple(selectors))
        configuration.refuse_unset(pushed=named if reaches else (), planned=named)
        self._configuration = configuration
        self.chosen = resolved_of(configuration.resolved, named)

    def __enter__(self) -> Opened:
        from dbt_reverse_etl.app.invocation import open_ledger, pusher_of

        spark = self._place.session(self.target)()
        self._ledger = open_ledger(spark, self.manifest)
        self.overview = self.overview_now()
        pusher = pusher_of(spark, self._ledger, self.overview, self._configuration, self._project)
        self.pusher = replace(pusher, overrides=self._overrides)
        return self

    def overview_now(self) -> Any:
        """What the ledger says of the chosen syncs, without failed tests that the project no longer has."""
        from dbt_reverse_etl.app.invocation import overview_of, without_removed

        found = overview_of(self._ledger, self._configuration.resolved, self.chosen)
        return replace(found, failing=without_removed(found.failing, self.manifest))

    def __exit__(self, *_: object) -> None:
        pass
