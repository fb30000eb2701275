"""`dbt-reverse-etl wide-table generate` in a dbt project: what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.sql import render
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.wide.chain import OF_SCD2, Wanted
from tests.support.dbt.artifacts import ROOT, Project, dbt
from tests.support.wide.chains import CHANGELOGS, generated, table
from tests.support.wide.declarations import COUNTRY, CUSTOMERS, HINTS, NODES, ORDERS, REGION, TABLES

WIDE = {"root": "customers", "nodes": NODES}
LOGGED = REGION | {"table": "regions_changelog", "columns": ["name"]}
SMALL = {"root": "customers", "nodes": [CUSTOMERS, LOGGED, COUNTRY | {"columns": {"name": "country"}}]}
REFRESH = "refresh table {{ this }}"
CHAIN = {
    "changelog": {
        "config": {
            "tags": ["nightly"],
            "post_hook": f"{{% raw %}}{REFRESH}{{% endraw %}}",
            "meta": {
                "owner": "growth",
                "reverse_etl": {"publish": "customer_360", "capture": {"full_compare_every": 24, "full_above": 0.5}},
            },
        },
        "data_tests": [{"reverse_etl.current_not_null": {"arguments": {"column_name": "id"}}}],
    },
    "wide": {
        "description": "Customers as sales sees them.",
        "config": {"materialized": "table", "schema": "marts"},
        "columns": [{"name": "id", "description": "Of the shop.", "data_tests": ["unique"]}],
    },
}


@cache
def original() -> Project:
    """Parsed once; a model of another place is in the way of one chain."""
    declared = {"orders_360": WIDE, "customers_360": WIDE, "small": SMALL, "taken": WIDE}
    declared["added"] = SMALL | {"chain": CHAIN}
    described = [
        {"name": one, "config": {"meta": {"reverse_etl": {"wide_table": wide}}}} for one, wide in declared.items()
    ]
    changelog = "{{ config(materialized='changelog', unique_key='id') }} select 1 as id, 'x' as name, 'y' as country"
    models = {
        **dict.fromkeys(TABLES, "select 1 as id"),
        **dict.fromkeys(declared, HINTS + "-- {{ ref('regions_changelog') }}\n{{ reverse_etl.wide_table() }}"),
        "regions_changelog": changelog,
        "taken_chain": "select 1 as id",
    }
    sources = [{"name": "app", "schema": "app", "tables": [{"name": "billing"}]}]
    project = Project({"models": described, "sources": sources}, models)
    (project.path / "dbt_packages").mkdir()
    (project.path / "dbt_packages" / "reverse_etl").symlink_to(ROOT)
    project.dbt("parse")
    return project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return shutil.copytree(original().path, tmp_path / "shop", symlinks=True)


def generate(project: Path, *arguments: str) -> list[str]:
    found = CliRunner().invoke(
        cli, ["wide-table", "generate", *arguments, "--project-dir", str(project)], standalone_mode=False
    )
    if found.exception:
        raise found.exception
    return found.output.splitlines()


def files(project: Path) -> dict[str, tuple[str, int]]:
    """What stands in the folder: text, and when it was written."""
    folder = project / "models" / "wide_tables"
    return (
        {path.name: (path.read_text(), path.stat().st_mtime_ns) for path in folder.glob("*")} if folder.exists() else {}
    )


def texts(project: Path) -> dict[str, str]:
    return {name: text for name, (text, _) in files(project).items()}


def _stem(name: str) -> str:
    """Without the hash."""
    return re.sub("_[0-9a-f]{8}$", "", name)


@pytest.mark.guarantee("Capture")
def test_a_second_run_writes_nothing_and_a_file_that_a_person_changed_is_never_overwritten(project: Path) -> None:
    assert "wrote models/wide_tables/small_chain.sql" in generate(project, "small")
    before = files(project)
    assert generate(project, "small")[0] == "Nothing to write: the 6 models are as declared"
    assert files(project) == before
    for name in ("small_chain_joined.sql", "wide_tables.yml"):
        path = project / "models" / "wide_tables" / name
        path.write_text(path.read_text() + "-- mine" if name.endswith("sql") else path.read_text() + "# mine\n")
    mine = files(project)
    with pytest.raises(ConfigurationError) as error:
        generate(project, "small", "--changelogs")
    assert [Path(problem.where).name for problem in error.value.problems] == ["wide_tables.yml"]
    with pytest.raises(ConfigurationError) as error:
        generate(project, "small")
    assert [Path(problem.where).name for problem in error.value.problems] == [
        "small_chain_joined.sql",
        "wide_tables.yml",
    ]
    assert "expected nothing, or what was generated. Next: move it away" in str(error.value)
    assert files(project) == mine


def test_a_checkout_with_other_line_ends_is_as_it_was_generated(project: Path) -> None:
    generate(project, "small")
    for path in (project / "models" / "wide_tables").glob("*"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert generate(project, "small")[0].startswith("Nothing to write")


@pytest.mark.guarantee("Capture")
def test_wide_tables_share_what_they_both_need_and_their_order_changes_no_byte(project: Path, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "other", symlinks=True)
    for place, models in ((project, ("orders_360", "customers_360")), (other, ("customers_360", "orders_360"))):
        generate(place, models[0])
        wrote = [line.removeprefix("wrote models/wide_tables/") for line in generate(place, models[1])[:-1]]
        own = [f"{models[1]}_chain.sql", f"{models[1]}_chain_joined.sql"]
        assert sorted(wrote) == sorted([*own, "wide_tables.yml"])
    assert texts(project) == texts(other)
    described = yaml.safe_load(texts(project)["wide_tables.yml"])["models"]
    assert [f"{one['name']}.sql" for one in described] == sorted(
        name for name in texts(project) if name.endswith("sql")
    )


def test_a_changed_declaration_is_written_over_and_what_nothing_needs_any_more_is_named(project: Path) -> None:
    generate(project, "small")
    generate(project, "customers_360")
    before = texts(project)
    manifest = project / "target" / "manifest.json"
    changed = json.loads(manifest.read_text())
    nodes = changed["nodes"]["model.shop.small"]["config"]["meta"]["reverse_etl"]["wide_table"]["nodes"]
    nodes[1]["columns"] = ["name", "code"]
    manifest.write_text(json.dumps(changed))
    said = generate(project, "small")
    gone = [line.split()[4] for line in said if line.startswith("no wide table needs ")]
    assert sorted(_stem(Path(name).stem) for name in gone) == ["region_branch", "region_leaf"]
    assert "wrote models/wide_tables/small_chain.sql" in said
    assert all(texts(project)[name] == text for name, text in before.items() if name.startswith("customers_360"))


def test_a_model_of_that_name_elsewhere_is_refused_before_anything_is_written(project: Path) -> None:
    with pytest.raises(ConfigurationError, match="found the model taken_chain; expected no model of this name"):
        generate(project, "taken")
    assert files(project) == {}


def test_of_a_chain_that_is_no_longer_one_of_changelogs_every_earlier_model_is_named(project: Path) -> None:
    generate(project, "small", "--changelogs")
    said = generate(project, "small")
    gone = [_stem(Path(line.split()[4]).stem) for line in said if line.startswith("no wide table needs ")]
    assert gone == ["country_leaf", "customers_leaf", "region_branch", "region_leaf", "small_chain_changelog"]


@pytest.mark.guarantee("Capture")
def test_what_a_declaration_adds_to_the_last_models_is_theirs_in_dbt_and_their_folder_configures_all(
    project: Path,
) -> None:
    settings = yaml.safe_load((project / "dbt_project.yml").read_text())
    folder = {"+tags": ["wide"], "+schema": "steps", "+meta": {"team": "sales", "reverse_etl": {"publish": "x"}}}
    settings["models"] = {"shop": {"wide_tables": folder}}
    (project / "dbt_project.yml").write_text(yaml.safe_dump(settings))
    generate(project, "added", "--changelogs")
    dbt(project, "parse")
    assert generate(project, "added", "--changelogs")[0].startswith("Nothing to write")
    nodes = json.loads((project / "target" / "manifest.json").read_text())["nodes"].values()
    models = {_stem(one["name"]): one for one in nodes if one["resource_type"] == "model"}
    leaf, log, wide = (models[name]["config"] for name in ("region_leaf", "added_chain_changelog", "added_chain"))
    assert (leaf["tags"], leaf["schema"], leaf["materialized"]) == (["wide"], "steps", "changelog")
    assert (leaf["meta"]["team"], "publish" in leaf["meta"]["reverse_etl"]) == ("sales", False)
    assert (log["tags"], log["schema"]) == (["wide", "nightly"], "steps")
    assert (log["materialized"], log["unique_key"], log["post-hook"][0]["sql"]) == ("changelog", ["id"], REFRESH)
    assert log["meta"]["owner"] == "growth"
    assert log["meta"]["reverse_etl"]["publish"] == "customer_360"
    assert log["meta"]["reverse_etl"]["capture"] == {
        "strategy": "affected_keys",
        "full_compare_every": 24,
        "full_above": 0.5,
    }
    assert "nodes" in log["meta"]["reverse_etl"]["wide_table"]
    assert (wide["tags"], wide["schema"], wide["materialized"]) == (["wide"], "marts", "table")
    assert models["added_chain"]["description"] == "Customers as sales sees them."
    assert models["added_chain"]["columns"]["id"]["description"] == "Of the shop."
    tested = {one["attached_node"] for one in nodes if one["resource_type"] == "test"}
    assert {"model.shop.added_chain", "model.shop.added_chain_changelog"} <= tested


@pytest.mark.guarantee("Capture")
def test_what_a_declaration_adds_changes_the_files_of_no_shared_model(project: Path) -> None:
    generate(project, "small", "--changelogs")
    before = texts(project)
    assert sorted(generate(project, "added", "--changelogs")[:-1]) == [
        "wrote models/wide_tables/added_chain.sql",
        "wrote models/wide_tables/added_chain_changelog.sql",
        "wrote models/wide_tables/wide_tables.yml",
    ]
    assert all(texts(project)[name] == text for name, text in before.items() if name.endswith("sql"))


@pytest.mark.guarantee("Capture")
def test_everything_that_is_wrong_with_what_is_added_is_said_at_once() -> None:
    def problems(chain: Any, wanted: Wanted = CHANGELOGS) -> list[tuple[str, str]]:
        with pytest.raises(ConfigurationError) as error:
            generated(SMALL | {"chain": chain}, wanted)
        prefix = "wide.wide_table.chain"
        return [(problem.where.removeprefix(prefix), problem.found) for problem in error.value.problems]

    entries = {"changelog": {"publish": "x", "config": {}}, "wide": ["tags"], "region": {}}
    assert problems(entries, Wanted()) == [
        (".changelog", "no --changelogs"),
        (".changelog.publish", "no such property"),
        (".wide", "['tags']"),
        (".region", "no model that can be named"),
    ]
    assert problems("wide") == [("", "'wide'")]
    added = {"materialized": "changelog", "unique_key": ["name"], "meta": {"reverse_etl": {"capture": "compare"}}}
    assert problems({"changelog": {"config": added}, "wide": {"config": {"partition_by": ["id"]}}}) == [
        (".changelog.config.unique_key", "['name']"),
        (".changelog.config.meta.reverse_etl.capture", "'compare'"),
    ]


def test_what_a_chain_cannot_be_made_of_is_refused() -> None:
    twice = ORDERS | {"join_on": {"id": "k", "region_id": "k"}, "aggregates": {"n": "count(*)"}}
    templated = REGION | {"where": "name <> '{{ x }}'"}
    with pytest.raises(ConfigurationError) as error:
        generated({"root": "customers", "nodes": [CUSTOMERS, twice, templated]})
    assert [problem.found for problem in error.value.problems] == ["a column twice", "SQL that dbt would read as Jinja"]


def test_everything_that_is_wrong_with_the_wish_is_said_at_once(project: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        generate(project, "small", "--load-columns", "--partition-by", "day")
    assert [problem.where for problem in error.value.problems] == ["--load-columns", "--partition-by"]
    with pytest.raises(ConfigurationError, match="--partition-by: found '=1'"):
        generate(project, "small", "--partition-by", "=1")
    with pytest.raises(ConfigurationError, match="found a column country, which would be added"):
        generate(project, "small", "--partition-by", "Country=1")
    assert files(project) == {}


def test_two_versions_of_a_model_behind_one_name_are_refused() -> None:
    older = table("regions_changelog", version=1)
    with pytest.raises(ConfigurationError, match="found another regions_changelog; expected one thing of each name"):
        generated(SMALL, older=older)


def test_load_columns_refuse_the_names_that_scd2_adds() -> None:
    dated = CUSTOMERS | {"columns": ["name", {"region_id": "Valid_From"}, {"since": "valid_to_snapshot"}]}
    declaration = {"root": "customers", "nodes": [dated]}
    with pytest.raises(ConfigurationError) as error:
        generated(declaration, Wanted(changelogs=True, load_columns=True))
    found = [(problem.where, problem.found) for problem in error.value.problems]
    assert found == [("--load-columns", f"a column {name} of wide") for name in ("valid_from", "valid_to_snapshot")]
    assert generated(declaration, CHANGELOGS)
    added = render("scd2", "log", key="id").partition("from (")[0]
    assert set(re.findall(r" as (\w+)", added)) == OF_SCD2


def keyed(**types: str) -> dict[str, Any]:
    """The tables of SMALL with these types of customers.region_id, regions.id, regions.country and countries.code."""
    return {
        "customers": table("customers", types={"id": "bigint", "region_id": types["region_id"]}),
        "regions_changelog": table("regions_changelog", types={"ID": types["id"], "country": types["country"]}),
        "countries": table("countries", types={"code": types["code"]}),
    }


@pytest.mark.guarantee("Capture")
def test_keys_of_whole_numbers_meet_in_the_wider_type_and_shown_columns_keep_theirs() -> None:
    models = generated(SMALL, **keyed(region_id="bigint", id="int", country="varchar(2)", code="string"))
    leaves = {model.name.partition("_leaf")[0]: model.sql for model in models if "_leaf" in model.name}
    assert "cast(`id` as bigint) as `id`" in leaves["region"]
    assert leaves["region"].endswith("where `id` is not null")
    assert "where" not in leaves["customers"]
    assert not any("cast(" in leaves[name] for name in ("customers", "country"))
    narrow = generated(SMALL, **keyed(region_id="smallint", id="INTEGER", country="string", code="string"))
    root = next(model.sql for model in narrow if model.name.startswith("customers_leaf"))
    assert "    `region_id`,\n    cast(`region_id` as int) as `customers__region_id`" in root


@pytest.mark.guarantee("Capture")
def test_keys_whose_comparison_depends_on_a_cast_are_refused_together() -> None:
    with pytest.raises(ConfigurationError) as error:
        generated(SMALL, **keyed(region_id="string", id="bigint", country="int", code="date"))
    assert [problem.found for problem in error.value.problems] == [
        "joins of customers.region_id of type string, region.id of type bigint",
        "joins of country.code of type date, region.country of type int",
    ]


def test_a_leaf_learns_of_changes_as_its_table_tells_them() -> None:
    logged = table("regions_changelog", config={"materialized": "changelog", "unique_key": "id"})
    fed = ORDERS | {"changes": "cdf", "aggregates": {"n": "count(*)"}}
    timed = COUNTRY | {"changes": "cdf", "where": "at < current_date"}
    declaration = {"root": "customers", "nodes": [CUSTOMERS, LOGGED, fed, timed]}
    models = generated(declaration, CHANGELOGS, regions_changelog=logged)
    told = {
        model.name.partition("_leaf")[0]: model.properties["config"]["meta"]["reverse_etl"].get("capture")
        for model in models
        if "_leaf" in model.name
    }
    assert told == {
        "customers": None,
        "country": None,
        "orders": {"strategy": "cdf", "table": "orders", "key": {"customer_id": "customer_id"}},
        "region": {"strategy": "affected_keys", "recompute": "affected"},
    }
    assert "{{ reverse_etl.current(ref('regions_changelog'), key=['id']) }}" in next(
        model.sql for model in models if model.name.startswith("region_leaf")
    )
