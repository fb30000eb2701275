"""Wide tables on DuckDB: the package's own SQL, and random declarations with random histories of their tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from dbt_reverse_etl.base.sql import render, value_of

COLUMNS = ("h", "a", "b", "f", "g", "v")  # every table has them; h tells apart the histories that share a database
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])
HISTORIES = 40
VALUES = range(4)
WHERE = ("v <> 2", "v <> 2 or A = 1", "V <> 2 -- no twos", "f = 0 or v <> 2 -- no twos")

Row = tuple[int | None, ...]
Key = tuple[int | None, ...]


def on_duckdb(sql: str) -> str:
    """The macros keep to SQL that both engines understand; only names are quoted otherwise, and errors raised."""
    return sql.replace("`", '"').replace("raise_error(", "error(")


class Declaration:
    """A random wide table: its declaration, and for each of its tables the columns that are unique there."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.keys = rng, {"t0": ["h", "a", "b"][: rng.choice([2, 2, 3])]}
        root = {"name": "n0", "table": "t0", "key": self.keys["t0"], "columns": ["f", "v"], "prefix": "n0_"}
        self.nodes: list[dict[str, Any]] = [root]
        for number in range(1, rng.randint(2, 6)):
            rng.choice([self._shares_the_key, self._dimension, self._dimension, self._many])(f"n{number}")
        rng.shuffle(self.nodes)
        self._write_as_people_do(random.Random(repr(self.nodes)))
        self.plan = value_of("_wide_plan", {"root": "n0", "nodes": self.nodes})
        assert not self.plan["problems"], self.plan["problems"]

    def _write_as_people_do(self, rng: random.Random) -> None:
        """Names in any case of their letters, and SQL with an `or` or a comment at its end; a random source of its own keeps the trees."""

        def cased(name: str) -> str:
            return rng.choice([name, name, name.upper()])

        for node in self.nodes:
            for option in ("key", "columns"):
                if option in node:
                    node[option] = [cased(name) for name in node[option]]
            if "join_on" in node:
                node["join_on"] = {cased(theirs): cased(own) for theirs, own in node["join_on"].items()}
            if "where" in node:
                node["where"] = rng.choice(WHERE)
            for name in node.get("aggregates", {}):
                node["aggregates"][name] += rng.choice(["", " -- of all"])

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
        self._relations, self._changes_of = relations, changes
        self._logs: dict[str, list[Row]] = {name: [] for name in declaration.keys}
        self._indexes: set[str] = set()
        self._steps = 0
        self._held: dict[str, list[tuple[str, Row]]] = {}
        self._duck = duckdb.connect(config={"threads": 1})

    def step(self, images: tuple[str, ...] = ("before", "after"), *, late: bool = False, net: bool = False) -> None:
        """Some changes in some tables, a row now and then several times.

        Args:
            images: those that a run gets to see.
            late: more changes come after the positions were taken and before the tables are read; the next run gets to see them.
            net: a run sees only how a row was first and how it is last.
        """
        self._steps += 1
        for name, rows in self.tables.items():
            seen = self._held.pop(name, []) + list(self._changes(name, rows))
            if late:
                self._held[name] = list(self._changes(name, rows))
            if net:
                seen = self._net(name, seen)
            self._load(name, list(rows.values()))
            self._load(f"changes_of_{name}", [row for image, row in seen if image in images])
            self._logs[name] += [(*row, self._steps) for image, row in seen if image == "after"]

    def _changes(self, table: str, rows: dict[Key, Row]) -> Iterator[tuple[str, Row]]:
        own = self.declaration.keys[table]
        for history in range(HISTORIES):
            for _ in range(self.rng.choice([0, 0, 1, 1, 2, 5])):
                values = [
                    self.rng.choice(VALUES) if name in own or self.rng.random() < 0.8 else None for name in COLUMNS
                ]
                row = (history, *values[1:])
                key = self._key_of(table, row)
                if key in rows:
                    yield "before", rows[key]
                if key in rows and self.rng.random() < 0.4:
                    del rows[key]
                else:
                    rows[key] = row
                    yield "after", row

    def _net(self, table: str, seen: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
        by_key: dict[Key, list[tuple[str, Row]]] = {}
        for image in seen:
            by_key.setdefault(self._key_of(table, image[1]), []).append(image)
        return [one for images in by_key.values() if images[0][1] != images[-1][1] for one in (images[0], images[-1])]

    def _key_of(self, table: str, row: Row) -> Key:
        return tuple(row[COLUMNS.index(name)] for name in self.declaration.keys[table])

    def _load(self, name: str, rows: list[Row]) -> None:
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)] if rows else []
        self._duck.register(name, pa.table(columns, SCHEMA) if rows else SCHEMA.empty_table())

    def indexed(self, share: float = 0.7) -> list[str]:
        """Some of the nodes that may have a reverse index; from now on the affected keys are found by them."""
        plan = self.declaration.plan
        chosen = []
        for node in plan["joined"]:
            foreign = {pair["parent"] for pair in node["pairs"]}
            by_key = node["parent"] == plan["root"] and foreign <= set(plan["key"])
            if not by_key and self.rng.random() < share:
                chosen.append(node["name"])
        indexes = {name: f"index_of_{name}" for name in chosen}
        nearby = {name: self._nearby(plan["nodes"][name]) for name in chosen if self.rng.random() < 0.5}
        self.affected_sql = on_duckdb(
            render("_affected_keys", plan, self._relations, self._changes_of, indexes, nearby)
        )
        return chosen

    def _nearby(self, node: dict[str, Any]) -> str:
        pair = node["pairs"][0]
        changed = f"select {pair['child']} from {self._changes_of[node['name']]}"
        return f"(select * from index_of_{node['name']} where {pair['parent']} in ({changed}))"

    def index(self, name: str) -> None:
        """A run of the reverse index of a node: what its parent's changelog holds after the snapshots that it has read."""
        node = self.declaration.plan["nodes"][name]
        parent = self.declaration.plan["nodes"][node["parent"]]
        foreign, table = [pair["parent"] for pair in node["pairs"]], f"index_of_{name}"
        log = [pa.array(column, pa.int64()) for column in zip(*self._logs[parent["table"]], strict=True)]
        schema = pa.schema([*SCHEMA, pa.field("_snapshot_id", pa.int64())])
        self._duck.register("log", pa.table(log, schema) if log else schema.empty_table())
        changelog = "(select *, 'insert' as _change from log)"
        known = table in self._indexes
        newest = self.query(f"select coalesce(max(_snapshot_id), 0) from {table}")[0][0] if known else 0
        rows = render("_reverse_index_rows", changelog, parent["key"], foreign, "uuid", newest)
        self.query(f"insert into {table} {rows}" if known else f"create table {table} as {rows}")
        self._indexes.add(table)

    def wide(self) -> dict[Key, Row]:
        """The full recompute: its rows by their key, of which each stands once."""
        rows = self._duck.execute(self.wide_sql).fetchall()
        by_key = {row[: len(self._key)]: row for row in rows}
        assert len(by_key) == len(rows), "a join multiplied rows"
        return by_key

    def affected(self) -> set[Key]:
        """The keys that the changes of the last step lead to."""
        return set(self._duck.execute(self.affected_sql).fetchall())

    def query(self, sql: str) -> list[Row]:
        """The rows of a query over the tables; SQL of Spark."""
        return self._duck.execute(on_duckdb(sql)).fetchall()

    def close(self) -> None:
        self._duck.close()


