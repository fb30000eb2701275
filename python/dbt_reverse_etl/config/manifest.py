"""Finds the syncs and the changelogs in dbt's manifest.json, and everything that is wrong with them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dbt_reverse_etl.base.errors import Problem, mistake, raise_if_any
from dbt_reverse_etl.base.redaction import literal_secrets
from dbt_reverse_etl.config.destinations import refuse_two_owners
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings, Sync, SyncSettings
from dbt_reverse_etl.config.validation import Place, described, validate
from dbt_reverse_etl.sinks.base import Settings

Node = Mapping[str, Any]
S = TypeVar("S", bound=Settings)

LEDGER_NODE = "model.reverse_etl.reverse_etl_ledger"
_MADE_FOR = "reverse_etl_made_for"  # as dbt_project.yml of the package has it
_OUR_MODELS = "model.reverse_etl."
_OLDEST_MANIFEST = 12
_DBT_TESTS = frozenset({"unique", "not_null", "accepted_values", "relationships"})
# Every row of a changelog has these, so that a test of theirs can pass.
_ALWAYS_SET = frozenset({"_change", "_captured_at"})  # our records in it have no `_snapshot_id`
_SPELLINGS = ("reverseetl", "dbtreverseetl")
_LONGER = re.compile(r"(dbt[_-])?reverse[_-]etl[_-]\w", re.IGNORECASE)  # may be a key of somebody else
_CLOSE = 0.85  # reverse_elt is; reverse_etl_owner, which may be somebody's own key, is not
_OWN_COLUMN = re.compile(r"\b_(change|snapshot_id)\b", re.IGNORECASE)


def target_of(manifest: Node) -> str:
    """The target that it was made for, whose tables it names; empty: an older version of the dbt package did not say."""
    return _of_ledger(manifest, "target")


def profile_of(manifest: Node) -> str:
    """The dbt profile of that target; empty: as above."""
    return _of_ledger(manifest, "profile")


def _of_ledger(manifest: Node, name: str) -> str:
    config = manifest.get("nodes", {}).get(LEDGER_NODE, {}).get("config") or {}
    made_for = (config.get("meta") or {}).get(_MADE_FOR)
    return str(made_for.get(name) or "") if isinstance(made_for, Mapping) else ""


def syncs(manifest: Node) -> list[Sync]:
    """The syncs of a project, those included that are switched off while their changelog is not.

    Args:
        manifest: manifest.json, version 12 or later.

    Raises:
        ConfigurationError: with every problem of every sync and changelog.
    """
    problems: list[Problem] = []
    found = collect_syncs(manifest, problems)
    raise_if_any(problems)
    return found


def sync_ids(manifest: Node) -> set[str]:
    """The syncs that are switched on, whatever is wrong with them."""
    return {node["unique_id"] for node in manifest["exposures"].values() if _blocks(node)}


def changelogs(manifest: Node) -> list[Changelog]:
    """The changelogs of a project, those without a sync included; what has a problem is left out."""
    found = _changelogs(manifest, [])
    return [one for one in found.values() if one]


def collect_syncs(manifest: Node, problems: list[Problem]) -> list[Sync]:
    """As `syncs`, but problems are appended, and what has one is left out."""
    _refuse_other_manifests(manifest)
    _refuse_replaced_ledger(manifest, problems)
    changelogs = _changelogs(manifest, problems)
    _refuse_dbt_tests(manifest, problems)
    _refuse_misspelt(manifest, changelogs, problems)
    found = [_sync(node, manifest, changelogs, problems) for node in manifest["exposures"].values() if _blocks(node)]
    found += [_paused(node, changelogs) for node in _disabled_exposures(manifest)]
    result = _without_replaced(sorted((sync for sync in found if sync), key=lambda sync: sync.unique_id))
    _refuse_shared_names(result, problems)
    refuse_two_owners((((sync.settings.destination, sync.settings.object), sync) for sync in result), problems)
    return result


def asked_destinations(manifest: Node) -> Iterator[tuple[Place, str]]:
    """The names that syncs that are switched on give, with the places of their settings, whatever else is wrong with them."""
    for node in manifest["exposures"].values():
        block = _block(node)
        name = block.get("destination") if isinstance(block, Mapping) else None
        if isinstance(name, str):
            yield _sync_place(node), name


def _without_replaced(found: Sequence[Sync]) -> list[Sync]:
    """Without what is switched off in an installed package, and has its name in another one now."""
    names = {sync.name for sync in found if sync.enabled}
    return [sync for sync in found if sync.enabled or sync.name not in names]


def _refuse_shared_names(found: Iterable[Sync], problems: list[Problem]) -> None:
    """Operations, selectors and alerts know a sync by its name; dbt wants it to be another one within each package only."""
    seen: dict[str, Sync] = {}
    for sync in found:
        other = seen.setdefault(sync.name, sync)
        if other is not sync:
            package = other.unique_id.split(".")[1]
            where, known = Place(sync.file, ()).at(sync.name), f"the name of a sync in {other.file} of {package}, too"
            problems.append(Problem(where, known, "a name that no other sync has", "rename one of them"))


def _refuse_other_manifests(manifest: Node) -> None:
    version = re.search(r"/manifest/v(\d+)", str(manifest.get("metadata", {}).get("dbt_schema_version")))
    if not version or int(version[1]) < _OLDEST_MANIFEST or not {"nodes", "exposures"} <= manifest.keys():
        found = f"version {version[1]}" if version else "no manifest"
        expected = f"version {_OLDEST_MANIFEST} or later, as dbt 1.10 writes it"
        raise mistake("manifest.json", found, expected, "run dbt again, with dbt 1.10 or later")


def _refuse_replaced_ledger(manifest: Node, problems: list[Problem]) -> None:
    """dbt applies the root project's `models:` last: `+materialized: table` at its top would replace the ledger in each run."""
    for unique_id in sorted(one for one in manifest["nodes"] if one.startswith(_OUR_MODELS)):
        found = manifest["nodes"][unique_id].get("config", {}).get("materialized")
        allowed = ("ledger",) if unique_id == LEDGER_NODE else ("ledger_view", "view")
        if found and found not in allowed:
            text = f"materialized: {found} for {unique_id.removeprefix(_OUR_MODELS)}"
            expected = f"{allowed[0]}, for another one can lose what was delivered, or show it as it was"
            below = "{reverse_etl: {+materialized: ledger_view, reverse_etl_ledger: {+materialized: ledger}}}"
            next_step = f"set +materialized below the name of your project, or add below models: {below}"
            problems.append(Problem("dbt_project.yml: models", text, expected, next_step))
            return  # one cause, one message


