"""dbt over thrift: it reaches a real thrift server and captures there; the push has a session of its own, over the same metastore."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dbt.people import FIRST, MODEL, SECOND
from tests.support.dbt.shop import DBT, REVERSE_ETL, start, write_shop
from tests.support.servers.spark import metastore, thrift_server
from tests.support.spark_session import INTERPRETED, spark_settings


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with metastore(tmp_path / "metastore") as shared:
        yield spark_settings(tmp_path / "spark") | INTERPRETED | shared


@pytest.fixture
def port(tmp_path: Path, settings: Mapping[str, str]) -> Iterator[int]:
    with thrift_server(tmp_path / "thrift", settings) as listening:
        yield listening


def profile_over_thrift(folder: Path, session: Path, port: int) -> None:
    """The same target; only the way to Spark is another one."""
    profiles: dict[str, Any] = yaml.safe_load((session / "profiles.yml").read_text())
    output = {"type": "spark", "method": "thrift", "host": "127.0.0.1", "port": port, "user": "dbt", "schema": "shop"}
    profiles["shop"]["outputs"]["dev"] = output
    folder.mkdir()
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))


@pytest.mark.guarantee("dbt and its commands")
def test_dbt_captures_over_thrift_and_the_command_pushes_from_a_session_of_its_own(
    tmp_path: Path, settings: Mapping[str, str], port: int
) -> None:
    shop, crm, thrift = tmp_path / "shop", tmp_path / "crm.sqlite", tmp_path / "over_thrift"
    write_shop(shop, MODEL, settings, {"crm": {"type": "sqlite", "path": str(crm)}})
    profile_over_thrift(thrift, shop, port)

    def done(*command: str, **environment: str) -> str:
        process = start(shop, *command, **environment)
        output = process.communicate(timeout=200)[0]
        assert process.returncode == 0, output
        return output

    def captured(*variables: str) -> str:
        return done(*DBT, "run", *variables, DBT_PROFILES_DIR=str(thrift), DBT_REVERSE_ETL_PUSH="off")

    done(*DBT, "deps")
    captured()
    assert "[+200 ~0 -0 in" in done(*REVERSE_ETL, "push")
    with sqlite3.connect(crm) as connection:
        assert dict(connection.execute("select id, name from people")) == FIRST
    captured("--vars", "{step: 2}")
    assert "[+1 ~3 -3 in" in done(*REVERSE_ETL, "push")
    with sqlite3.connect(crm) as connection:
        assert dict(connection.execute("select id, name from people")) == SECOND
    always = ("--vars", "{step: 2, reverse_etl_skip_from_rows: 0}")
    captured(*always)
    assert "no input changed" in captured(*always)
