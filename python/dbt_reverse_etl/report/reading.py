"""Asks the ledger, the changelogs and dbt's manifest for what the report shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Row

from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.base.times import utc
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.config import settings as config
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.config.manifest import changelogs
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health, Left
from dbt_reverse_etl.report.key_reading import head_of, read_keys
from dbt_reverse_etl.report.model import Changelog, Report, Run, Snapshot, Sync
from dbt_reverse_etl.warehouse.overview import Overview
from dbt_reverse_etl.wide.picture import pictures

_OUTCOMES = ("planned", "delivered", "rejected", "failed", "skipped", "no_match")
_LEVELS = 3  # more does not fit a screen; dbt docs has the whole graph

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the user wants to see.

    Attributes:
        target: the dbt target.
        keys: JSON objects, each a key of a changelog.
        show_values: show the rows of these keys, and not only that they changed.
        newest: so many runs of each sync, and so many snapshots of each changelog; None: what a page of a few MB can show.
        whole: the whole project, its changelogs without a sync included.
    """

    target: str
    keys: Sequence[str] = ()
    show_values: bool = False
    newest: int | None = None
    whole: bool = True


def usual_newest(syncs: int) -> int:
    """The more syncs, the fewer: some 3 000 runs together, and 10 of each in any case."""
    return max(10, min(100, 3_000 // max(1, syncs)))


@apart
def read(
    pusher: Pusher, syncs: Sequence[ResolvedSync], overview: Overview, manifest: Mapping[str, Any], asked: Asked
) -> Report:
    """The report of some syncs and of their changelogs.

    Raises:
        ReverseEtlError: a key is one of none of the changelogs.
    """
    newest = asked.newest or usual_newest(len(syncs))
    statuses = {one.sync.name: pusher.status(one, overview) for one in syncs}
    shown = changelogs_shown(manifest, syncs, whole=asked.whole)
    of_changelogs: dict[str, list[Status]] = {unique_id: [] for unique_id in shown}
    for one in syncs:
        of_changelogs[one.sync.changelog.unique_id].append(statuses[one.sync.name])
    snapshots = {
        unique_id: _snapshots(pusher, changelog.relation_name, of_changelogs[unique_id], newest)
        for unique_id, changelog in shown.items()
    }
    names = {key: {one["sync_id"]: one["sync"] for one in found} for key, found in of_changelogs.items()}
    runs = _runs(pusher, [status["sync_id"] for status in statuses.values()], newest)
    return Report(
        project=str(manifest.get("metadata", {}).get("project_name") or "dbt"),
        target=asked.target,
        made_at=datetime.now(timezone.utc),
        version=VERSION,
        syncs=[_sync(one, statuses[one.sync.name], runs, snapshots[one.sync.changelog.unique_id]) for one in syncs],
        changelogs=[
            Changelog(one.name, one.key, upstream(unique_id, manifest), snapshots[unique_id][-newest:])
            for unique_id, one in shown.items()
        ],
        keys=read_keys(pusher, list(shown.values()), names, asked.keys, show_values=asked.show_values),
        shows_values=asked.show_values,
        pictures=pictures(manifest, shown),
    )


def changelogs_shown(
    manifest: Mapping[str, Any], syncs: Iterable[ResolvedSync], *, whole: bool
) -> dict[str, config.Changelog]:
    """Those of the syncs, and of the whole project also those without a sync: by unique id."""
    known = changelogs(manifest) if whole else [one.sync.changelog for one in syncs]
    return {one.unique_id: one for one in known}


def upstream(unique_id: str, manifest: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Names by distance from a changelog, the farthest level first; each name is once in it, at its shortest distance."""
    nodes = {**manifest.get("nodes", {}), **manifest.get("sources", {})}
    seen, level, levels = {unique_id}, [unique_id], []
    for _ in range(_LEVELS):
        level = sorted({one for child in level for one in _parents(nodes, child) if one not in seen})
        if not level:
            break
        seen.update(level)
        levels.append(tuple(_name(nodes.get(one, {}), one) for one in level))
    return tuple(reversed(levels))


def _parents(nodes: Mapping[str, Any], unique_id: str) -> list[str]:
    found: list[str] = nodes.get(unique_id, {}).get("depends_on", {}).get("nodes", [])
    return found


def _name(node: Mapping[str, Any], unique_id: str) -> str:
    name = str(node.get("name") or unique_id.rpartition(".")[2])
    return f"{node['source_name']}.{name}" if node.get("resource_type") == "source" else name


def _sync(
    resolved: ResolvedSync, status: Status, runs: Mapping[str, Sequence[Row]], snapshots: Sequence[Snapshot]
) -> Sync:
    own = runs.get(status["sync_id"], ())
    waiting = [one.captured_at for one in snapshots if one.id > status["position"]] if status["lag"] else []
    return Sync(
        name=resolved.sync.name,
        changelog=resolved.sync.changelog.name,
        destination=status["destination"],
        type=resolved.destination.type,
        mode=status["mode"],
        health=Health(status["health"]),
        position=status["position"],
        head=status["head"],
        lag=status["lag"],
        behind_since=min(waiting, default=None),
        reason=status["reason"],
        left=[Left(**one) for one in status["left"]],
        no_match=status["no_match"],
        last_success_at=utc(own[-1].last_success_at) if own and own[-1].last_success_at else None,
        runs=[_run(row) for row in own],
    )


def _runs(pusher: Pusher, sync_ids: Sequence[str], newest: int) -> dict[str, list[Row]]:
    """The newest runs of each sync, oldest first. Of all others only the ends are read: a ledger keeps every run for good."""
    if not sync_ids:
        return {}
    ledger = pusher.ledger.relation
    of_syncs = f"sync_id in ({', '.join(sql.render('_string', one) for one in sync_ids)})"
    numbered = f"""
        select sync_id, fence, row_number() over (partition by sync_id order by fence desc) as _n
        from {ledger} where fact = 'run_started' and {of_syncs}
    """  # noqa: S608
    facts = f"""(
        select * from {ledger} as fact left semi join (select * from ({numbered}) where _n <= {int(newest)}) as run
        on fact.sync_id = run.sync_id and fact.fence = run.fence
    )"""  # noqa: S608
    query = f"""
        select run.*, success.last_success_at from {sql.view("reverse_etl_runs", facts)} as run
        left join (
            select sync_id, max(finished_at) as last_success_at from {sql.view("reverse_etl_runs", ledger)}
            where ended_well and {of_syncs} group by sync_id
        ) as success on run.sync_id = success.sync_id
        order by run.fence
    """  # noqa: S608
    found: dict[str, list[Row]] = {}
    for row in pusher.spark.sql(query).collect():
        found.setdefault(row.sync_id, []).append(row)
    return found


def _run(row: Row) -> Run:
    counted = [PerOperation(*(row[f"{outcome}_{word}s"] for word in ("insert", "update", "delete"))) for outcome in _OUTCOMES]  # fmt: skip
    ended = utc(row.finished_at) if row.finished_at else None
    message = redact(row.message or "")
    return Run(row.fence, utc(row.started_at), ended, row.status, row.snapshot_id, message, Counts(*counted))


def _snapshots(pusher: Pusher, relation: str, statuses: Sequence[Status], newest: int) -> list[Snapshot]:
    """The newest snapshots, oldest first, and before them those at which a sync is behind; none where the model was not run yet."""
    head = head_of(pusher, relation)
    if head is None:
        return []
    wanted = ", ".join(["0", *sorted({str(status["position"] + 1) for status in statuses})])
    query = f"""
        select snapshot_id, captured_at, kind, label, inserts, updates, deletes, live_rows
        from {sql.render("snapshots", relation)}
        where snapshot_id > {int(head.snapshot) - int(newest)} or snapshot_id in ({wanted}) order by snapshot_id
    """  # noqa: S608
    return [
        Snapshot(row[0], utc(row[1]), row[2], row[3], *(count or 0 for count in row[4:]))
        for row in pusher.spark.sql(query).collect()
    ]
