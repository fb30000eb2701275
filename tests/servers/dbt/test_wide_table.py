"""A wide table in a dbt project, compiled by dbt itself: on what it depends, and the errors that its author sees."""

from __future__ import annotations

from functools import cache

import pytest
import yaml
from click.testing import CliRunner

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.sql import render, value_of
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.wide.picture import pictures
from tests.support.dbt.artifacts import ROOT, Json, Project
from tests.support.wide.declarations import HINTS, NODES, TABLES

WIDE = {"root": "customers", "nodes": NODES}


SHOPS = "-- {{ ref('shops', v=1) }} {{ ref('shops', v=2) }}\n"
VERSIONED = {"name": "z", "table": "shops", "key": "id", "join_on": {"region_id": "id"}}
INDEXED = {"name": "y", "table": "orders", "parent": "customers", "changes": "changelog", "reverse_index": "by_order"}
BROKEN = {"root": "x", "nodes": [*NODES, NODES[0], INDEXED, VERSIONED]}
STORED = {
    "root": "codes",
    "nodes": [
        {"name": "codes", "table": "codes", "key": "id", "columns": ["code"]},
        {"name": "old", "table": "orders_snapshot", "key": "id", "join": "full", "columns": ["dbt_valid_from"]},
    ],
}
SNAPSHOT = {"name": "orders_snapshot", "relation": "ref('orders')"}
CHECKED = {"config": {"unique_key": "id", "strategy": "check", "check_cols": "all"}}


@cache
def project() -> Project:
    """This repository is its package."""
    body = f"{{%- set wide = fromyaml('''\n{yaml.safe_dump(WIDE)}\n''') -%}}\n"
    models = {
        "in_the_model": f"{body}{{{{ reverse_etl.wide_table(wide) }}}}",
        "in_yaml": HINTS + "{{ reverse_etl.wide_table() }}",
        "stored": f"{{{{ reverse_etl.wide_table({STORED}) }}}}",
        "broken": HINTS.partition("-- depends_on: {{ source")[0] + SHOPS + "{{ reverse_etl.wide_table() }}",
    }
    declared = {"in_yaml": WIDE, "broken": BROKEN}
    described = [
        {"name": name, "config": {"meta": {"reverse_etl": {"wide_table": wide}}}} for name, wide in declared.items()
    ]
    described.append({"name": "shops", "versions": [{"v": 1}, {"v": 2}]})
    sources = [{"name": "app", "schema": "app", "tables": [{"name": "billing"}]}]
    tables = dict.fromkeys([*TABLES, "shops_v1", "shops_v2"], "select 1 as id")
    found = Project({"models": described, "sources": sources}, {**tables, **models})
    for folder in ("dbt_packages", "seeds", "snapshots"):
        (found.path / folder).mkdir()
    (found.path / "seeds" / "codes.csv").write_text("id,code\n1,a\n")
    (found.path / "snapshots" / "snapshots.yml").write_text(yaml.safe_dump({"snapshots": [SNAPSHOT | CHECKED]}))
    (found.path / "dbt_packages" / "reverse_etl").symlink_to(ROOT)
    return found


COMPILE = ("compile", "--no-introspect", "--no-populate-cache", "--target", "prod", "--select")


@cache
def compiled() -> Project:
    """dbt ends a compile with the first model that fails, so those are left out."""
    project().dbt(*COMPILE, "in_the_model", "in_yaml", "stored")
    return project()


def sql(model: str) -> str:
    return (compiled().path / "target/compiled/shop/models" / f"{model}.sql").read_text().strip()


def manifest() -> Json:
    return compiled().artifact("manifest.json")


