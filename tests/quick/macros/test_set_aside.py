"""A changelog that is set aside must not keep its files where the next run makes the new one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros


class Relation(str):
    identifier = "log"

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