def _place(node: Node, *keys: str) -> Place:
    return Place(str(node.get("original_file_path", "manifest.json")), (node["name"], *keys))


def _blocks(node: Node) -> list[Any]:
    """Our block of a node's meta, if there is one; dbt keeps `config.meta` and an older `meta` side by side."""
    metas = [node.get("config", {}).get("meta"), node.get("meta")]
    return [meta["reverse_etl"] for meta in metas if isinstance(meta, Mapping) and "reverse_etl" in meta]


def _block(node: Node) -> object:
    """The one that is read."""
    return next((block for block in _blocks(node) if block is not None), {})


def _refuse_misspelt(manifest: Node, changelogs: Iterable[str], problems: list[Problem]) -> None:
    """A block under another name, or in another place, would be ignored: nothing would ever be sent."""
    exposures = manifest["exposures"].values()
    over = [node for node in exposures if {*changelogs} & {*node.get("depends_on", {}).get("nodes", ())}]
    for node in [*over, *(manifest["nodes"][unique_id] for unique_id in changelogs)]:
        config = node.get("config", {})
        places = [] if _blocks(node) else [config, config.get("meta"), node.get("meta")]
        keys = [key for one in places for key, value in (one or {}).items() if isinstance(value, Mapping)]
        for key in dict.fromkeys(filter(_means_ours, keys)):
            found, ours = f"the key {key!r}, which nothing reads", "config.meta.reverse_etl"
            problems.append(Problem(_place(node).at(), found, ours, f"write it as {ours}, or rename it"))


