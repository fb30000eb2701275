"""What only Spark can tell of a configuration is refused by the session of the capture, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project, Result

ROWS = "select id, name, array(id) as parts, cast(day as date) as day from {}.source"
PUT = {"method": "PUT", "path": "people/{id}"}
# What the text of a configuration cannot tell: it depends on the columns, their types, or Spark's own functions.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown column": ({"where": "nosuch = 1"}, "what Spark cannot resolve"),
    "no condition": ({"where": "id + 1"}, "no condition"),
    "the time by another name": ({"where": "day < curdate()"}, "depends on the time"),
    "an unknown field": ({"fields": ["id", "email"]}, "found email; expected columns of the changelog"),
    "a placeholder of no field": (
        {"destination": "api", "options": {"upsert": PUT | {"path": "people/{id}/{email}"}}},
        "placeholder {email}",
    ),
    "a list in a path": (
        {"destination": "api", "options": {"upsert": PUT | {"path": "people/{id}/{parts}"}}},
        "a field with one value",
    ),
    "a template of another type": (
        {"destination": "api", "options": {"upsert": PUT | {"body_template": "sum.j2"}}},
        "TypeError (tried with sample rows)",
    ),
    "a partition of no field": ({"destination": "lake", "options": {"partition_by": ["country"]}}, "'country'"),
    "a partition by a list": ({"destination": "lake", "options": {"partition_by": ["parts"]}}, "list"),
}


@dataclass
class Told:
    """The first run, what was captured by then, and each refused run."""

    project: Project
    results: dict[str, Result] = field(default_factory=dict)
    captured: dict[str, int] = field(default_factory=dict)

    def run(self, name: str) -> None:
        self.results[name] = self.project.run()
        self.captured[name] = self.project.rows("select count(*) from {s}.people")[0][0]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    project = Project(tmp_path_factory.mktemp("refused") / "shop", spark, "refused_before_capture")
    folder = project.folder
    project.destinations |= {
        "api": {"type": "http", "url": "http://127.0.0.1:9/"},
        "lake": {"type": "files", "path": str(folder / "lake")},
    }
    (folder / "sum.j2").write_text('{"sum": {{ row.id + row.name }}}')
    project.table(
        "source", "select * from values (1, 'Ann', '2024-01-01'), (2, 'Bob', '2024-01-02') as t (id, name, day)"
    )
    project.changelog("people", ROWS.format(project.schema))
    told = Told(project)
    told.run("without a sync")
    project.table(
        "source", "select * from values (1, 'Anna', '2024-01-01'), (3, 'Cem', '2024-01-03') as t (id, name, day)"
    )
    for name, (settings, _) in WRONG.items():
        project.sync("wrong", "people", **settings)
        told.run(name)
    (folder / "models/exposure_wrong.yml").unlink()
    project.changelog("fresh", ROWS.format(project.schema))
    project.sync("of_fresh", "fresh", where="nosuch = 1")
    told.run("a first capture")
    return told


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("name", WRONG)
def test_what_only_spark_can_tell_is_refused_before_anything_is_captured(told: Told, name: str) -> None:
    result, (_, said) = told.results[name], WRONG[name]
    assert not result.success
    assert said in result.messages["people"]
    assert "nothing was captured" in result.messages["people"]
    assert told.captured[name] == told.captured["without a sync"]
    assert not result.pushed()


def test_no_table_is_made_for_a_changelog_whose_sync_is_refused(told: Told) -> None:
    assert "what Spark cannot resolve" in told.results["a first capture"].messages["fresh"]
    assert not told.project.spark.catalog.tableExists(f"{told.project.schema}.fresh")


def test_what_is_refused_holds_back_no_changelog_of_sound_syncs(told: Told) -> None:
    assert told.results["a first capture"].statuses["people"] == "success"
    assert told.captured["a first capture"] > told.captured["without a sync"]
