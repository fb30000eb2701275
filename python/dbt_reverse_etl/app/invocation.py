"""From dbt's artifacts to the pushes that they ask for; the same for the plugin and for the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dbt_reverse_etl.app import alerts
from dbt_reverse_etl.app.configuration import Configuration, configure
from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.guards import refuse_unknown
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.overlap import Overlap
from dbt_reverse_etl.app.push import Display, Pusher, Say
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.repeats import behind, left_behind, refuse_older, still_due
from dbt_reverse_etl.app.tracing import traced
from dbt_reverse_etl.base.errors import ConfigurationError, Problem, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.config.artifacts import ForeignResults, Invocation, asked, run, select
from dbt_reverse_etl.config.destinations import PlanOnly, ResolvedSync
from dbt_reverse_etl.config.manifest import LEDGER_NODE
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.delivery.clock import SystemClock
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.progress import Watches
from dbt_reverse_etl.warehouse.ledger import DeltaLedger, Overview
from dbt_reverse_etl.warehouse.session import cancel_jobs, uncompressed_cache

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
        target: name of the dbt target.
        folder: where dbt_project.yml stands.
        written_by: the invocation whose artifacts these have to be; empty: whichever wrote them.
    """

    artifacts: Path
    profiles: Sequence[Path]
    target: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    written_by: str = ""

    def manifest(self) -> dict[str, Any]:
        return read_json(self.artifacts / "manifest.json")

    def run_results(self) -> dict[str, Any]:
        return read_json(self._results)

    def newest_results(self) -> str | None:
        """The id of the invocation that wrote them; None: there are none."""
        return str(self.run_results()["metadata"]["invocation_id"]) if self._results.exists() else None

    @property
    def _results(self) -> Path:
        return self.artifacts / "run_results.json"

    def invocation(self, manifest: Mapping[str, Any], ask: Ask) -> Invocation:
        """What the last dbt command did; nothing, where its results are missing or of another manifest and are not what is asked for.

        Raises:
            ReverseEtlError: it is, and they are.
        """
        if ask.is_from_artifacts or self._results.exists():
            try:
                return self._own(run(self.run_results(), manifest))
            except ForeignResults:
                if ask.is_from_artifacts:
                    raise
        return asked(manifest["metadata"]["invocation_id"], "", ())

    def _own(self, found: Invocation) -> Invocation:
        """Raises ForeignResults where another dbt has written to the same folder meanwhile."""
        if self.written_by not in ("", found.invocation_id):
            raise ForeignResults(
                Problem(
                    "run_results.json",
                    f"results of invocation {found.invocation_id}, which has run beside this one",
                    f"those of {self.written_by}; two dbt commands at once need a --target-path each",
                    "push what was captured: dbt-reverse-etl push",
                )
            )
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
    """off, plan or on: what `DBT_REVERSE_ETL_PUSH` says.

    Raises:
        ConfigurationError: another word.
    """
    word = env.get(SWITCH, ON).lower()
    if word not in (OFF, PLAN, ON):
        raise ConfigurationError(Problem(SWITCH, repr(word), f"{OFF}, {PLAN} or {ON}", "correct or unset it"))
    return word


def overrides_of(configuration: Configuration, env: Mapping[str, str]) -> list[str]:
    """What `DBT_REVERSE_ETL_OVERRIDE` says. Raises ConfigurationError where that names no sync."""
    given = env.get(OVERRIDE, "").split()
    refuse_unknown(given, {sync.name for sync in configuration.syncs})
    return given


def refuse_unknown_words(configuration: Configuration, env: Mapping[str, str]) -> None:
    """Look at what the environment says of a push. Raises ConfigurationError."""
    switch_of(env)
    overrides_of(configuration, env)


def read_json(path: Path) -> dict[str, Any]:
    """One artifact.

    Raises:
        ReverseEtlError: it is not there, or not whole.
    """
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else f"unreadable ({type(error).__name__})"
        raise ReverseEtlError(
            Problem(str(path), found, "an artifact of dbt", "dbt run, or name the project: --project-dir")
        ) from None
    return read


@dataclass(frozen=True)
class Due:
    """What one dbt invocation asks for."""

    push: list[ResolvedSync]
    plan: list[ResolvedSync]


def asked_of(
    invocation: Invocation, configuration: Configuration, selectors: Sequence[str], switch: str
) -> tuple[list[Sync], list[Sync]]:
    """The syncs to push and to plan; where the switch says `plan`, nothing is pushed."""
    chosen = {sync.unique_id for sync in select(configuration.syncs, selectors)}
    push, plan = ([sync for sync in some if sync.unique_id in chosen] for some in (invocation.push, invocation.plan))
    return ([], push + plan) if switch == PLAN else (push, plan)


