"""Which declared wide table a name means, where a model has versions or another package one of its name."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.wide.chain import chain
from dbt_reverse_etl.wide.inputs import Inputs
from dbt_reverse_etl.wide.picture import pictures
from dbt_reverse_etl.wide.trees import declared_plan, wide_table, wide_tables
from tests.support.wide.chains import PLAIN, table
from tests.support.wide.declarations import CUSTOMERS


def declared(unique_id: str, name: str, version: Any = None, key: str = "id") -> dict[str, Any]:
    wide = {"root": "customers", "nodes": [CUSTOMERS | {"key": key}]}
    about = {"unique_id": unique_id, "package_name": unique_id.split(".")[1], "version": version}
    depends = {"depends_on": {"nodes": ["model.shop.customers"]}}
    return {unique_id: table(name, **about, **depends, config={"meta": {"reverse_etl": {"wide_table": wide}}})}


MANIFEST: dict[str, Any] = {
    "metadata": {"project_name": "shop"},
    "sources": {},
    "nodes": declared("model.shop.wide.v1", "wide", 1, "first")
    | declared("model.shop.wide.v2", "wide", 2, "second")
    | declared("model.shop.both", "both", None, "third")
    | declared("model.other.both", "both", None, "fourth")
    | declared("model.shop.alone.v3", "alone", 3, "fifth")
    | {"model.shop.customers": table("customers")},
}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("wide.v1", "first"),
        ("wide.v2", "second"),
        ("shop.wide.v1", "first"),
        ("shop.both", "third"),
        ("other.both", "fourth"),
        ("alone", "fifth"),
        ("alone.v3", "fifth"),
    ],
)
def test_a_version_and_a_package_are_named_as_operations_name_them(name: str, key: str) -> None:
    assert wide_table(MANIFEST, name).key == (key,)


@pytest.mark.parametrize(("name", "several"), [("wide", "wide.v1 and wide.v2"), ("both", "other.both and shop.both")])
def test_a_name_that_several_have_is_refused_with_theirs(name: str, several: str) -> None:
    words = (
        f"{name}: found the name of {several}; expected one model with a declared wide table. Next: name one of them"
    )
    with pytest.raises(ConfigurationError, match=words):
        wide_table(MANIFEST, name)


def test_all_are_listed_by_names_that_can_be_given() -> None:
    listed = {wide.model: wide for wide in wide_tables(MANIFEST)}
    assert sorted(listed) == ["alone.v3", "other.both", "shop.both", "wide.v1", "wide.v2"]
    assert all(wide_table(MANIFEST, name) == wide for name, wide in listed.items())
    assert set(pictures(MANIFEST, {"model.shop.wide.v1", "model.other.both"})) == {"wide.v1", "other.both"}
    with pytest.raises(ConfigurationError, match=r"expected one of alone\.v3, other\.both, shop\.both"):
        wide_table(MANIFEST, "none")


def test_no_two_of_them_write_one_chain() -> None:
    def last(name: str) -> str:
        node, plan = declared_plan(MANIFEST, name)
        return chain(Inputs(MANIFEST, node, plan), plan, PLAIN)[-1].name

    names = {name: last(name) for name in ("wide.v1", "wide.v2", "shop.both", "other.both")}
    assert names == {
        "wide.v1": "wide_v1_chain",
        "wide.v2": "wide_v2_chain",
        "shop.both": "both_chain",
        "other.both": "other_both_chain",
    }


@pytest.mark.parametrize(
    ("name", "other", "clashing"),
    [
        ("wide.v2", "wide_v2", declared("model.shop.wide_v2", "wide_v2")),
        ("other.both", "Other_both", declared("model.shop.Other_both", "Other_both")),
    ],
    ids=["version", "package"],
)
def test_a_chain_whose_name_another_wide_table_has_is_refused_from_both_sides(
    name: str, other: str, clashing: dict[str, Any]
) -> None:
    manifest = MANIFEST | {"nodes": MANIFEST["nodes"] | clashing}
    for asked, rival in [(name, other), (other, name)]:
        node, plan = declared_plan(manifest, asked)
        words = f"_chain, which {rival} would write too; expected a chain of its own .* Next: rename one"
        with pytest.raises(ConfigurationError, match=words):
            Inputs(manifest, node, plan)
    node, plan = declared_plan(manifest, "wide.v1")
    assert Inputs(manifest, node, plan).model == "wide_v1"
