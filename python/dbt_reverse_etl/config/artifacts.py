"""Reads dbt's artifacts: which syncs there are, and which of them a run has made due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError, raise_if_any
from dbt_reverse_etl.config.manifest import Node, syncs
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.config.validation import closest

PUSHING_COMMANDS = frozenset({"run", "build"})

_HEAD = re.compile(r"snapshot (\d{1,18}) of (\S+)(?: by (\S+))?")
_SELECTED = frozenset({"success", "no-op"})
FAILED = frozenset({"fail", "error", "runtime error"})
_PASSED = frozenset({"pass", "warn"})


class ForeignResults(ReverseEtlError):
    """The results of dbt are not those of its manifest."""


@dataclass(frozen=True)
class ChangelogResult:
    """What one invocation did to a changelog.

    Attributes:
        status: dbt's word, such as `success`, `error` or `skipped`.
        snapshot: its head afterwards; None where the model reports none.
        changelog_uuid: the identity of the changelog that has this head, or None.
        began, ended: of its execution, as dbt wrote them; empty where it was not executed.
        capture: uuid of the capture that made the head; empty where the model does not tell.
    """

    status: str
    snapshot: int | None = None
    changelog_uuid: str | None = None
    began: str = field(default="", compare=False)
    ended: str = field(default="", compare=False)
    capture: str = ""


@dataclass(frozen=True)
class Invocation:
    """One dbt command, as its artifacts tell of it.

    Attributes:
        command: `run`, `build`, `test` ...; for `dbt retry` the command that was retried.
        changelogs: by the unique id of the model, those that took part.
        failed_tests: by the unique id of the changelog, the unique ids of its tests that failed, or were skipped.
        passed_tests: unique ids of all tests that passed. A command over some of the rows, or none, says of no test how it ended.
        push: the syncs to push.
        plan: those that are due, but not to be pushed after this command (`push_on`).
        excluded: those that the command excludes, due or not; they are neither in `push` nor in `plan`.
    """

    invocation_id: str
    command: str
    changelogs: Mapping[str, ChangelogResult]
    failed_tests: Mapping[str, tuple[str, ...]]
    passed_tests: frozenset[str] = frozenset()
    push: tuple[Sync, ...] = ()
    plan: tuple[Sync, ...] = ()
    excluded: tuple[Sync, ...] = ()


def run(run_results: Node, manifest: Node, parsed_by: str = "") -> Invocation:
    """What a dbt command did, and which syncs it has made due.

    A sync is due if its changelog succeeded, or if its exposure was selected while its changelog was not.

    Args:
        parsed_by: the invocation from which it had its manifest, if that is known to be another one.

    Raises:
        ForeignResults: the two files are of different invocations.
        ConfigurationError: as `syncs`.
    """
    every = syncs(manifest)
    _refuse_stale(run_results, manifest, parsed_by)
    args, metadata = run_results.get("args") or {}, run_results["metadata"]
    results = {result["unique_id"]: result for result in run_results["results"]}
    invocation = Invocation(
        invocation_id=metadata["invocation_id"],
        command=str(args.get("which", "")),
        changelogs={one: _changelog_result(found) for one, found in results.items() if _is_changelog(one, manifest)},
        failed_tests={},
    )
    if args.get("empty") or args.get("sample"):  # the models do not hold the real rows
        return invocation
    passed = frozenset(unique_id for unique_id, result in results.items() if result["status"] in _PASSED)
    invocation = replace(invocation, failed_tests=failed_tests(results, manifest), passed_tests=passed)
    if invocation.command not in PUSHING_COMMANDS:
        return invocation
    excluded = tuple(sync for sync in every if is_excluded(sync, args))
    due = [sync for sync in every if _is_due(sync, results) and sync not in excluded]
    return _decided(replace(invocation, excluded=excluded), due)


def asked(invocation_id: str, command: str, found: Sequence[Sync]) -> Invocation:
    """A command that asks for all of these syncs, of whose results nothing is known here."""
    return _decided(Invocation(invocation_id, command, {}, {}), found)


def _decided(invocation: Invocation, due: Sequence[Sync]) -> Invocation:
    push = tuple(sync for sync in due if invocation.command in sync.settings.push_on)
    plan = tuple(sync for sync in due if sync not in push)
    return replace(invocation, push=push, plan=plan)


def _is_due(sync: Sync, results: Mapping[str, Node]) -> bool:
    model = results.get(sync.changelog.unique_id)
    if model is not None:
        return sync.enabled and model["status"] == "success"
    return sync.enabled and results.get(sync.unique_id, {}).get("status") in _SELECTED


def is_excluded(sync: Sync, args: Node) -> bool:
    """Whether a command with these arguments leaves out the exposure by its name or its kind, although it may run the model.

    Terms that name no exposure, graph operators and selectors are dbt's to read: they stop no push of a model that ran.
    """
    if "exposure" in (args.get("exclude_resource_types") or ()):
        return True
    _, project, name = sync.unique_id.split(".", 2)
    names = (name, f"{project}.{name}")
    known = {"exposure": names, "fqn": names, "resource_type": ("exposure",)}
    given = args.get("exclude") or ()
    for term in " ".join([given] if isinstance(given, str) else map(str, given)).split():
        method, _, value = term.rpartition(":")
        if any(fnmatchcase(one, value) for one in known.get(method or "fqn", ())):
            return True
    return False


def _is_changelog(unique_id: str, manifest: Node) -> bool:
    return bool(manifest["nodes"].get(unique_id, {}).get("config", {}).get("materialized") == "changelog")


def _changelog_result(result: Node) -> ChangelogResult:
    head = _HEAD.fullmatch(str((result.get("adapter_response") or {}).get("code", "")))
    executed: Node = next((one for one in result.get("timing") or () if one.get("name") == "execute"), {})
    began, ended = (str(executed.get(name) or "") for name in ("started_at", "completed_at"))
    if head is None:
        return ChangelogResult(str(result["status"]), began=began, ended=ended)
    return ChangelogResult(str(result["status"]), int(head[1]), head[2], began, ended, head[3] or "")


def failed_tests(results: Mapping[str, Node], manifest: Node) -> dict[str, tuple[str, ...]]:
    """By changelog; a test that could not be run has not passed either, nor has one that was skipped after its changelog was captured."""
    tests = {**manifest["nodes"], **(manifest.get("unit_tests") or {})}
    failed: dict[str, tuple[str, ...]] = {}
    for unique_id, result in results.items():
        node = tests.get(unique_id, {})
        if node.get("resource_type") not in ("test", "unit_test"):
            continue
        upstream = node.get("depends_on", {}).get("nodes", ())
        for model in (one for one in upstream if _is_changelog(one, manifest)):
            is_left_out = (
                result["status"] == "skipped"
                and str((node.get("config") or {}).get("severity", "")).lower() != "warn"
                and results.get(model, {}).get("status") == "success"
            )
            if is_left_out or result["status"] in FAILED:
                failed[model] = (*failed.get(model, ()), unique_id)
    return failed


def _refuse_stale(run_results: Node, manifest: Node, parsed_by: str) -> None:
    ran = (run_results.get("metadata") or {}).get("invocation_id")
    written = manifest["metadata"].get("invocation_id")
    if not ran or "results" not in run_results:
        found, expected = "no results of a dbt command", "run_results.json as dbt writes it"
    elif written not in (ran, parsed_by or ran):
        found = f"results of invocation {ran}, while manifest.json is of {written}"
        expected = "both of one invocation; a later `dbt parse` or a run with --no-write-json parts them"
    else:
        return
    raise ForeignResults(Problem("run_results.json", found, expected, "run dbt again, then push"))


def select(found: Iterable[Sync], selectors: Sequence[str]) -> list[Sync]:
    """The syncs that any selector names, in their order; all of them without a selector. Raises ConfigurationError: selectors that name nothing.

    Args:
        selectors: names, or `tag:` and a tag; `*` stands for any text.
    """
    every = list(found)
    if not selectors:
        return every
    named = {selector: [sync for sync in every if _matches(sync, selector)] for selector in selectors}
    raise_if_any([_unknown(selector, every) for selector, matched in named.items() if not matched])
    chosen = {sync.unique_id for matched in named.values() for sync in matched}
    return [sync for sync in every if sync.unique_id in chosen]


def _matches(sync: Sync, selector: str) -> bool:
    names = sync.tags if selector.startswith("tag:") else (sync.name,)
    pattern = ".*".join(map(re.escape, selector.removeprefix("tag:").split("*")))
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _unknown(selector: str, every: Sequence[Sync]) -> Problem:
    names = sorted({sync.name for sync in every})
    tags = sorted({f"tag:{tag}" for sync in every for tag in sync.tags})
    known = ", ".join([*names, *tags]) or "none: no exposure has meta.reverse_etl"
    next_step = f"{closest(selector, [*names, *tags])}Name one of these, or use * for any text"
    return Problem("selection", repr(selector), f"a sync or a tag: {known}", next_step)
