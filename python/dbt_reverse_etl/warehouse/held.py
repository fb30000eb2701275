"""Which rows a destination may hold because of a sync: by its ledger, over the history of its changelog."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from dbt_reverse_etl.warehouse.spec import Spec, resolve

_LEAVING = (Mode.UPSERT, Mode.INSERT_ONLY)  # they put rows there, and never delete one


@dataclass(frozen=True)
class History:
    """What one sync delivered from one changelog, up to a head. `known_from`: see `RunStarted`."""

    spark: SparkSession
    ledger: DeltaLedger
    relation: str
    head: Head
    sync_id: str
    known_from: int

    def held(self, spec: Spec, only: str | None = None, *, nan_is_null: bool = False) -> str:
        """SQL of the macro `held`: of all keys, or of those of a relation."""
        specs = [
            {"id": name, "mode": one.mode.value, **self.head.spec_at(one.projection, snapshot)}
            for name, one, snapshot in self.ledger.specs(self.sync_id, self.head.changelog, self.known_from)
        ]
        return sql.render(
            "held",
            relation=self.relation,
            key=self.head.key,
            head=self.head.snapshot,
            ledger=self.ledger.relation,
            sync_id=self.sync_id,
            changelog=self.head.changelog,
            known_from=self.known_from,
            specs=specs,
            **spec.projection,
            only=only,
            nan_is_null=nan_is_null,
        )

    def held_view(self, spec: Spec) -> str:
        """A view, for the caller to drop: `_key` of rows that the destination holds, as far as is known, and should not."""
        view = f"reverse_etl_held_{uuid.uuid4().hex}"
        self.spark.sql(self.held(spec)).where("_held").select("_key").createTempView(view)
        return view

    def pruned_note(self, unknown: str) -> str:
        """What is said where history is not complete; `unknown`: what nobody knows of rows that left the model before."""
        query = f"select max(_snapshot_id) from {self.relation} where _change = 'pruned'"  # noqa: S608
        pruned = self.spark.sql(query).collect()[0][0]
        rows = f"nobody knows which rows that left the model before {unknown}, so they count as foreign"
        return f"history up to snapshot {pruned} was pruned: {rows}" if pruned else ""


@dataclass(frozen=True)
class Others:
    """Other syncs that put rows into the same object and leave them there.

    Attributes:
        filters: of those over the same changelog.
        elsewhere: there are some over other changelogs.
    """

    filters: Sequence[str | None] = ()
    elsewhere: bool = False

    def __bool__(self) -> bool:
        return bool(self.filters) or self.elsewhere


def others(
    spark: SparkSession, mine: ResolvedSync, resolved: Iterable[ResolvedSync], columns: Sequence[tuple[str, str]]
) -> Others:
    """The others of a sync over a changelog with these columns."""
    found = _in_object(mine, resolved, _LEAVING)
    filters = _filters(spark, mine, found, columns)
    return Others(filters, elsewhere=len(filters) < len(found))


def beside(mine: ResolvedSync, resolved: Iterable[ResolvedSync]) -> list[ResolvedSync]:
    """The other syncs over the same changelog that leave rows in the object of a sync, or fields in its rows."""
    return _over_changelog(mine, _in_object(mine, resolved, (*_LEAVING, Mode.UPDATE_ONLY)))


def mirrors(
    spark: SparkSession, mine: ResolvedSync, resolved: Iterable[ResolvedSync], columns: Sequence[tuple[str, str]]
) -> Sequence[str | None]:
    """Filters of the mirrors over the same changelog which may delete rows that a sync leaves in the object, or updates there."""
    leaves = mine.sync.settings.mode in (*_LEAVING, Mode.UPDATE_ONLY)
    return _filters(spark, mine, _in_object(mine, resolved, (Mode.MIRROR,)), columns) if leaves else ()


def _in_object(mine: ResolvedSync, resolved: Iterable[ResolvedSync], modes: Sequence[Mode]) -> list[ResolvedSync]:
    """The other syncs of the object that have these modes."""
    return [
        one
        for one in resolved
        if one.sync.enabled and one.sync.unique_id != mine.sync.unique_id and one.sync.settings.mode in modes
        if _place(one) == _place(mine)
    ]


def _filters(
    spark: SparkSession, mine: ResolvedSync, found: Iterable[ResolvedSync], columns: Sequence[tuple[str, str]]
) -> tuple[str | None, ...]:
    return tuple(resolve(spark, one.sync, columns).where for one in _over_changelog(mine, found))


def _over_changelog(mine: ResolvedSync, found: Iterable[ResolvedSync]) -> list[ResolvedSync]:
    return [one for one in found if one.sync.changelog.unique_id == mine.sync.changelog.unique_id]


def _place(one: ResolvedSync) -> tuple[str, str]:
    place = one.destination.sink(one.destination.settings).place_of(one.sync.settings.object)
    return one.destination.type, place