def due(invocation: Invocation, configuration: Configuration, selectors: Sequence[str], switch: str) -> Due:
    """The same with their destinations; there are none where the target says `plan`."""
    resolved = {one.sync.unique_id: one for one in configuration.resolved}
    push, plan = (
        [resolved[sync.unique_id] for sync in some if sync.unique_id in resolved]
        for some in asked_of(invocation, configuration, selectors, switch)
    )
    return Due(push, plan)


def after_dbt(
    project: Project,
    connect: Callable[[], SparkSession],
    display: Display,
    *,
    ask: Ask = Ask.RUN,
    selectors: Sequence[str] = (),
) -> list[Report]:
    """Push what is due.

    Args:
        connect: gives the session; not asked where there is nothing to look at.

    Raises:
        ReverseEtlError: of the configuration or the artifacts; nothing was sent.
    """
    manifest = project.manifest()
    invocation = project.invocation(manifest, ask)
    configuration = project.configuration(manifest)
    overrides = overrides_of(configuration, project.env)
    if not configuration.syncs or project.switch == OFF:
        return []
    if isinstance(configuration.destinations, PlanOnly):
        _say_plan_only(invocation, project.target, display.say)
        return []
    wanted = due(invocation, configuration, selectors, project.switch)
    configuration.refuse_unset(*asked_of(invocation, configuration, selectors, project.switch))
    # A queue brings artifacts by which nothing is due, and must not start Spark for nothing.
    is_told = wanted.push or wanted.plan or invocation.failed_tests or invocation.passed_tests
    if ask.is_from_artifacts and not is_told:
        return []
    spark = connect()
    ledger = open_ledger(spark, manifest)
    overview = _with_tests(overview_of(ledger, configuration.resolved), ledger, invocation, manifest)
    pusher = Pusher(
        spark,
        ledger,
        Policy(retry_now=ask is Ask.RETRY),
        invocation_id=invocation.invocation_id,
        overrides=overrides,
        known=_known(invocation),
        resolved=configuration.resolved,
        reached=overview.reached,
        project_dir=project.folder,
    )
    wanted = _wanted(ask, wanted, _chosen(configuration, selectors), overview, pusher)
    if project.switch == PLAN:
        wanted = Due([], wanted.push + wanted.plan)
    configuration.refuse_unset(pushed=[one.sync for one in wanted.push])
    if ask is Ask.IF_DUE:
        wanted = replace(wanted, push=still_due(invocation, wanted.push, overview, pusher, display.say))
    elif ask is Ask.PUSH:
        refuse_older(wanted.push, pusher)
    with watched(pusher, display, captured=None if ask is Ask.RETRY else invocation):
        reports = _execute(wanted, pusher, overview, display)
    if not pusher.interrupt.is_set():
        alerts.tell(reports, overview, pusher, configuration.alerts, project.target, display.say)
    return reports


def _wanted(ask: Ask, told: Due, chosen: Sequence[ResolvedSync], overview: Overview, pusher: Pusher) -> Due:
    """What the artifacts made due, with what else is asked for, or without it."""
    if ask.is_from_artifacts:
        return told
    left = behind(chosen, overview, pusher) if ask is Ask.PUSH else left_behind(chosen, overview)
    due_anyway = set() if ask is Ask.PUSH else {one.sync.name for one in told.push}
    names = {*left, *overview.requests, *due_anyway} - {one.sync.name for one in told.plan}
    return Due([one for one in chosen if one.sync.name in names], told.plan)


def after_models(project: Project, syncs: Mapping[str, Any], spark: SparkSession, display: Display) -> list[Report]:
    """Push for a Python model the syncs of what it refers to: that dbt runs it tells that this went well.

    Args:
        syncs: a part of the manifest, with `invocation_id`, `command`, `target`, and `refers_to`, unique ids.

    Raises:
        ReverseEtlError: of the configuration; nothing was sent.
    """
    configuration = project.configuration(syncs)
    wanted = [sync for sync in configuration.syncs if sync.changelog.unique_id in syncs["refers_to"]]
    invocation = asked(syncs["invocation_id"], syncs["command"], wanted)
    if project.switch == OFF or not wanted:
        return []
    if isinstance(configuration.destinations, PlanOnly):
        _say_plan_only(invocation, project.target, display.say)
        return []
    configuration.refuse_unset(*asked_of(invocation, configuration, (), project.switch))
    ledger = open_ledger(spark, syncs)
    overview = overview_of(ledger, configuration.resolved)
    overrides = overrides_of(configuration, project.env)
    pusher = Pusher(
        spark,
        ledger,
        invocation_id=invocation.invocation_id,
        overrides=overrides,
        resolved=configuration.resolved,
        reached=overview.reached,
        project_dir=project.folder,
    )
    with watched(pusher, display):
        reports = _execute(due(invocation, configuration, (), project.switch), pusher, overview, display)
    alerts.tell(reports, overview, pusher, configuration.alerts, project.target, display.say)
    return reports


