"""Generated chains of wide tables: the manifest that they are generated from, and how their models run on DuckDB."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jinja2

from dbt_reverse_etl.base.sql import value_of
from dbt_reverse_etl.wide.chain import ChainModel, Wanted, chain
from dbt_reverse_etl.wide.inputs import Inputs
from tests.support.wide.tables import World

Json = dict[str, Any]

PLAIN, CHANGELOGS = Wanted(), Wanted(changelogs=True)


def table(name: str, **about: Any) -> Json:
    """A node of the manifest; `types` are those of its columns."""
    columns = {column: {"name": column, "data_type": told} for column, told in about.pop("types", {}).items()}
    named = {"name": name, "resource_type": "model", "package_name": "shop", "version": None}
    return named | {"columns": columns, "config": {"materialized": "table"}} | about


def generated(
    declaration: Json, wanted: Wanted = PLAIN, model: str = "wide", capture: Json | None = None, **tables: Json
) -> list[ChainModel]:
    """The chain of a declaration; tables that are not given are models without documented columns."""
    plan = value_of("_wide_plan", declaration)
    assert not plan["problems"], plan["problems"]
    known = {name: table(name) for name in sorted({node["table"] for node in plan["nodes"].values()})} | tables
    manifest = {"metadata": {"project_name": "shop"}, "nodes": known, "sources": {}}
    declaring = table(model, depends_on={"nodes": list(known)}, config={"meta": {"reverse_etl": {"capture": capture}}})
    return chain(Inputs(manifest, declaring, plan), plan, wanted)


def create(world: World, models: list[ChainModel]) -> None:
    """The models as views, each after those that it reads; a changelog is its rows as they are."""
    package = SimpleNamespace(current=lambda relation, key: relation)
    for model in models:
        sql = jinja2.Template(model.sql).render(ref=lambda *names: names[-1], reverse_etl=package)
        world.query(f"create or replace view {model.name} as {sql}")
