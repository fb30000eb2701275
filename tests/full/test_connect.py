"""Spark Connect: dbt and the commands reach a real Connect server, and no Spark runs in their process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dbt.people import MODEL, SECOND
from tests.support.dbt.shop import start, write_shop
from tests.support.servers.spark import connect_server
from tests.support.spark_session import INTERPRETED, spark_settings

# dbt captures and pushes; then dbt only captures, and the commands plan and push.
RUNS = """
import os
from dbt.cli.main import dbtRunner
from dbt_reverse_etl.cli import cli

def dbt(*command):
    assert dbtRunner().invoke([*command]).success, command

dbt("deps")
dbt("run", "--select", "people")
os.environ["DBT_REVERSE_ETL_PUSH"] = "off"
dbt("run", "--select", "people", "--vars", "{step: 2}")
os.environ["DBT_REVERSE_ETL_PUSH"] = "on"
for command in ("plan", "push", "status", "reconcile"):
    assert cli([command], standalone_mode=False) in (0, None), command
from pyspark import SparkContext
assert SparkContext._active_spark_context is None, "no Spark of its own"
"""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    with connect_server(tmp_path / "server", spark_settings(tmp_path / "spark") | INTERPRETED) as url:
        yield url


@pytest.mark.guarantee("dbt and its commands")
def test_dbt_and_the_commands_capture_plan_push_and_reconcile_through_a_connect_server(
    tmp_path: Path, remote: str
) -> None:
    home, crm = tmp_path / "shop", tmp_path / "crm.sqlite"
    write_shop(home, MODEL, {"spark.remote": remote, **INTERPRETED}, {"crm": {"type": "sqlite", "path": str(crm)}})

    runs = start(home, "-c", RUNS, JAVA_HOME=str(tmp_path))  # with no Java there
    output = runs.communicate(timeout=280)[0]

    assert runs.returncode == 0, output
    assert "[+200 ~0 -0 in" in output
    assert "[+1 ~3 -3 in" in output
    with sqlite3.connect(crm) as connection:
        assert dict(connection.execute("select id, name from people")) == SECOND