def _means_ours(key: object) -> bool:
    if _LONGER.match(str(key)):
        return False
    letters = re.sub("[^a-z]", "", str(key).lower())
    return bool(difflib.get_close_matches(letters, _SPELLINGS, n=1, cutoff=_CLOSE))


def _read(node: Node, model: type[S], place: Place, problems: list[Problem]) -> S | None:
    """The settings of a node as their model, or None; what is wrong with them, a secret included, becomes a problem."""
    given = _block(node)
    if not isinstance(given, Mapping):
        problems.append(Problem(place.at(), described(given), "a mapping of settings", "write `key: value` lines"))
        return None
    secrets = list(literal_secrets(given))
    found = "what looks like a secret; env_var() is no help here, for dbt writes its value into manifest.json"
    next_step = "move it to the destination in profiles.yml, as \"{{ env_var('NAME') }}\", and change the secret"
    problems.extend(Problem(place.at(*path), found, "no secret under meta", next_step) for path in secrets)
    return validate(model, given, Place(place.file, place.keys, lambda _: bool(secrets)), problems)


def _changelogs(manifest: Node, problems: list[Problem]) -> dict[str, Changelog | None]:
    """All changelogs by unique id; None for one that has a problem."""
    nodes = manifest["nodes"].values()
    models = [node for node in nodes if node.get("config", {}).get("materialized") == "changelog"]
    return {node["unique_id"]: _changelog(node, problems) for node in models}


def _changelog(node: Node, problems: list[Problem]) -> Changelog | None:
    settings = _read(node, ChangelogSettings, _place(node, "meta", "reverse_etl"), problems)
    unique_key = node["config"].get("unique_key")
    key = tuple([unique_key] if isinstance(unique_key, str) else unique_key or ())
    if not key:
        where = _place(node, "unique_key").at()
        problems.append(Problem(where, "nothing", "a column or a list of columns", "add unique_key='...' to config()"))
    if not key or settings is None:
        return None
    version = node.get("version")
    relation = node.get("relation_name") or node.get("alias") or node["name"]
    name = node["name"] if version is None else f"{node['name']}.v{version}"
    return Changelog(node["unique_id"], name, relation, key, settings)


def _refuse_dbt_tests(manifest: Node, problems: list[Problem]) -> None:
    nodes = manifest["nodes"]
    for node in nodes.values():
        test = node.get("test_metadata") or {}
        if test.get("name") not in _DBT_TESTS or test.get("namespace") not in (None, "dbt"):
            continue
        tested = nodes.get(_tested(node), {})
        if tested.get("config", {}).get("materialized") == "changelog" and not _can_pass(node, test["name"]):
            name, column = test["name"], node.get("column_name") or "a column"
            where = f"{node.get('original_file_path')}: {tested['name']}.{column}"
            ours = f"reverse_etl.current_{name}"
            expected = f"{ours}, which tests the rows as they are now: a changelog also holds former ones"
            next_step = f"write {ours} in its place"
            if column == "_snapshot_id":  # which the current rows do not have
                expected, next_step = "no such test: some records of ours have none", "remove it"
            problems.append(Problem(where, f"dbt's test {name}", expected, next_step))


def _tested(node: Node) -> str:
    """The model that a test is attached to."""
    models = [one for one in node.get("depends_on", {}).get("nodes", ()) if one.startswith("model.")]
    return str(node.get("attached_node") or (models[0] if len(models) == 1 else ""))


