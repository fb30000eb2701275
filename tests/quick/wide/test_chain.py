"""A wide table as a chain of models: the same rows as its one query, and the same models whatever the order of its declaration."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.sql import value_of
from dbt_reverse_etl.wide.chain import Wanted
from tests.support.effort import scaled
from tests.support.wide.chains import CHANGELOGS, PLAIN, create, generated, table
from tests.support.wide.declarations import COUNTRY, CUSTOMERS, ORDERS, REGION
from tests.support.wide.tables import Declaration, World

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=scaled(25), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.guarantee("Capture")
@MANY
@given(st.sampled_from([PLAIN, CHANGELOGS]), SEEDS)
def test_a_chain_gives_the_rows_of_the_one_query_for_random_join_trees_and_histories(wanted: Wanted, seed: int) -> None:
    world = World(Declaration(random.Random(seed)))
    models = generated({"root": "n0", "nodes": world.declaration.nodes}, wanted)
    for _ in range(2):
        world.step()
        create(world, models)
        assert sorted(world.query("select * from wide_chain"), key=str) == sorted(world.wide().values(), key=str)
    world.close()


@pytest.mark.guarantee("Capture")
@MANY
@given(seed=SEEDS)
def test_the_nodes_in_any_order_give_the_same_chain(seed: int) -> None:
    nodes = Declaration(random.Random(seed)).nodes
    chains = [
        generated({"root": "n0", "nodes": order}, CHANGELOGS) for order in (nodes, nodes[::-1], sorted(nodes, key=str))
    ]
    assert chains[0] == chains[1] == chains[2]
    settings = [model.properties["config"]["meta"]["reverse_etl"] for model in chains[0][:-1]]
    declared = [one["wide_table"] for one in settings if "wide_table" in one]
    assert not any(value_of("_wide_plan", one)["problems"] for one in declared)
    assert declared or len(nodes) == 1


def test_a_comment_at_the_end_of_a_partition_ends_with_its_line() -> None:
    wanted = Wanted(partition_by="day=date(at) -- of the order")
    wide = generated({"root": "customers", "nodes": [CUSTOMERS]}, wanted)[-1]
    assert "date(at) -- of the order\n as `day`\nfrom" in wide.sql


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (REGION | {"where": "name <> '{{ x }}'"}, "SQL"),
        (ORDERS | {"aggregates": {"n": "max('{#')"}}, "SQL"),
        (ORDERS | {"aggregates": {"x{{ 1 }}": "count(*)"}}, "a name"),
        (REGION | {"columns": ["cost {#}"]}, "a name"),
        (REGION | {"columns": {"cost": "{% x"}}, "a name"),
        (REGION | {"key": "id{{", "join_on": {"region_id": "id{{"}}, "a name"),
        (REGION | {"join_on": {"region_id{{": "id"}}, "a name"),
    ],
)
def test_what_dbt_would_read_as_jinja_is_in_no_generated_model(node: dict[str, Any], kind: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        generated({"root": "customers", "nodes": [CUSTOMERS, node]})
    (problem,) = error.value.problems
    assert (problem.found, problem.expected) == (
        f"{kind} that dbt would read as Jinja",
        f"{kind} without {{{{, {{% and {{#",
    )


@pytest.mark.guarantee("Capture")
def test_a_leaf_whose_functions_may_read_other_tables_compares_everything() -> None:
    fed = [one | {"changes": "cdf"} for one in (ORDERS | {"aggregates": {"n": "sum(rate(day))"}}, COUNTRY)]
    nodes = [CUSTOMERS, REGION | {"table": "logged", "where": "known(id)"}, *fed]
    logged = table("logged", config={"materialized": "changelog", "unique_key": "id"})

    def captures(capture: dict[str, str] | None) -> dict[str, str | None]:
        models = generated({"root": "customers", "nodes": nodes}, CHANGELOGS, capture=capture, logged=logged)
        leaves = {model.name.partition("_leaf_")[0]: model for model in models if "_leaf_" in model.name}
        settings = {name: leaf.properties["config"]["meta"]["reverse_etl"] for name, leaf in leaves.items()}
        return {name: one.get("capture", {}).get("strategy") for name, one in settings.items()}

    all_of_them = {"customers": None, "region": "affected_keys", "orders": "cdf", "country": "cdf"}
    assert captures(None) == captures({"strategy": "affected_keys", "recompute": "affected"}) == all_of_them
    declared = captures({"strategy": "affected_keys", "recompute": "full"})
    assert declared == all_of_them | {"region": None, "orders": None}


def test_a_model_has_letters_of_ascii_alone_because_spark_takes_no_others_without_quotes() -> None:
    nodes = [CUSTOMERS, REGION | {"name": "größe"}, ORDERS | {"name": "a b", "aggregates": {"n": "count(*)"}}]
    names = [model.name for model in generated({"root": "customers", "nodes": nodes})]
    assert {name.partition("_leaf_")[0] for name in names if "_leaf_" in name} == {"customers", "gr__e", "a_b"}


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("shown", [{"code": "CODE"}, {"CODE": "code"}, {"code": "code"}, {"size": "Code"}])
def test_a_key_that_is_shown_in_another_case_is_no_column_twice(shown: dict[str, str]) -> None:
    region = REGION | {"key": "code", "join_on": {"region_id": "code"}, "prefix": "", "columns": shown}
    models = generated({"root": "customers", "nodes": [CUSTOMERS, region]})
    leaf = next(model.sql for model in models if model.name.startswith("region_leaf"))
    selected = leaf.partition("\nfrom ")[0].removeprefix("select").lower().split(",")
    names = [one.split(" as ")[-1].strip() for one in selected]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "names",
    [
        ("numeric(9,2)", "DEC"),
        ("real", "float"),
        ("bool", "boolean"),
        ("timestamp_ltz", "timestamp"),
        ("character(3)", "text"),
    ],
)
def test_a_type_by_another_of_its_names_is_the_same_type(names: tuple[str, str]) -> None:
    tables = {
        "customers": table("customers", types={"region_id": names[0]}),
        "regions": table("regions", types={"id": names[1]}),
    }
    assert generated({"root": "customers", "nodes": [CUSTOMERS, REGION]}, **tables)
