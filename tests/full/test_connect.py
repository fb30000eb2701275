"""Spark Connect: dbt and the commands reach a real Connect server, and no Spark runs in their process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT
from tests.support.dbt.people import MODEL, SECOND
from tests.support.dbt.shop import start, write_shop
from tests.support.servers.spark import connect_server
from tests.support.sinks.files_consumer import in_folder, listed, state
from tests.support.spark_session import INTERPRETED, spark_settings

# dbt captures and pushes; then dbt only captures, and the commands plan and push.
RUNS = """
import os
from dbt.cli.main import dbtRunner
from dbt_reverse_etl.cli import cli
from pyspark.sql import SparkSession
from tests.support.dbt.filters import told_otherwise

def dbt(*command):
    return dbtRunner().invoke([*command]).success

assert dbt("deps")
assert dbt("run", "--select", "people")
os.environ["DBT_REVERSE_ETL_PUSH"] = "off"
assert dbt("run", "--select", "people", "--vars", "{step: 2}")
for _ in range(2):
    assert dbt("run", "--select", "people", "--vars", "{step: 2, reverse_etl_skip_from_rows: 0}")
os.environ["DBT_REVERSE_ETL_PUSH"] = "on"
people = ("--select", "crm_people", "--select", "files_people")
for command in ("plan", "push", "status", "reconcile", "check", "report"):
    assert cli([command, *people], standalone_mode=False) in (0, None), command
assert not dbt("run", "--select", "others"), "of its sync to a Delta table"
assert cli(["status"], standalone_mode=False) in (0, None)
spark = SparkSession.active()
assert not spark.catalog.tableExists("shop.people_of_lake"), "no table of a sink that was refused"
assert told_otherwise(spark) == {}
from pyspark import SparkContext
assert SparkContext._active_spark_context is None, "no Spark of its own"
"""
OTHERS = "{{ config(materialized='changelog', unique_key='id') }}\nselect 1 as id"


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    with connect_server(tmp_path / "server", spark_settings(tmp_path / "spark") | INTERPRETED) as url:
        yield url


@pytest.mark.guarantee("dbt and its commands")
def test_dbt_and_the_commands_capture_plan_push_and_reconcile_through_a_connect_server(
    tmp_path: Path, remote: str
) -> None:
    home, crm, files = tmp_path / "shop", tmp_path / "crm.sqlite", tmp_path / "files"
    destinations = {
        "crm": {"type": "sqlite", "path": str(crm)},
        "files": {"type": "files", "path": str(files)},
        "lake": {"type": "delta", "schema": "shop"},
    }
    settings = {
        "crm": {"where": "id >= 10 and name like 'person%'"},
        "files": {"owns_object": True, "full_load_above": "0%"},
        "lake": {"object": "people_of_lake"},
    }
    write_shop(home, MODEL, {"spark.remote": remote, **INTERPRETED}, destinations, settings)
    (home / "models/others.sql").write_text(OTHERS)
    exposures = yaml.safe_load((home / "models/exposures.yml").read_text())
    exposures["exposures"][-1]["depends_on"] = ["ref('others')"]
    (home / "models/exposures.yml").write_text(yaml.safe_dump(exposures))

    runs = start(home, "-c", RUNS, JAVA_HOME=str(tmp_path), PYTHONPATH=str(ROOT))  # with no Java there
    output = runs.communicate(timeout=400)[0]

    assert runs.returncode == 0, output
    assert "no input changed" in output
    assert "[+190 ~0 -0 in" in output
    assert "[+1 ~3 -0 in" in output
    assert "[+198 ~0 -0 in" in output, "a full load"
    assert "found a session of Spark Connect; expected a session of Spark in this process" in output
    with sqlite3.connect(crm) as connection:
        assert dict(connection.execute("select id, name from people")) == {n: SECOND[n] for n in SECOND if n >= 10}
    rows = state(listed(in_folder(files / "people")), ["id"])
    assert {row["id"]: row["name"] for row in rows} == SECOND