def _execute(wanted: Due, pusher: Pusher, overview: Overview, display: Display) -> list[Report]:
    reports: list[Report] = []
    total = len(wanted.push) + len(wanted.plan)

    def ended(report: Report) -> None:
        reports.append(report)
        display.tell(report, len(reports), total)

    push_all(pusher, wanted.push, overview, ended, display.glance)
    if not pusher.interrupt.is_set():
        for one in wanted.plan:
            ended(pusher.plan(one, overview, rows=0))
    return reports


@contextmanager
def watched(pusher: Pusher, display: Display, *, captured: Invocation | None = None) -> Iterator[None]:
    """Let the display and OpenTelemetry look on at the pushes; `captured`: what dbt did before them."""
    with traced(pusher.invocation_id, captured.changelogs if captured else None) as tracing, display:
        pusher.watch = Watches(*tracing, display.board)
        yield


def push_all(
    pusher: Pusher,
    syncs: Sequence[ResolvedSync],
    overview: Overview,
    ended: Callable[[Report], None],
    glance: Callable[[], None],
) -> None:
    """Push several syncs, a few at once; `ended` hears of each, `glance` is called while this waits."""
    cancel = partial(cancel_jobs, pusher.spark)
    overlap = Overlap[Report](pusher.policy.syncs_at_once, pusher.interrupt, cancel, glance)
    tasks = [partial(pusher.push, one, overview) for one in syncs]
    with uncompressed_cache(pusher.spark):
        for left in overlap.run(tasks, ended):
            ended(pusher.left(syncs[left.task], begun=left.begun))


def overview_of(
    ledger: DeltaLedger, resolved: Sequence[ResolvedSync], chosen: Sequence[ResolvedSync] | None = None
) -> Overview:
    """What the ledger says of the syncs of a project, or of those of them that were chosen: under their own and their former names, and of
    their changelogs.
    """
    asked = resolved if chosen is None else chosen
    named = [(one.sync.name, one.sync.position_of.rpartition(".")[2], one.sync.changelog.unique_id) for one in asked]
    return ledger.overview((name for names in named for name in names), {id_of(one) for one in resolved})


@apart
def open_ledger(spark: SparkSession, manifest: Mapping[str, Any]) -> DeltaLedger:
    """The ledger of the project; its table is made if the model was not run.

    Raises:
        ReverseEtlError: the dbt package is not installed in the project.
    """
    node = manifest["nodes"].get(LEDGER_NODE)
    if node is None:
        found = "no model reverse_etl_ledger"
        raise ReverseEtlError(
            Problem("manifest.json", found, "the dbt package reverse_etl", "dbt-reverse-etl init, then dbt deps")
        )
    schema = ".".join(quoted(part) for part in (node.get("database"), node["schema"]) if part)
    spark.sql(f"create schema if not exists {schema}")
    ledger = DeltaLedger(spark, node["relation_name"])
    ledger.create()
    return ledger


def _known(invocation: Invocation) -> dict[str, HeadOfModel]:
    return {
        unique_id: HeadOfModel(result.snapshot, result.changelog_uuid, result.capture)
        for unique_id, result in invocation.changelogs.items()
        if result.snapshot is not None and result.changelog_uuid is not None
    }


def _with_tests(
    overview: Overview, ledger: DeltaLedger, invocation: Invocation, manifest: Mapping[str, Any]
) -> Overview:
    """The overview with the tests of this invocation, which the ledger hears of, too."""
    failing = _failing(overview.failing, invocation, manifest)
    changed = {one: tests for one, tests in failing.items() if tests != overview.failing.get(one, ())}
    if changed:
        ledger.record_tests(changed, invocation.invocation_id, SystemClock().now())
    return replace(overview, failing=failing)


def _failing(
    before: Mapping[str, Sequence[str]], invocation: Invocation, manifest: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Tests by changelog that failed now, or failed before and have neither passed nor been removed since."""
    there = {*manifest["nodes"], *(manifest.get("unit_tests") or {})} - invocation.passed_tests
    found = {one: {*tests} & there for one, tests in before.items()}
    for one, tests in invocation.failed_tests.items():
        found.setdefault(one, set()).update(tests)
    return {one: tuple(sorted(tests)) for one, tests in found.items()}


def _chosen(configuration: Configuration, selectors: Sequence[str]) -> list[ResolvedSync]:
    chosen = {sync.unique_id for sync in select(configuration.syncs, selectors)}
    return [one for one in configuration.resolved if one.sync.unique_id in chosen]


def _say_plan_only(invocation: Invocation, target: str, say: Say) -> None:
    if invocation.push:
        names = ", ".join(sync.name for sync in invocation.push)
        found = f"Target {target} is `plan` in profiles.yml: nothing was sent for {names}."
        say(f"{found} Give it destinations to plan or to push", "info")
