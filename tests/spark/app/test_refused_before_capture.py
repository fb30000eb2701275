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
    "an unknown field": ({"fields": ["id", "email"]}, "found 'email'; expected columns of the changelog"),
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


@pytest.fixture(scope="module")
def secretive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A sync whose destination has a password, in an environment that has not."""
    project = Project(tmp_path_factory.mktemp("secretive") / "shop", spark, "secrets_when_used")
    password = "{{ env_var('CRM_PASSWORD_OF_NOBODY') }}"
    login = {"host": "127.0.0.1", "port": 9, "database": "crm", "user": "etl", "password": password}
    project.destinations |= {"pg": {"type": "postgres", **login}}
    project.table("source", "select * from values (1, 'Ann', '2024-01-01') as t (id, name, day)")
    project.model("stg_orders", "select 1 as id")
    project.changelog("people", ROWS.format(project.schema))
    project.changelog("others", ROWS.format(project.schema))
    project.sync("of_others", "others", object="others", fields=["id", "name"])
    project.sync("of_people", "people", destination="pg", object="people", fields=["id", "name"])
    told = Told(project)
    told.results["another model"] = project.dbt("run", "--select", "stg_orders")
    told.results["another sync"] = project.dbt("run", "--select", "others")
    told.results["pushed"] = project.dbt("run", "--select", "people")
    told.captured["pushed"] = spark.catalog.tableExists(f"{project.schema}.people")
    for switch in ("off", "plan", "maybe"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DBT_REVERSE_ETL_PUSH", switch)
            told.results[switch] = project.dbt("run", "--select", "people")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DBT_REVERSE_ETL_OVERRIDE", "nobody@1:+1~0-0")
        told.results["unknown override"] = project.dbt("run", "--select", "others")
    return told


@pytest.mark.full
@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("name", ["another model", "another sync", "off", "plan"])
def test_a_command_that_does_not_reach_a_destination_does_not_need_its_secret(secretive: Told, name: str) -> None:
    result = secretive.results[name]
    assert result.success, result.text
    assert "CRM_PASSWORD_OF_NOBODY" not in result.text
    assert secretive.results["plan"].sync("of_people")


@pytest.mark.full
def test_a_secret_that_is_not_set_stops_the_capture_that_it_would_push(secretive: Told) -> None:
    message = secretive.results["pushed"].messages["people"]
    assert "variable CRM_PASSWORD_OF_NOBODY, which is not set" in message
    assert "nothing was captured" in message
    assert not secretive.captured["pushed"]


@pytest.mark.full
@pytest.mark.parametrize(("name", "said"), [("maybe", "off, plan or on"), ("unknown override", "one of a sync")])
def test_a_word_of_the_environment_that_nothing_understands_stops_dbt_before_its_models(
    secretive: Told, name: str, said: str
) -> None:
    assert said in secretive.results[name].text
    assert not secretive.results[name].statuses