def test_a_declaration_in_the_model_or_in_yaml_gives_one_sql_and_dbt_knows_its_inputs() -> None:
    nodes = manifest()["nodes"]
    inputs = {*(f"model.shop.{name}" for name in TABLES), "source.shop.app.billing"}
    for name in ("in_the_model", "in_yaml"):
        assert set(nodes[f"model.shop.{name}"]["depends_on"]["nodes"]) == inputs
    in_the_model = sql("in_the_model")
    assert sql("in_yaml").splitlines()[len(HINTS.splitlines()) :] == in_the_model.splitlines()
    plan = value_of("_wide_plan", WIDE)
    relations = {name: _relation(nodes, node["table"]) for name, node in plan["nodes"].items()}
    assert in_the_model == render("_wide_query", plan, relations)


def _relation(nodes: Json, table: str) -> str:
    return "app.billing" if table == "app.billing" else str(nodes[f"model.shop.{table}"]["relation_name"])


def test_a_seed_and_a_snapshot_are_tables_like_any_other() -> None:
    nodes = manifest()["nodes"]
    for table in ("seed.shop.codes", "snapshot.shop.orders_snapshot"):
        assert f"select * from {nodes[table]['relation_name']}" in sql("stored")


@pytest.mark.guarantee("Capture")
def test_everything_that_is_wrong_is_one_error_when_the_model_is_compiled() -> None:
    with pytest.raises(AssertionError) as error:
        project().dbt(*COMPILE, "broken")
    for words in [
        "wide_table.root: found 'x'",
        "found customers twice",
        "wide_table.nodes.y.key: not found",
        "wide_table.nodes.y.changes: found changelog, but orders is none",
        "wide_table.nodes.y.reverse_index: found customers, to whose keys it would lead, as no changelog",
        "found app.billing, by_order, on which the model does not depend",
        "wide_table.nodes: found shops as the name of model.shop.shops.v1, model.shop.shops.v2; expected one thing of that name",
        "or add to the model: -- depends_on: {{ source('app', 'billing') }} -- depends_on: {{ ref('by_order') }}",
    ]:
        assert words in str(error.value)


def explained(*arguments: str) -> str:
    found = CliRunner().invoke(
        cli, ["wide-table", "explain", *arguments, "--project-dir", str(compiled().path)], standalone_mode=False
    )
    if found.exception:
        raise found.exception
    return found.output


def test_explain_prints_the_join_tree_and_draws_it() -> None:
    picture = compiled().path / "tree.svg"
    assert explained("in_yaml", "--svg", str(picture)).splitlines() == [
        "in_yaml: one row for each id; 4 joins",
        "customers (customers): the root",
        "├─ 1. full join billing (app.billing) on billing.customer_id = customers.id: one row for each customer_id",
        "├─ 2. left join orders (orders) on orders.customer_id = customers.id: many rows, aggregated",
        "└─ 3. left join region (regions) on region.id = customers.region_id: one row for each id, where not gone",
        "   └─ 4. inner join country (countries) on country.code = region.country: one row for each code",
        "",
        "customers  name, region_id",
        "billing    plan",
        "orders     order_count = count(*)",
        "region     region_name = name",
        "country    country = name",
        f"Drawn: {picture}",
    ]
    drawn = picture.read_text()
    assert drawn == pictures(manifest())["in_yaml"]
    for words in ["full id = customer_id 1", "left id = customer_id n", "inner country = code 1", "key code"]:
        assert f">{words}</text>" in drawn


def test_explain_of_a_model_without_a_declaration_names_those_that_have_one() -> None:
    with pytest.raises(ConfigurationError, match="expected one of broken, in_yaml"):
        explained("in_the_model")


def test_explain_of_a_wrong_declaration_says_all_that_is_wrong_and_pictures_leave_it_out() -> None:
    with pytest.raises(ConfigurationError) as error:
        explained("broken")
    assert [problem.where for problem in error.value.problems] == [
        "models/broken.sql: broken.wide_table.nodes",
        "models/broken.sql: broken.wide_table.nodes.y.key",
        "models/broken.sql: broken.wide_table.root",
    ]
    assert set(pictures(manifest())) == {"in_yaml"}
