"""Syncs, what the ledger says of them, and what pushes them, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.config.destinations import Destination, ResolvedSync
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings, Sync, SyncSettings
from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Options
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.overview import Overview
from dbt_reverse_etl.warehouse.spec import Spec, given_spec


def sync(name: str, changelog: str, **more: Any) -> ResolvedSync:
    model = Changelog(changelog, changelog, changelog, ("id",), ChangelogSettings())
    settings = SyncSettings(destination="crm", object=name, **more)
    file = SqliteSink.settings_model(path="crm.db")
    destination = Destination("crm", "sqlite", SqliteSink, file, Guards())
    return ResolvedSync(
        Sync(f"exposure.shop.{name}", name, (), True, model, settings, ""), destination, Guards(), Options()
    )


def pusher(**heads: int) -> Pusher:
    """The results know snapshot 5 of each changelog; the warehouse is at `heads`."""
    none: Any = None
    known = {name: HeadOfModel(5, "uuid") for name in heads}
    asked = {name: Head(at, "uuid", 1, 1, ("id",), (), VERSION) for name, at in heads.items()}
    return Pusher(none, none, known=known, _heads=_heads(asked))


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of rows with a key alone, whose spec has not changed."""
    monkeypatch.setattr(Spec, "arrow_schema", lambda _: pa.schema([("id", pa.int64())]))
    monkeypatch.setattr(SyncPush, "_spec", lambda one, *_, **__: one._earlier[0])


def looks_at(warehouse: Pusher, **heads: Head | None) -> Pusher:
    """The same with other heads."""
    warehouse._heads = _heads(heads)
    return warehouse


def _heads(asked: Mapping[str, Head | None]) -> dict[tuple[str, int | None], Head | None]:
    return {(name, at): head for name, head in asked.items() for at in (None, *([head.snapshot] if head else []))}


def at(one: ResolvedSync, snapshot: int, changelog: str = "uuid", where: str | None = None, **how: Any) -> Overview:
    """Its destination has reached this snapshot, through this filter."""
    given = given_spec(one.sync.settings.model_copy(update={"where": where}))
    spec = Spec((("id", "id", "bigint"),), where, one.sync.settings.mode, given)
    places = (Range(0, BUCKETS, snapshot, spec.id),)
    state = State(1, changelog, places, specs={spec.id: spec.text}, **{"status": "succeeded", **how})
    return Overview({id_of(one): state})
