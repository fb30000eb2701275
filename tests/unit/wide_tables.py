"""Wide tables on DuckDB: the package's own SQL, and random declarations with random histories of their tables."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from dbt_reverse_etl.sql import render, value_of

COLUMNS = ("h", "a", "b", "f", "g", "v")  # every table has them; h tells apart the histories that share a database
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])
HISTORIES = 40
VALUES = range(4)

Row = tuple[int | None, ...]
Key = tuple[int | None, ...]


def on_duckdb(sql: str) -> str:
    """The macros keep to SQL that both engines understand; only names are quoted otherwise."""
    return sql.replace("`", '"')


class Declaration:
    """A random wide table: its declaration, and for each of its tables the columns that are unique there."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.keys = rng, {"t0": ["h", "a", "b"][: rng.choice([2, 2, 3])]}
        root = {"name": "n0", "table": "t0", "key": self.keys["t0"], "columns": ["f", "v"], "prefix": "n0_"}
        self.nodes: list[dict[str, Any]] = [root]
        for number in range(1, rng.randint(2, 6)):
            rng.choice([self._shares_the_key, self._dimension, self._dimension, self._many])(f"n{number}")
        rng.shuffle(self.nodes)
        self.plan = value_of("_wide_plan", {"root": "n0", "nodes": self.nodes})
        assert not self.plan["problems"], self.plan["problems"]

    def _add(self, name: str, **node: Any) -> None:
        if self.rng.random() < 0.25:
            node["where"] = "v <> 2"
        if self.rng.random() < 0.2 and node.get("join") != "full":
            node["join"] = "inner"
        self.nodes.append({"name": name, "priority": self.rng.randint(0, 2), **node})

    def _shares_the_key(self, name: str) -> None:
        own = ["h", *self.rng.sample(["a", "b", "f", "g"], len(self.keys["t0"]) - 1)]
        self.keys[f"t{name}"] = own
        key = dict(zip(self.keys["t0"], own, strict=True))
        join = self.rng.choice(["full", "full", "left"])
        if self.rng.random() < 0.3:
            self.keys[f"t{name}"] = ["h", "a", "b"]
            self._add(name, table=f"t{name}", cardinality="many", join=join, join_on=key, aggregates=self._sums(name))
        else:
            columns = {"table": f"t{name}", "key": own, "columns": ["g", "v"], "prefix": f"{name}_"}
            self._add(name, join=join, join_on=key, **columns)

    def _dimension(self, name: str) -> None:
        parent = self._parent()
        others = [one for one in self.nodes if one.get("cardinality") != "many" and one["key"] == ["h", "a"]]
        table = self.rng.choice(others)["table"] if others and self.rng.random() < 0.3 else f"t{name}"
        width = 1 if table != f"t{name}" or self.rng.random() < 0.8 else 2
        key = self.keys.setdefault(table, ["h", "a", "b"][: width + 1])
        theirs = self.rng.sample(["a", "b", "f", "f", "g", "g"], width * 3)[::3][:width]
        if len(set(theirs)) < width:
            theirs = ["f", "g"]
        pairs = dict(zip(["h", *theirs], key, strict=True))
        columns = {"key": key, "columns": ["v"], "prefix": f"{name}_"}
        self._add(name, table=table, parent=parent["name"], join_on=pairs, **columns)

    def _many(self, name: str) -> None:
        parent = self._parent()
        self.keys[f"t{name}"] = ["h", "a", "b"]
        pairs = {"h": "h", self.rng.choice("abfg"): self.rng.choice("afg")}
        table = {"table": f"t{name}", "parent": parent["name"]}
        self._add(name, **table, join_on=pairs, cardinality="many", aggregates=self._sums(name))

    def _parent(self) -> dict[str, Any]:
        return self.rng.choice([node for node in self.nodes if node.get("cardinality") != "many"])

    @staticmethod
    def _sums(name: str) -> dict[str, str]:
        return {f"{name}_count": "count(*)", f"{name}_sum": "sum(v)"}


class World:
    """The tables of a declaration through their histories: the rows as they are, and the images of those that changed."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration, self.rng = declaration, declaration.rng
        self.tables: dict[str, dict[Key, Row]] = {name: {} for name in declaration.keys}
        plan = declaration.plan
        relations = {name: node["table"] for name, node in plan["nodes"].items()}
        changes = {name: f"changes_of_{node['table']}" for name, node in plan["nodes"].items()}
        self.wide_sql = on_duckdb(render("_wide_query", plan, relations))
        self.affected_sql = on_duckdb(render("_affected_keys", plan, relations, changes))
        self._key = [column["name"] for column in plan["columns"]][: len(plan["key"])]
        self._duck = duckdb.connect(config={"threads": 1})

    def step(self, images: tuple[str, ...] = ("before", "after")) -> None:
        """Some changes in some tables, a row now and then several times; `images`: those that a run gets to see."""
        for name, rows in self.tables.items():
            seen = [image for image in self._changes(name, rows) if image[0] in images]
            self._load(name, list(rows.values()))
            self._load(f"changes_of_{name}", [row for _, row in seen])

    def _changes(self, table: str, rows: dict[Key, Row]) -> Iterator[tuple[str, Row]]:
        own = self.declaration.keys[table]
        for history in range(HISTORIES):
            for _ in range(self.rng.choice([0, 0, 1, 1, 2, 5])):
                values = [
                    self.rng.choice(VALUES) if name in own or self.rng.random() < 0.8 else None for name in COLUMNS
                ]
                row = (history, *values[1:])
                key = tuple(row[COLUMNS.index(name)] for name in own)
                if key in rows:
                    yield "before", rows[key]
                if key in rows and self.rng.random() < 0.4:
                    del rows[key]
                else:
                    rows[key] = row
                    yield "after", row

    def _load(self, name: str, rows: list[Row]) -> None:
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)] if rows else []
        self._duck.register(name, pa.table(columns, SCHEMA) if rows else SCHEMA.empty_table())

    def wide(self) -> dict[Key, Row]:
        """The full recompute: its rows by their key, of which each stands once."""
        rows = self._duck.execute(self.wide_sql).fetchall()
        by_key = {row[: len(self._key)]: row for row in rows}
        assert len(by_key) == len(rows), "a join multiplied rows"
        return by_key

    def affected(self) -> set[Key]:
        """The keys that the changes of the last step lead to."""
        return set(self._duck.execute(self.affected_sql).fetchall())

    def close(self) -> None:
        self._duck.close()


def misses(seed: int, runs: int, images: tuple[str, ...] = ("before", "after")) -> Mapping[int, Any]:
    """Keys whose row is wrong after an incremental run, by run; each history begins with empty tables."""
    world = World(Declaration(random.Random(seed)))
    kept: dict[Key, Row] = {}
    wrong: dict[int, Any] = {}
    for run in range(runs):
        world.step(images)
        now, affected = world.wide(), world.affected()
        for key in affected:
            kept.pop(key, None)
            if key in now:
                kept[key] = now[key]
        differ = {key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key)}
        if differ:
            wrong[run] = (sorted(differ)[:3], world.declaration.nodes)
            kept = dict(now)
    world.close()
    return wrong
