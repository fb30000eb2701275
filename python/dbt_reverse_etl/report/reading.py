"""Asks the ledger, the changelogs and dbt's manifest for what the report shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Row, SparkSession

from dbt_reverse_etl import __version__
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.report.key_reading import read_keys
from dbt_reverse_etl.report.lineage import upstream
from dbt_reverse_etl.report.model import Changelog, Reason, Report, Run, Snapshot, Sync
from dbt_reverse_etl.warehouse.ledger import Overview
from dbt_reverse_etl.wide.picture import pictures

MOST_REASONS = 50  # of one sync; the rest is one line
_OUTCOMES = ("planned", "delivered", "rejected", "failed", "skipped", "no_match")

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the user wants to see.

    Attributes:
        target: the dbt target.
        keys: JSON objects, each a key of a changelog.
        show_values: show the rows of these keys, and not only that they changed.
        newest: so many runs of each sync, and so many snapshots of each changelog.
    """

    target: str
    keys: Sequence[str] = ()
    show_values: bool = False
    newest: int = 100


@apart
def read(
    pusher: Pusher, syncs: Sequence[ResolvedSync], overview: Overview, manifest: Mapping[str, Any], asked: Asked
) -> Report:
    """The report of some syncs and of their changelogs.

    Raises:
        ReverseEtlError: a changelog has no table, or a key is one of none of them.
    """
    statuses = {one.sync.name: pusher.status(one, overview) for one in syncs}
    names = {status["sync_id"]: name for name, status in statuses.items()}
    changelogs = {one.sync.changelog.unique_id: one.sync.changelog for one in syncs}
    snapshots = {
        unique_id: _snapshots(pusher.spark, changelog.relation_name, _of(unique_id, syncs, statuses), asked.newest)
        for unique_id, changelog in changelogs.items()
    }
    runs, reasons = _runs(pusher, names, asked.newest), _reasons(pusher, names)
    return Report(
        project=str(manifest.get("metadata", {}).get("project_name") or "dbt"),
        target=asked.target,
        made_at=datetime.now(timezone.utc),
        version=__version__,
        syncs=[
            _sync(one, statuses[one.sync.name], runs, reasons, snapshots[one.sync.changelog.unique_id]) for one in syncs
        ],
        changelogs=[
            Changelog(one.name, one.key, upstream(unique_id, manifest), snapshots[unique_id][-asked.newest :])
            for unique_id, one in changelogs.items()
        ],
        keys=read_keys(pusher, syncs, names, asked.keys, show_values=asked.show_values),
        shows_values=asked.show_values,
        pictures=_pictures(manifest, {one.name for one in changelogs.values()}),
    )


def _pictures(manifest: Mapping[str, Any], changelogs: Collection[str]) -> dict[str, str]:
    """The join trees of those that are wide tables."""
    return {model: svg for model, svg in pictures(manifest).items() if model in changelogs}


def _of(unique_id: str, syncs: Iterable[ResolvedSync], statuses: Mapping[str, Status]) -> list[Status]:
    return [statuses[one.sync.name] for one in syncs if one.sync.changelog.unique_id == unique_id]


def _sync(
    resolved: ResolvedSync,
    status: Status,
    runs: Mapping[str, Sequence[Row]],
    reasons: Mapping[str, Sequence[Reason]],
    snapshots: Sequence[Snapshot],
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
        message=status["reason"],
        no_match=status["no_match"],
        last_success_at=_utc(own[-1].last_success_at) if own and own[-1].last_success_at else None,
        runs=[_run(row) for row in own],
        reasons=reasons.get(status["sync_id"], ()),
    )


def _runs(pusher: Pusher, names: Mapping[str, str], newest: int) -> dict[str, list[Row]]:
    """The newest runs of each sync, oldest first."""
    query = f"""
        select * from (
            select *, row_number() over (partition by sync_id order by fence desc) as _n,
                max(if(ended_well, finished_at, null)) over (partition by sync_id) as last_success_at
            from {sql.view("reverse_etl_runs", pusher.ledger.relation)} where sync_id in ({_literals(names)})
        ) where _n <= {int(newest)} order by fence
    """  # noqa: S608
    found: dict[str, list[Row]] = {}
    for row in _collected(pusher.spark, query, names):
        found.setdefault(row.sync_id, []).append(row)
    return found


def _run(row: Row) -> Run:
    counted = [PerOperation(*(row[f"{outcome}_{word}s"] for word in ("insert", "update", "delete"))) for outcome in _OUTCOMES]  # fmt: skip
    ended = _utc(row.finished_at) if row.finished_at else None
    return Run(row.fence, _utc(row.started_at), ended, row.status, row.snapshot_id, row.message or "", Counts(*counted))


def _reasons(pusher: Pusher, names: Mapping[str, str]) -> dict[str, list[Reason]]:
    """Undelivered rows by reason, the most frequent first; the keys of the rows stay in the ledger."""
    query = f"""
        select sync_id, if(_n > {MOST_REASONS}, '', operation) as operation, if(_n > {MOST_REASONS}, '', outcome) as outcome,
            if(_n > {MOST_REASONS}, 'other reasons', reason) as reason, sum(_rows) as _rows, min(_since) as _since
        from (
            select *, row_number() over (partition by sync_id order by _rows desc, reason) as _n from (
                select sync_id, operation, outcome, reason, count(*) as _rows, min(first_failed_at) as _since
                from {sql.view("reverse_etl_undelivered", pusher.ledger.relation)}
                where sync_id in ({_literals(names)}) and outcome <> 'no_match'
                group by sync_id, operation, outcome, reason
            )
        ) group by 1, 2, 3, 4 order by max(_n > {MOST_REASONS}), _rows desc
    """  # noqa: S608
    found: dict[str, list[Reason]] = {}
    for row in _collected(pusher.spark, query, names):
        reason = Reason(row.operation, row.outcome, row.reason, row._rows, _utc(row._since))
        found.setdefault(row.sync_id, []).append(reason)
    return found


def _snapshots(spark: SparkSession, relation: str, statuses: Sequence[Status], newest: int) -> list[Snapshot]:
    """The newest snapshots, oldest first, and before them those at which a sync is behind."""
    head = max(status["head"] for status in statuses)
    behind = {status["position"] + 1 for status in statuses}
    wanted = ", ".join(map(str, sorted(behind)))
    query = f"""
        select snapshot_id, captured_at, kind, label, inserts, updates, deletes, live_rows
        from {sql.render("snapshots", relation)}
        where snapshot_id > {int(head) - int(newest)} or snapshot_id in ({wanted}) order by snapshot_id
    """  # noqa: S608
    return [
        Snapshot(row[0], _utc(row[1]), row[2], row[3], *(count or 0 for count in row[4:]))
        for row in spark.sql(query).collect()
    ]


def _collected(spark: SparkSession, query: str, names: Mapping[str, str]) -> list[Row]:
    return spark.sql(query).collect() if names else []


def _literals(texts: Iterable[str]) -> str:
    return ", ".join(sql.render("_string", text) for text in texts)


def _utc(value: datetime) -> datetime:
    """Spark gives local times without a zone."""
    return value.astimezone(timezone.utc)
