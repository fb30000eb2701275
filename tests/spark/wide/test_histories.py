"""Random wide tables through random histories on Spark: after every run the changelog holds the rows of a full join, computed by another engine."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.dbt.project import Project
from tests.support.effort import scaled
from tests.support.wide.tables import COLUMNS, HISTORIES, SCHEMA, Declaration, World

SEEDS = (15663, 39834)
RUNS = min(3, 1 + scaled(2))


class Lake:
    """The tables of a world as Delta tables, and the wide table over them, whose root is a changelog of its own."""

    def __init__(self, project: Project, world: World) -> None:
        self.project, self.world = project, world
        self.key = world.declaration.plan["key"]
        columns = ", ".join(f"{name} bigint" for name in COLUMNS)
        for name in world.tables:
            feed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
            project.rows(f"create table {{s}}.{name} ({columns}) using delta {feed}")
        tables = [{"name": name} for name in world.tables]
        project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
        project.changelog("root", "select * from {{ source('app', 't0') }}", world.declaration.keys["t0"])
        reads = "".join(f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in world.tables)
        project.changelog(
            "wide",
            f"-- depends_on: {{{{ ref('root') }}}}\n{reads}{{{{ reverse_etl.wide_table() }}}}",
            self.key,
            settings={
                "wide_table": {"root": "n0", "nodes": [self._node(one) for one in world.declaration.nodes]},
                "capture": {"strategy": "affected_keys", "full_above": 1},
            },
        )

    @staticmethod
    def _node(node: dict[str, Any]) -> dict[str, Any]:
        if node["table"] == "t0":
            return {**node, "table": "root"}
        return {**node, "table": f"app.{node['table']}", "changes": "cdf"}

    def load(self) -> None:
        """Only rows that changed are written."""
        for name, rows in self.world.tables.items():
            columns = [pa.array(column, pa.int64()) for column in zip(*rows.values(), strict=True)]
            table = pa.table(columns, SCHEMA) if columns else SCHEMA.empty_table()
            self.project.spark.createDataFrame(table).createOrReplaceTempView("now")
            same = " and ".join(f"t.{key} = n.{key}" for key in self.world.declaration.keys[name])
            differs = " or ".join(f"not t.{column} <=> n.{column}" for column in COLUMNS)
            self.project.rows(
                f"merge into {{s}}.{name} t using now n on {same} when matched and ({differs}) then update set * "
                "when not matched then insert * when not matched by source then delete"
            )

    def rows(self) -> set[tuple[Any, ...]]:
        """What the changes of the changelog lead to."""
        names = [column["name"] for column in self.world.declaration.plan["columns"]]
        newest = (
            f"select *, row_number() over (partition by {', '.join(self.key)} order by _snapshot_id desc) as n "
            "from {s}.wide where _change in ('insert', 'update_postimage', 'delete')"
        )
        found = self.project.rows(f"select {', '.join(names)} from ({newest}) where n = 1 and _change <> 'delete'")
        assert len(found) > HISTORIES, "or the histories would prove nothing"
        return {tuple(row) for row in found}


def test_the_wide_tables_have_every_kind_of_join() -> None:
    declared = [Declaration(random.Random(seed)).nodes for seed in SEEDS]
    nodes = [node for tree in declared for node in tree]
    assert {node.get("join", "left") for node in nodes} == {"left", "inner", "full"}
    assert any(node.get("cardinality") == "many" for node in nodes)
    assert any(node["table"] == "t0" and node["name"] != "n0" for node in nodes), "the root's table as a dimension"
    tables = [[node["table"] for node in tree if node["table"] != "t0"] for tree in declared]
    assert any(len({*of_tree}) < len(of_tree) for of_tree in tables), "another table twice"
    for tree in declared:
        dimensions = {node["name"] for node in tree if "parent" in node}
        assert any(node.get("parent") in dimensions for node in tree), "a dimension of a dimension"


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("seed", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.full)])
def test_incremental_equals_a_full_join_after_every_run_of_dozens_of_histories(project: Project, seed: int) -> None:
    world = World(Declaration(random.Random(seed)))
    lake = Lake(project, world)
    for run in range(RUNS):
        for _ in range(1 if run else 10):  # fewer keys may be affected than there are rows
            world.step()
        lake.load()
        result = project.dbt("run", "--select", "root", "wide")
        assert result.success, result.text
        assert "full compare" not in result.messages["wide"]
        assert lake.rows() == set(world.wide().values()), run
    world.close()
