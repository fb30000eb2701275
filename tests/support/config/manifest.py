"""A small manifest.json, without dbt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def manifest(syncs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """As dbt writes it: syncs by name with their settings, each with a changelog of its own."""
    nodes, exposures = {}, {}
    for name, settings in syncs.items():
        config = {"materialized": "changelog", "unique_key": "id"}
        model = {"unique_id": f"model.shop.{name}", "name": name, "resource_type": "model", "config": config}
        nodes[model["unique_id"]] = model
        exposures[name] = {
            "unique_id": f"exposure.shop.{name}",
            "name": name,
            "config": {"meta": {"reverse_etl": {"object": "people", **settings}}},
            "depends_on": {"nodes": [model["unique_id"]]},
        }
    version = {"dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json"}
    return {"metadata": version, "nodes": nodes, "exposures": exposures}
