"""Rows that prune removes leave the files, too: deletion vectors only mark them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros

VECTORS = "delta.enableDeletionVectors"
REORG = "reorg table shop.log apply (purge)"


def created(**properties: str) -> dict[str, str]:
    """The properties of a new changelog whose model has these."""
    config = SimpleNamespace(get={"tblproperties": properties}.get)
    macros = Macros(config=config, location_clause=str, comment_clause=str)
    macros._create_changelog("shop.log", [{"name": "id", "type": "bigint"}], SimpleNamespace(key=["id"]))
    return dict(re.findall(r"'(delta\.\w+)' = '([^']*)'", macros.run[-1].partition("tblproperties")[2]))


@pytest.mark.guarantee("Capture")
def test_a_new_changelog_has_no_deletion_vectors_whatever_the_workspace_has_unless_its_model_wants_them() -> None:
    assert created()[VECTORS] == "false"
    assert created(**{VECTORS: "true"})[VECTORS] == "true"


class Table(str):
    type = "table"


def maintained(properties: dict[str, str], **arguments: Any) -> list[str]:
    """What `maintain` does to a table with these properties, in order."""

    def answer(sql: str) -> list[Mapping[str, Any]]:
        if sql.startswith("show tblproperties"):
            return [{"key": name, "value": value} for name, value in properties.items()]
        return [{"numFiles": 3, "clusteringColumns": '["_snapshot_id"]', "kept": True}]

    node = SimpleNamespace(
        **{"name": "log", "alias": "log", "schema": "shop", "database": "", "unique_id": "model.shop.log"},
        resource_type="model",
        package_name="shop",
        config=SimpleNamespace(materialized="table"),
    )
    ledger = SimpleNamespace(**{**vars(node), "unique_id": "model.reverse_etl.reverse_etl_ledger", "name": "ledger"})
    ledger.config = {"materialized": "ledger"}
    macros = Macros(
        answer,
        graph=SimpleNamespace(nodes={one.unique_id: one for one in (node, ledger)}),
        adapter=SimpleNamespace(get_relation=lambda **_: Table("shop.log")),
        flags=SimpleNamespace(WHICH="run-operation"),
    )
    macros.maintain("log", **arguments)
    return [sql for sql in macros.run if not sql.startswith(("describe", "show", "select"))]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", [VECTORS, "delta.feature.deletionVectors"])
def test_maintain_writes_files_with_rows_that_are_only_marked_as_deleted_before_it_deletes_old_files(name: str) -> None:
    value = "true" if name == VECTORS else "supported"
    assert maintained({name: value}) == [REORG, "optimize shop.log", "vacuum shop.log"]
    assert maintained({name: value}, vacuum=False) == [REORG, "optimize shop.log"]


def test_maintain_of_a_table_without_deletion_vectors_rewrites_no_file() -> None:
    assert maintained({}) == maintained({VECTORS: "false"}) == ["optimize shop.log", "vacuum shop.log"]