def _can_pass(node: Node, name: str) -> bool:
    """A test of our own columns, or of the change rows that its `where` picks on purpose."""
    picked = _OWN_COLUMN.search(str(node.get("config", {}).get("where") or ""))
    return bool(picked) or (name != "unique" and node.get("column_name") in _ALWAYS_SET)


def _sync(
    node: Node, manifest: Node, changelogs: Mapping[str, Changelog | None], problems: list[Problem]
) -> Sync | None:
    settings = _sync_settings(node, problems)
    upstream = node.get("depends_on", {}).get("nodes", [])
    if len(upstream) != 1 or upstream[0] not in changelogs:
        found = [_materialized(unique_id, manifest) for unique_id in upstream]
        is_off = any(unique_id in (manifest.get("disabled") or {}) for unique_id in upstream)
        where, expected = _place(node, "depends_on").at(), "exactly one model, with materialized='changelog'"
        next_step = "name that changelog alone: depends_on: [ref('..._changelog')]"
        next_step = "enable it, or set enabled: false for the sync, too" if is_off else next_step
        problems.append(Problem(where, ", ".join(found) or "nothing", expected, next_step))
        return None
    sync = _joined(node, changelogs[upstream[0]], settings, enabled=True)
    if sync is not None:
        _refuse_unmapped_key(sync, problems)
    return sync


def _sync_settings(node: Node, problems: list[Problem]) -> SyncSettings | None:
    return _read(node, SyncSettings, _sync_place(node), problems)


def _sync_place(node: Node) -> Place:
    return _place(node, "config", "meta", "reverse_etl")


def _joined(node: Node, changelog: Changelog | None, settings: SyncSettings | None, *, enabled: bool) -> Sync | None:
    if changelog is None or settings is None:
        return None
    tags = tuple(node.get("tags") or ())
    return Sync(node["unique_id"], node["name"], tags, enabled, changelog, settings, _place(node).file)


def _materialized(unique_id: str, manifest: Node) -> str:
    """A node by name and materialization; a source, a seed or a metric has none."""
    if unique_id in (manifest.get("disabled") or {}):
        return f"{unique_id}, which is disabled"
    node = manifest["nodes"].get(unique_id, {})
    return f"{unique_id} ({node.get('config', {}).get('materialized') or unique_id.partition('.')[0]})"


def _refuse_unmapped_key(sync: Sync, problems: list[Problem]) -> None:
    changelog = sync.changelog
    mapped = {column.casefold() for column in sync.settings.fields or changelog.key}
    absent = [column for column in changelog.key if column.casefold() not in mapped]
    if absent:
        names, expected = ", ".join(absent), f"all columns of the key of {changelog.name}: a row is found by them"
        problems.append(Problem(sync.place.at("fields"), f"no {names}", expected, f"add {names} to fields"))


def _disabled_exposures(manifest: Node) -> Iterator[Node]:
    """One of each name: a project may write it once for each target, and switch all but one off."""
    for unique_id, nodes in (manifest.get("disabled") or {}).items():
        ours = [node for node in nodes if node.get("resource_type") == "exposure" and _blocks(node)]
        yield from ours[: unique_id not in manifest["exposures"]]


def _is_named(changelog: Changelog, refs: Iterable[Node]) -> bool:
    """Without a version, any of a model is as good: nothing is sent."""
    name, _, version = changelog.name.partition(".v")
    return any(ref.get("name") == name and str(ref.get("version") or version) == version for ref in refs)


def _paused(node: Node, changelogs: Mapping[str, Changelog | None]) -> Sync | None:
    """A sync that is switched off: dbt leaves its `depends_on` empty, and its mistakes do not matter."""
    changelog = next((one for one in changelogs.values() if one and _is_named(one, node.get("refs", ()))), None)
    return _joined(node, changelog, _sync_settings(node, []), enabled=False)
