"""A dbt project for one target: its artifacts, its configuration, and what the environment says of a push."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from dbt_reverse_etl.app.configuration import Configuration, configure
from dbt_reverse_etl.app.guards import refuse_unknown
from dbt_reverse_etl.base.dbt_options import no_project
from dbt_reverse_etl.base.errors import ConfigurationError, Problem, ReverseEtlError, mistake
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.config.artifacts import ForeignResults, Invocation, asked, run
from dbt_reverse_etl.config.manifest import sync_ids

OFF, PLAN, ON = "off", "plan", "on"
SWITCH = "DBT_REVERSE_ETL_PUSH"
OVERRIDE = "DBT_REVERSE_ETL_OVERRIDE"


class Ask(Enum):
    """What a command takes for due.

    Attributes:
        RUN: what dbt did just now, by its artifacts.
        IF_DUE: the same from a queue, which may bring artifacts twice or late.
        DBT_RETRY: as RUN, and what an earlier push left behind.
        RETRY: the same, and rows that wait or are parked are sent, too.
        PUSH: what is behind, by ledger and changelogs, whichever dbt command wrote the artifacts.
    """

    RUN, IF_DUE, DBT_RETRY, RETRY, PUSH = range(5)

    @property
    def is_from_artifacts(self) -> bool:
        return self in (Ask.RUN, Ask.IF_DUE)


@dataclass(frozen=True)
class Project:
    """A dbt project for one target.

    Attributes:
        artifacts: the folder with manifest.json and run_results.json.
        profiles: folders where profiles.yml may stand.
        folder: where dbt_project.yml stands.
        written_by: the invocation whose artifacts these have to be; empty: whichever wrote them.
        parsed_by: the invocation that made its manifest, if that was another one: `dbtRunner(manifest=...)`.
    """

    artifacts: Path
    profiles: Sequence[Path]
    target: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    written_by: str = ""
    parsed_by: str = ""

    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.artifacts, self.folder)

    def run_results(self) -> dict[str, Any]:
        return read_json(self.artifacts / "run_results.json")

    def newest_results(self) -> str | None:
        """The id of the invocation that wrote them; None: there are none, or a dbt that was killed has left a part."""
        try:
            return str(self.run_results()["metadata"]["invocation_id"])
        except (ReverseEtlError, KeyError, TypeError):
            return None

    def invocation(self, manifest: Mapping[str, Any], ask: Ask) -> Invocation:
        """What the last dbt command did; nothing, where its results are missing or of another manifest and are not what is asked for.

        Raises:
            ReverseEtlError: it is, and they are.
        """
        if ask.is_from_artifacts or (self.artifacts / "run_results.json").exists():
            try:
                return self._own(run(self.run_results(), manifest, self.parsed_by))
            except ForeignResults:
                if ask.is_from_artifacts:
                    raise
        return asked(manifest["metadata"]["invocation_id"], "", ())

    def _own(self, found: Invocation) -> Invocation:
        """Raises ForeignResults where another dbt has written to the same folder meanwhile."""
        if self.written_by not in ("", found.invocation_id):
            other = f"results of invocation {found.invocation_id}, which has run beside this one"
            expected = f"those of {self.written_by}; two dbt commands at once need a --target-path each"
            next_step = "push what was captured: dbt-reverse-etl push"
            raise ForeignResults(Problem("run_results.json", other, expected, next_step))
        return found

    @apart  # it imports sinks
    def configuration(self, manifest: Mapping[str, Any]) -> Configuration:
        """Everything that is configured; all problems at once."""
        return configure(manifest, self.profiles, self.target, self.env, self.folder)

    @property
    def switch(self) -> str:
        """off, plan or on."""
        return switch_of(self.env)


def switch_of(env: Mapping[str, str]) -> str:
    """off, plan or on: what `DBT_REVERSE_ETL_PUSH` says; an empty one is an unset one. Raises ConfigurationError: another word."""
    word = env.get(SWITCH, "").strip().lower() or ON
    if word not in (OFF, PLAN, ON):
        raise mistake(SWITCH, repr(word), f"{OFF}, {PLAN} or {ON}", "correct or unset it")
    return word


def refuse_switched_off(env: Mapping[str, str]) -> None:
    """For a command that does nothing else than send. Raises ConfigurationError."""
    if (word := switch_of(env)) != ON:
        raise mistake(SWITCH, word, f"{ON}: this command sends rows", "unset it, or do without")


def overrides_of(configuration: Configuration | None, env: Mapping[str, str]) -> list[str]:
    """What `DBT_REVERSE_ETL_OVERRIDE` says. Raises ConfigurationError where that names no sync, or is no override."""
    given = env.get(OVERRIDE, "").split()
    refuse_unknown(given, configuration and {sync.name for sync in configuration.syncs})
    return given


def refuse_unknown_words(configuration: Configuration | None, env: Mapping[str, str]) -> None:
    """Look at what the environment says of a push; None: the project is still to be parsed. Raises ConfigurationError."""
    switch_of(env)
    overrides_of(configuration, env)


def has_syncs(artifacts: Path) -> bool:
    """Whether a project has syncs; it is not asked whether they are right."""
    return bool(sync_ids(read_json(artifacts / "manifest.json")))


def read_manifest(artifacts: Path, project: Path) -> dict[str, Any]:
    """The manifest of a project. Raises as `read_json`, and ConfigurationError where there is no project that could have one."""
    file = artifacts / "manifest.json"
    if not file.exists() and not (project / "dbt_project.yml").is_file():
        raise no_project(project)
    return read_json(file)


def read_json(path: Path) -> dict[str, Any]:
    """One artifact.

    Raises:
        ConfigurationError: it is not there, and no other try will find it.
        ReverseEtlError: it is not whole; dbt may be writing it.
    """
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        found = "no such file" if is_absent else f"unreadable ({type(error).__name__})"
        kind = ConfigurationError if is_absent else ReverseEtlError
        next_step = "dbt run, or name the project: --project-dir"
        raise kind(Problem(str(path), found, "an artifact of dbt", next_step)) from None
    return read
