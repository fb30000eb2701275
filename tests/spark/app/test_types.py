"""Every type from a model to destinations, captured and pushed in one time zone and read in another: one run, many questions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.command import counts, found_by
from tests.support.dbt.project import Project
from tests.support.servers.http import Reply, http_server
from tests.support.servers.schema_registry import a_registry
from tests.support.sinks.types import SCHEMA, Row, ddl, rows, write
from tests.support.sinks.types_places import ABSENT, REFUSED, Places, by_user, in_zone, wrong

# Other formats, nested types and tables of users are tried without Spark: tests/servers/sql/test_types.py.
NAMES = ("postgres", "mysql", "duckdb", "parquet", "api")
SYNCS = (*(f"{name}_by_sink" for name in NAMES), "lake_by_sink", "lake_by_user")
NESTED = ("texts", "doubles", "moments", "locals", "detail", "by_text", "by_number")
COLUMNS = [name for name in SCHEMA.names[1:] if name in NESTED or not pt.is_nested(SCHEMA.field(name).type)]
FIELDS = pa.schema([SCHEMA.field(name) for name in ("id", *COLUMNS)])
UNSIGNED = ("postgres",)  # where a zero in a list has no sign


@dataclass
class Shop:
    """What a run left behind, and what reconcile says of it."""

    project: Project
    places: Places
    found: dict[str, Any]

    def read(self, sync: str) -> list[Row]:
        """What the destination of a sync holds."""
        name, _, maker = sync.partition("_by_")
        return lake(self.project, f"types_by_{maker}") if name == "lake" else self.places.read(name, maker)


def lake(project: Project, table: str) -> list[Row]:
    """The table in a session of another time zone, if its columns have the types of the model."""
    session = project.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    found = session.table(f"{project.schema}_lake.{table}")
    types = {field.name: field.dataType.simpleString() for field in found.schema}
    assert {field.name: types[field.name] for field in FIELDS} == {field.name: ddl(field.type) for field in FIELDS}
    read: list[Row] = found.select(FIELDS.names).toArrow().cast(FIELDS).to_pylist()
    return read


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    here, zone = Path.cwd(), spark.conf.get("spark.sql.session.timeZone")
    project = Project(tmp_path_factory.mktemp("types") / "shop", spark, "every_type")
    write(project.folder / "source.parquet")
    spark.sql(f"create schema {project.schema}_lake")
    spark.sql(by_user("lake").format(f"{project.schema}_lake.types_by_user") + " using delta")
    project.changelog("types", f"select {', '.join(FIELDS.names)} from parquet.`{project.folder / 'source.parquet'}`")
    with http_server(Reply(204)) as server, a_registry() as registry:
        places = Places(project.folder, NAMES, server, registry)
        project.destinations = {**places.profiles, "lake": {"type": "delta", "schema": f"{project.schema}_lake"}}
        for sync in SYNCS:
            name, _, maker = sync.partition("_by_")
            fields = {field: field for field in FIELDS.names if field not in ABSENT.get(name, ())}
            project.sync(sync, "types", destination=name, object=f"types_by_{maker}", fields=fields)
        try:
            with in_zone("America/New_York"):
                spark.conf.set("spark.sql.session.timeZone", "America/New_York")
                project.run()
            with in_zone("Asia/Tokyo"):
                spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
                found = found_by(project)
        finally:
            spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
            os.chdir(here)
        yield Shop(project, places, found)


@pytest.mark.full
@pytest.mark.guarantee("Every destination")
@pytest.mark.parametrize("sync", SYNCS)
def test_every_value_arrives_as_it_is_or_its_row_is_refused(shop: Shop, sync: str) -> None:
    assert wrong(sync.partition("_by_")[0], shop.read(sync), COLUMNS) == {}


@pytest.mark.full
@pytest.mark.guarantee("Every destination")
@pytest.mark.parametrize("sync", SYNCS)
def test_reconcile_finds_every_row_that_was_not_refused_and_no_other(shop: Shop, sync: str) -> None:
    name = sync.partition("_by_")[0]
    report = shop.found[sync]
    if name == "api":
        assert "cannot be read" in report["message"]
    else:
        assert report["message"] == ""
        assert counts(report) == (len(rows()) - len(REFUSED.get(name, ())), 0, int(name in UNSIGNED), 0, 0)
