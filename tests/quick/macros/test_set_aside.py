"""What is set aside: a changelog whose files are not where the next run makes the new one; by adopt, a table that is no changelog."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros


class Relation(str):
    identifier, type = "log", "table"

    def incorporate(self, path: dict[str, str]) -> str:
        return path["identifier"]


def set_aside(location: str, **config: Any) -> str:
    """The name of the table afterwards."""
    node = SimpleNamespace(database="main", schema="shop", alias="log", relation_name="main.shop.log", config=config)
    adapter = SimpleNamespace(
        get_relation=lambda **_: Relation("main.shop.log"),
        get_catalog_integration={"lake": SimpleNamespace(external_volume="s3://lake/catalog")}.__getitem__,
        rename_relation=lambda _, aside: aside,
    )
    macros = Macros(lambda _: [{"location": location}], adapter=adapter)
    return str(macros._set_aside(node, "__reset_"))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("location", "config"),
    [
        ("s3://lake/here/log", {"location_root": "s3://lake/here/"}),
        ("s3://lake/here/main/shop/log", {"location_root": "s3://lake/here", "include_full_name_in_path": True}),
        ("s3://lake/catalog/log", {"catalog_name": "Lake"}),
        ("s3://lake/catalog/main/shop/log/", {"catalog_name": "lake", "include_full_name_in_path": True}),
    ],
)
def test_no_table_is_moved_whose_files_are_where_dbt_databricks_makes_the_new_one(
    location: str, config: dict[str, Any]
) -> None:
    with pytest.raises(CompilationError, match="found its files below location_root"):
        set_aside(location, **config)
    assert set_aside(location, **config | {"location_root": "s3://lake/elsewhere"}).startswith("log__reset_2024")


def test_a_table_that_the_catalog_places_is_moved() -> None:
    assert set_aside("s3://managed/6f1c/log").startswith("log__reset_2024")


def adopted(columns: list[str]) -> str:
    """What `adopt` of a model logs where the table of its name has these columns."""
    node = SimpleNamespace(
        unique_id="model.shop.log", name="log", package_name="shop", resource_type="model", relation_name="main.shop.log",
        database="main", schema="shop", alias="log", config=SimpleNamespace(materialized="changelog", get=lambda _: None),
    )  # fmt: skip
    adapter = SimpleNamespace(get_relation=lambda **_: Relation("main.shop.log"), rename_relation=lambda *_: None)
    described = [{"col_name": name, "data_type": "string"} for name in columns]
    macros = Macros(lambda _: described, adapter=adapter, graph=SimpleNamespace(nodes={"model.shop.log": node}))
    macros.adopt(model="log")
    return macros.logged[0]


@pytest.mark.guarantee("Capture")
def test_adopt_of_a_model_leaves_a_changelog_where_it_is() -> None:
    own = [column["name"] for column in Macros()._own_columns()]
    with pytest.raises(CompilationError, match=r"adopt log: found a changelog; expected .* Next: .*\{sync: NAME\}"):
        adopted([*own, "id"])
    assert "is now log__adopted_2024" in adopted([*own[1:], "id"])
