"""A user's dbt project on disk whose commands run in processes of their own, as a scheduler runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support import ROOT

DBT = ("-m", "dbt.cli.main")
REVERSE_ETL = ("-m", "dbt_reverse_etl")


def write_shop(
    home: Path,
    model: str,
    spark: Mapping[str, str],
    destinations: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """A changelog `people` of this query with key `id`, and one sync `<destination>_people` to each destination.

    Args:
        spark: settings of the session that each process makes.
        destinations: as profiles.yml says them.
        settings: by destination, what its sync says in meta.reverse_etl beside where it goes.
    """
    (home / "models").mkdir(parents=True)
    output = {
        "type": "spark",
        "method": "session",
        "host": "NA",
        "schema": "shop",
        "server_side_parameters": dict(spark),
    }
    documents = {
        "dbt_project.yml": {"name": "shop", "version": "1.0.0", "profile": "shop", "flags": {"use_colors": False}},
        "packages.yml": {"packages": [{"local": str(ROOT)}]},
        "profiles.yml": {
            "shop": {"target": "dev", "outputs": {"dev": dict(output)}},
            "dbt_reverse_etl": {"outputs": {"dev": {name: dict(one) for name, one in destinations.items()}}},
        },
        "models/exposures.yml": {"exposures": [_exposure(name, settings.get(name, {})) for name in destinations]},
    }
    for name, document in documents.items():
        (home / name).write_text(yaml.safe_dump(document))
    config = "{{ config(materialized='changelog', unique_key='id') }}\n"
    (home / "models/people.sql").write_text(config + model)


def start(home: Path, *command: str, group: bool = False, **environment: str) -> subprocess.Popen[str]:
    """`DBT` or `REVERSE_ETL` with arguments; in a process group of its own, Spark can be killed with it."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=home,
        env={**os.environ, "DBT_PROFILES_DIR": str(home), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=group,
    )


def _exposure(destination: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{destination}_people",
        "type": "application",
        "owner": {"name": "Growth", "email": "growth@example.com"},
        "depends_on": ["ref('people')"],
        "config": {
            "meta": {"reverse_etl": {"destination": destination, "object": "people", "mode": "mirror", **settings}}
        },
    }