def index_misses(seed: int, runs: int, *, late: bool = False, skipped: bool = False) -> int:
    """The runs of a wide table with reverse indexes after which a row is wrong.

    Args:
        late: the tables change between the positions and the reading, but for the last run.
        skipped: the indexes are run every third time only, and used nevertheless.
    """
    world = World(Declaration(random.Random(seed)))
    indexed = world.indexed()
    kept: dict[Key, Row] = {}
    wrong = 0
    for run in range(runs):
        world.step(late=late and run < runs - 1)
        for name in indexed if not skipped or run % 3 == 0 else ():
            world.index(name)
        now = recompute(world, kept)
        if kept != now and (not late or run == runs - 1):
            wrong += 1
            kept = dict(now)
    world.close()
    return wrong


def misses(seed: int, runs: int, images: tuple[str, ...] = ("before", "after")) -> list[int]:
    """The runs after which a row is wrong; each history begins with empty tables."""
    world = World(Declaration(random.Random(seed)))
    kept: dict[Key, Row] = {}
    wrong = []
    for run in range(runs):
        world.step(images)
        now = recompute(world, kept)
        if kept != now:
            wrong.append(run)
            kept = dict(now)
    world.close()
    return wrong


def late_misses(seed: int, runs: int, *, net: bool = False) -> bool:
    """Whether a row is wrong at the end of runs that all read their tables later than they took their positions, but for the last."""
    world = World(Declaration(random.Random(seed)))
    kept: dict[Key, Row] = {}
    for run in range(runs):
        world.step(late=run < runs - 1, net=net)
        now = recompute(world, kept)
    world.close()
    return kept != now


def recompute(world: World, kept: dict[Key, Row]) -> dict[Key, Row]:
    """The affected keys in `kept` get their new rows; returns all rows as they should be."""
    now = world.wide()
    for key in world.affected():
        kept.pop(key, None)
        if key in now:
            kept[key] = now[key]
    return now
