"""From dbt's artifacts to the pushes that they ask for; the same for the plugin and for the command line."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from dbt_reverse_etl.app import alerts
from dbt_reverse_etl.app.configuration import Configuration
from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.identity import id_of, requests_of
from dbt_reverse_etl.app.overlap import Overlap
from dbt_reverse_etl.app.project import OFF, PLAN, Ask, Project, overrides_of
from dbt_reverse_etl.app.push import Display, Pusher, Say
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.repeats import behind, left_behind, refuse_older, still_due
from dbt_reverse_etl.app.tracing import traced
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart, in_time, within
from dbt_reverse_etl.base.sql import plain_relation, quoted
from dbt_reverse_etl.config.artifacts import Invocation, asked, failed_tests, is_excluded, select
from dbt_reverse_etl.config.destinations import PlanOnly, ResolvedSync, resolved_of
from dbt_reverse_etl.config.manifest import LEDGER_NODE
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.progress import Watches
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from dbt_reverse_etl.warehouse.overview import TESTS, Overview
from dbt_reverse_etl.warehouse.session import cancel_jobs, mark_jobs, uncompressed_cache

_LAST_TESTS = 8.0  # seconds after a signal in which the ledger hears of failed tests; schedulers wait ten
_LAST_WORDS = 2.0  # seconds after a signal; what is not said by then, the next push says


@dataclass(frozen=True)
class Due:
    """What one dbt invocation asks for."""

    push: list[ResolvedSync]
    plan: list[ResolvedSync]


def due(invocation: Invocation, configuration: Configuration, selectors: Sequence[str], switch: str) -> Due:
    """The syncs to push and to plan; where the switch says `plan`, nothing is pushed. Raises ConfigurationError: one of their variables is not set."""
    chosen = {sync.unique_id for sync in select(configuration.syncs, selectors)}
    push, plan = ([sync for sync in some if sync.unique_id in chosen] for some in (invocation.push, invocation.plan))
    if switch == PLAN:
        push, plan = [], push + plan
    configuration.refuse_unset(push, plan)
    return Due(resolved_of(configuration.resolved, push), resolved_of(configuration.resolved, plan))


def after_dbt(  # noqa: PLR0913  (each is a fact of the command)
    project: Project,
    connect: Callable[[], SparkSession],
    display: Display,
    *,
    ask: Ask = Ask.RUN,
    selectors: Sequence[str] = (),
    configuration: Configuration | None = None,
) -> list[Report]:
    """Push what is due. Raises ReverseEtlError: of the configuration or the artifacts; nothing was sent.

    Args:
        connect: gives the session; not asked where there is nothing to look at.
        configuration: the one that was checked; None: it is read now.
    """
    manifest = project.manifest()
    invocation = project.invocation(manifest, ask)
    configuration = configuration or project.configuration(manifest)
    overrides = overrides_of(configuration, project.env)
    if not configuration.syncs or project.switch == OFF:
        return []
    if _says_plan_only(configuration, invocation, project.target, display.say):
        return []
    if ask not in (Ask.PUSH, Ask.RETRY):
        captured = {model for model, result in invocation.changelogs.items() if result.status == "success"}
        _say_excluded([sync for sync in invocation.excluded if sync.changelog.unique_id in captured], display.say)
    wanted = due(invocation, configuration, selectors, project.switch)
    # A queue brings artifacts by which nothing is due, and must not start Spark for nothing.
    is_told = wanted.push or wanted.plan or invocation.failed_tests or invocation.passed_tests
    if ask.is_from_artifacts and not is_told:
        return []
    spark = connect()
    ledger = open_ledger(spark, manifest)
    overview = _with_tests(overview_of(ledger, configuration.resolved), ledger, invocation, manifest)
    pusher = replace(
        pusher_of(spark, ledger, overview, configuration, project),
        policy=Policy(retry_now=ask is Ask.RETRY),
        overrides=overrides,
        invocation_id=invocation.invocation_id,
        known=_known(invocation),
    )
    named = select(configuration.syncs, selectors)
    chosen = pushed_by(ask, invocation, resolved_of(configuration.resolved, named))
    wanted = _wanted(ask, wanted, chosen, overview, pusher)
    if project.switch == PLAN:
        wanted = Due([], wanted.push + wanted.plan)
    configuration.refuse_unset(pushed=[one.sync for one in wanted.push])
    overtaken: list[Report] = []
    if ask is Ask.IF_DUE:
        left, overtaken = still_due(invocation, wanted.push, overview, pusher, display.say)
        wanted = replace(wanted, push=left)
    elif ask is Ask.PUSH:
        refuse_older(wanted.push, pusher)
    before = None if ask is Ask.RETRY else invocation
    reports = _carried_out(wanted, pusher, overview, configuration, project, display, before)
    return reports + overtaken


def remember_tests(
    project: Project,
    manifest: Mapping[str, Any],
    statuses: Mapping[str, str],
    connect: Callable[[], SparkSession],
    configuration: Configuration,
) -> str:
    """Let the ledger know which tests had failed when dbt was interrupted; their names, if that was not done in time.

    Args:
        statuses: of the nodes that have ended, by unique id; dbt's run_results.json lacks those that ended after the signal.
    """
    failed = failed_tests({node: {"status": status} for node, status in statuses.items()}, manifest)
    if not failed or project.switch == OFF or isinstance(configuration.destinations, PlanOnly):
        return ""
    invocation = replace(asked(manifest["metadata"]["invocation_id"], "", ()), failed_tests=failed)

    def record() -> None:
        ledger = open_ledger(connect(), manifest)
        _with_tests(overview_of(ledger, configuration.resolved), ledger, invocation, manifest)

    try:
        within(record, _LAST_TESTS)
    except (Exception, KeyboardInterrupt):  # whatever it is, the user must know
        return ", ".join(sorted(test for tests in failed.values() for test in tests))
    return ""


def pushed_by(ask: Ask, invocation: Invocation, chosen: Sequence[ResolvedSync]) -> Sequence[ResolvedSync]:
    """What the retried command only captures, as it has tested nothing, waits for one that is in `push_on`; so does what it excludes."""
    if ask is not Ask.DBT_RETRY:
        return chosen
    excluded = {sync.unique_id for sync in invocation.excluded}
    wanted = [one for one in chosen if one.sync.unique_id not in excluded]
    return [one for one in wanted if invocation.command in one.sync.settings.push_on]


def _say_excluded(captured: Iterable[Sync], say: Say) -> None:
    """Captured and not sent is what the user asked for, and easily overlooked."""
    for sync in captured:
        if sync.enabled:
            say(f"{sync.name}: not pushed, for this command excludes the exposure", "info", sync=sync.name)


def _wanted(ask: Ask, told: Due, chosen: Sequence[ResolvedSync], overview: Overview, pusher: Pusher) -> Due:
    """What the artifacts made due, with what else is asked for, or without it."""
    if ask.is_from_artifacts:
        return told
    left = behind(chosen, overview, pusher) if ask is Ask.PUSH else left_behind(chosen, overview)
    due_anyway = set() if ask is Ask.PUSH else {one.sync.name for one in told.push}
    asked = {one.sync.name for one in chosen if requests_of(one, overview, pusher.resolved)}
    names = {*left, *asked, *due_anyway} - {one.sync.name for one in told.plan}
    return Due([one for one in chosen if one.sync.name in names], told.plan)


def after_models(project: Project, syncs: Mapping[str, Any], spark: SparkSession, display: Display) -> list[Report]:
    """Push for a Python model the syncs of what it refers to: that dbt runs it tells that this went well.

    Args:
        syncs: a part of the manifest, with `invocation_id`, `command`, its `args`, `target`, `refers_to`, and `tests`, unique ids.

    Raises:
        ReverseEtlError: of the configuration; nothing was sent.
    """
    configuration = project.configuration(syncs)
    captured = [sync for sync in configuration.syncs if sync.changelog.unique_id in syncs["refers_to"]]
    excluded = [sync for sync in captured if is_excluded(sync, syncs.get("args") or {})]
    chosen = [sync for sync in captured if sync not in excluded]
    invocation = asked(syncs["invocation_id"], syncs["command"], chosen)
    if project.switch == OFF:
        return []
    _say_excluded(excluded, display.say)
    if not chosen:
        return []
    if _says_plan_only(configuration, invocation, project.target, display.say):
        return []
    wanted = due(invocation, configuration, (), project.switch)
    ledger = open_ledger(spark, syncs)
    overview = overview_of(ledger, configuration.resolved)
    if "tests" in syncs:  # an older dbt package hands over none
        overview = replace(overview, failing=without_removed(overview.failing, {"nodes": syncs["tests"]}))
    pusher = pusher_of(spark, ledger, overview, configuration, project)
    pusher = replace(pusher, invocation_id=invocation.invocation_id, overrides=overrides_of(configuration, project.env))
    return _carried_out(wanted, pusher, overview, configuration, project, display)


def _carried_out(  # noqa: PLR0913, PLR0917  (each is a fact of the command)
    wanted: Due,
    pusher: Pusher,
    overview: Overview,
    configuration: Configuration,
    project: Project,
    display: Display,
    captured: Invocation | None = None,
) -> list[Report]:
    """Push and plan, and let the alerts know how the pushes ended; `captured` as in `watched`."""
    reports: list[Report] = []
    total = len(wanted.push) + len(wanted.plan)

    def ended(report: Report) -> None:
        reports.append(report)
        display.tell(report, len(reports), total)

    with watched(pusher, display, captured=captured):
        push_all(pusher, wanted.push, overview, ended, display.glance)
        if not pusher.interrupt.is_set():
            for one in wanted.plan:
                ended(pusher.plan(one, overview, rows=0))
    pushed = {one.sync.name for one in wanted.push}  # plans move nothing, and do not change how a sync is
    pushes = [report for report in reports if report.sync in pushed]
    tell = partial(alerts.tell, pushes, overview, pusher, configuration.alerts, project.target, display.say)
    if pusher.interrupt.is_set():  # some had ended before the signal
        in_time(tell, _LAST_WORDS)
    else:
        tell()
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
    tag = f"dbt-reverse-etl {uuid.uuid4().hex}"

    def push(one: ResolvedSync) -> Report:
        with suppress(Exception):  # a Spark that is gone is for the push to report
            mark_jobs(pusher.spark, tag)  # of the worker's thread, which ends with the pushes
        return pusher.push(one, overview)

    cancel = partial(cancel_jobs, pusher.spark, tag)
    overlap = Overlap[Report](pusher.policy.syncs_at_once, pusher.interrupt, cancel, glance)
    tasks = [partial(push, one) for one in syncs]
    with uncompressed_cache(pusher.spark):
        for task, begun in overlap.run(tasks, ended).items():
            ended(pusher.left(syncs[task], overview, begun=begun))


def overview_of(
    ledger: DeltaLedger, resolved: Sequence[ResolvedSync], chosen: Sequence[ResolvedSync] | None = None
) -> Overview:
    """What the ledger says of the syncs of a project, or of those of them that were chosen: under their own and their former names, and of
    their changelogs.
    """
    asked = resolved if chosen is None else chosen
    changelogs = {one.sync.changelog.relation_name: one.sync.changelog.unique_id for one in asked}
    relations = {one.sync.name: one.sync.changelog.relation_name for one in asked}
    formers = _formers(asked, {one.sync.name for one in resolved})
    relations |= {former: relations[name] for name, former in formers.items()}
    names = {one.sync.position_of.rpartition(".")[2] for one in asked}.union(relations, changelogs, changelogs.values())
    overview = ledger.overview(names, {id_of(one) for one in resolved}, relations)
    # By relation, for another target may push over this ledger. An older version recorded the tests by unique id.
    known = {**overview.failing, **{plain_relation(relation): tests for relation, tests in overview.failing.items()}}
    failing = {one: known.get(plain_relation(one), known.get(unique_id, ())) for one, unique_id in changelogs.items()}
    here = {"", *map(plain_relation, changelogs)}
    requests = {
        name: ours
        for name, asked_for in overview.requests.items()
        if (ours := [one for one in asked_for if plain_relation(one.relation) in here])
    }
    heard = overview.heard
    heard = {name: replace(heard[former], former=former) for name, former in formers.items() if former in heard} | heard
    return replace(overview, failing=failing, requests=requests, heard=heard)


def _formers(syncs: Iterable[ResolvedSync], present: Collection[str]) -> dict[str, str]:
    """The name that a renamed sync had before, if no sync has it now."""
    found = {one.sync.name: one.sync.position_of.rpartition(".")[2] for one in syncs}
    return {name: former for name, former in found.items() if former not in present}


def pusher_of(
    spark: SparkSession, ledger: DeltaLedger, overview: Overview, configuration: Configuration, project: Project
) -> Pusher:
    """What pushes the syncs of a project."""
    resolved, reached = configuration.resolved, overview.reached
    return Pusher(spark, ledger, resolved=resolved, reached=reached, project_dir=project.folder)


@apart
def open_ledger(spark: SparkSession, manifest: Mapping[str, Any]) -> DeltaLedger:
    """The ledger of the project; its table is made if the model was not run. Raises ReverseEtlError: the dbt package is not installed in the project."""
    node = manifest["nodes"].get(LEDGER_NODE)
    if node is None:
        found, expected = "no model reverse_etl_ledger", "the dbt package reverse_etl"
        raise ReverseEtlError(Problem("manifest.json", found, expected, "dbt-reverse-etl init, then dbt deps"))
    ledger = DeltaLedger(spark, node["relation_name"])
    ledger.create(".".join(quoted(part) for part in (node.get("database"), node["schema"]) if part))
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
    changed = {relation: tests for relation, tests in failing.items() if tests != overview.failing.get(relation, ())}
    if changed:
        ledger.record(TESTS, changed, invocation.invocation_id, Clock().now())
    return replace(overview, failing=failing)


def _failing(
    before: Mapping[str, Sequence[str]], invocation: Invocation, manifest: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Tests by relation of the changelog that failed now, or failed before and have neither passed nor been removed since."""
    found = {one: {*tests} - invocation.passed_tests for one, tests in without_removed(before, manifest).items()}
    for one, tests in invocation.failed_tests.items():
        found.setdefault(manifest["nodes"][one]["relation_name"], set()).update(tests)
    return {one: tuple(sorted(tests)) for one, tests in found.items()}


def without_removed(failing: Mapping[str, Sequence[str]], manifest: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Failed tests by relation of the changelog, without those that the project no longer has: they can never pass."""
    nodes, units = manifest["nodes"], manifest.get("unit_tests")

    def is_there(test: str) -> bool:
        # A macro sees no unit tests, so a Python model's hook cannot hand them over.
        return test in nodes or (test.startswith("unit_test.") if units is None else test in units)

    return {relation: tuple(filter(is_there, tests)) for relation, tests in failing.items()}


def _says_plan_only(configuration: Configuration, invocation: Invocation, target: str, say: Say) -> bool:
    """Whether nothing may be sent; what was due is named."""
    is_so = isinstance(configuration.destinations, PlanOnly)
    if is_so and invocation.push:
        names = ", ".join(sync.name for sync in invocation.push)
        found = f"Target {target} is `plan` in profiles.yml: nothing was sent for {names}."
        say(f"{found} Give it destinations to plan or to push", "info")
    return is_so
