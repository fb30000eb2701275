"""A declared wide table as a chain of ordinary dbt models: leaves, the tables that share its key, branches, the wide table.

Every join is made by one model, whose query the macros of the package write from a small declaration of its own: the nodes below a dimension
join it before it joins the wide rows. That is the same as one query, for a join meets one row at most, and an inner join below a dimension
is passed on upwards.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dbt_reverse_etl.base.errors import Problem, raise_if_any
from dbt_reverse_etl.base.sql import quoted, render, value_of
from dbt_reverse_etl.wide.added import merged, problems_of_added
from dbt_reverse_etl.wide.inputs import Inputs
from dbt_reverse_etl.wide.names import Names

LOADED = ("loaded_at", "loaded_snapshot")
OF_SCD2 = {"valid_from", "valid_to", "valid_from_snapshot", "valid_to_snapshot", "is_current"}  # LOADED is read from it

Plan = Mapping[str, Any]
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What a chain shall have.

    Attributes:
        changelogs: every model before the last is a changelog, so that a change wakes only what hangs on it.
        load_columns: when the last change of a row was captured, and with which snapshot; needs changelogs.
        partition_by: a column of the wide table, or name=SQL for one more, by which its table is partitioned.
    """

    changelogs: bool = False
    load_columns: bool = False
    partition_by: str | None = None

    @property
    def partition(self) -> tuple[str, str]:
        """Name and, of a column that is added, SQL; empty where there is none."""
        name, _, expression = (self.partition_by or "").partition("=")
        return name.strip(), expression.strip()


@dataclass(frozen=True)
class ChainModel:
    """One model: NAME.sql, and its entry in the .yml."""

    name: str
    sql: str
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class _Part:
    """A model that can be joined.

    Attributes:
        key: columns that identify its rows, by which it is joined.
        shown: columns of the wide table, apart from the key.
        carried: columns that only a later join needs.
        inner: whether a row of the wide table is left out where no row of it meets.
    """

    model: str
    key: tuple[str, ...]
    shown: tuple[str, ...]
    carried: tuple[str, ...] = ()
    inner: bool = False


_Child = tuple[Node, _Part]


def chain(inputs: Inputs, plan: Plan, wanted: Wanted) -> list[ChainModel]:
    """The models of a wide table, each after those that it reads; the same whatever the order of the declaration's nodes.

    Raises:
        ConfigurationError: with everything that is wrong with what is wanted, or with the types of the keys, or what contradicts the chain.
    """
    problems = [*_problems_of_tree(inputs.model, plan), *_problems_of_wish(inputs.model, plan, wanted)]
    problems += problems_of_added(inputs.model, plan["chain"], changelogs=wanted.changelogs)
    raise_if_any(problems)
    return _Chain(inputs, plan, wanted).build()


def _problems_of_tree(model: str, plan: Plan) -> Iterator[Problem]:
    """What one query can do and a chain cannot."""
    for node in plan["nodes"].values():
        where = f"{model}.wide_table.nodes.{node['name']}"
        if len({pair["child"] for pair in node["pairs"]}) < len(node["pairs"]):
            expected, next_step = "each column of the node once", "join that in a model that it reads"
            yield Problem(f"{where}.join_on", "a column twice", expected, next_step)
        pairs = [text for pair in (*node["pairs"], *node["output"]) for text in pair.values()]
        sql = [node["where"] or "", *map(str, node["aggregates"].values())]
        for kind, texts, do in (("SQL", sql, "put it into"), ("a name", [*node["key"], *pairs], "rename it in")):
            if re.search(r"{[{%#]", " ".join(texts)):
                found, expected = f"{kind} that dbt would read as Jinja", f"{kind} without {{{{, {{% and {{#"
                yield Problem(where, found, expected, f"{do} a model that it reads")


def _problems_of_wish(model: str, plan: Plan, wanted: Wanted) -> Iterator[Problem]:
    columns = [column["name"] for column in plan["columns"]]
    added = list(LOADED) if wanted.load_columns else []
    if wanted.load_columns and not wanted.changelogs:
        expected = "changelogs: they know when a row was captured, and with which snapshot"
        yield Problem("--load-columns", "no --changelogs", expected, "add --changelogs")
    name, expression = wanted.partition
    if name and expression:
        added.append(name)
    elif wanted.partition_by is not None and name not in columns:
        expected = f"a column of {model} ({', '.join(columns)}), or NAME=SQL for one more"
        yield Problem("--partition-by", repr(wanted.partition_by), expected, "correct it")
    for taken in sorted({name.lower() for name in columns} & {name.lower() for name in added}):
        expected = "a name that nothing else has"
        yield Problem(model, f"a column {taken}, which would be added", expected, "rename it in columns")
    for taken in sorted({name.lower() for name in columns} & OF_SCD2 if wanted.load_columns else ()):
        expected = "a name that scd2, which knows when a row was captured, does not add"
        yield Problem("--load-columns", f"a column {taken} of {model}", expected, "rename it in columns")


class _Chain:
    def __init__(self, inputs: Inputs, plan: Plan, wanted: Wanted) -> None:
        self._inputs, self._plan, self._wanted = inputs, plan, wanted
        self._types = inputs.types_of_joins(plan)
        self._names = Names(plan, self._types)
        self._models: list[ChainModel] = []
        self._problems: list[Problem] = []
        self._last = f"{inputs.model}_chain_{'changelog' if wanted.changelogs else 'joined'}"

    def build(self) -> list[ChainModel]:
        group = self._plan["group"]
        joined = [node for node in self._plan["joined"] if self._plan["nodes"][node["parent"]] in group]
        is_one = len(group) == 1
        part = self._leaf(group[0], self._last if is_one and not joined else f"{group[0]['name']}_leaf")
        if not is_one:
            members = [(node, self._leaf(node, f"{node['name']}_leaf")) for node in group[1:]]
            stem = f"{group[0]['name']}_full" if joined else self._last
            part = self._join(group[0], part, members, stem, carries=True)
        if joined:
            part = self._join(group[0], part, [(node, self._branch(node)) for node in joined], self._last)
        self._wide(part)
        raise_if_any(self._problems)
        return self._models

    def _branch(self, node: Node) -> _Part:
        """A table with everything that hangs on it."""
        part = self._leaf(node, f"{node['name']}_leaf")
        below = [child for child in self._plan["joined"] if child["parent"] == node["name"]]
        if not below:
            return part
        return self._join(node, part, [(child, self._branch(child)) for child in below], f"{node['name']}_branch")

    def _leaf(self, node: Node, stem: str) -> _Part:
        """One table, with what the chain needs of it."""
        keys, carried = self._names.key(node), self._names.carried(node)
        key = tuple(keys.values())
        outputs = {} if node["aggregates"] else {one["name"]: one["column"] for one in node["output"]}
        columns = [
            *(self._column(node, column, own) for column, own in keys.items()),
            *({"column": column, "name": own, "type": None} for own, column in outputs.items() if own not in key),
            *(self._column(node, column, own) for column, own in carried.items()),
        ]
        is_kept = node["cardinality"] == "one" and node in self._plan["group"]
        joined_by = [] if is_kept else list(keys)
        sql = render("_wide_leaf", node, self._inputs.relation(node["table"]), columns, joined_by)
        rows = "aggregated by" if node["cardinality"] == "many" else "one row for each"
        told = f"{node['table']} for wide tables: {rows} {', '.join(key)}."
        model = self._add(stem, sql, told, key, self._inputs.capture(node, keys))
        shown = tuple(one["name"] for one in node["output"] if one["name"] not in key)
        return _Part(model, key, shown, tuple(carried.values()), node["join"] == "inner")

    def _column(self, node: Node, column: str, own: str) -> dict[str, Any]:
        """A column of a join, in the type that both of its sides have."""
        return {"column": column, "name": own, "type": self._types.get((node["name"], column))}

    def _join(self, root: Node, part: _Part, children: list[_Child], stem: str, *, carries: bool = False) -> _Part:
        """The model of a table and those that join it; its query is a wide table of its own."""
        first = {"name": root["name"], "table": part.model, "key": list(part.key), "columns": _columns(part, carries)}
        joins = [self._declared(*child, carries) | {"priority": number} for number, child in enumerate(children)]
        declaration = {"root": root["name"], "nodes": [first, *joins]}
        plan = value_of("_wide_plan", declaration)
        parts = {root["name"]: part, **{node["name"]: child for node, child in children}}
        sql = render("_wide_query", plan, {name: self._read(one) for name, one in parts.items()})
        told = f"{' + '.join(parts)}, joined; one row for each {', '.join(part.key)}."
        capture = {"capture": {"strategy": "affected_keys"}, "wide_table": declaration}
        model = self._add(stem, sql, told, part.key, capture)
        named = [column["name"] for column in plan["columns"][len(part.key) :]]
        carried = tuple(name for one in parts.values() for name in one.carried) if carries else ()
        shown = tuple(name for name in named if name not in carried)
        return _Part(model, part.key, shown, carried, any(one.inner for one in parts.values()))

    def _declared(self, node: Node, part: _Part, carries: bool) -> dict[str, Any]:
        """A node of the declaration of one join."""
        own = self._names.key(node)
        pairs = {self._names.of_parent(node, pair["parent"]): own[pair["child"]] for pair in node["pairs"]}
        shown = [one["name"] for one in node["output"] if one["name"] in part.key] + _columns(part, carries)
        join = "full" if node["join"] == "full" else "inner" if part.inner else "left"
        of_node = {"name": node["name"], "table": part.model, "key": list(part.key)}
        return of_node | {"join": join, "join_on": pairs, "columns": shown}

    def _read(self, part: _Part) -> str:
        """What stands behind `from`: of a changelog the rows as they are."""
        called = f"ref('{part.model}')"
        if self._wanted.changelogs:
            called = f"reverse_etl.current({called}, key={list(part.key)})"
        return f"{{{{ {called} }}}}"

    def _add(self, stem: str, sql: str, told: str, key: tuple[str, ...], settings: Mapping[str, Any]) -> str:
        """The name of the model: after what it holds, so that wide tables share it; the last one keeps its name when that changes."""
        config: dict[str, Any] = {}
        if self._wanted.changelogs:
            config = {"materialized": "changelog", "unique_key": list(key), "meta": {"reverse_etl": dict(settings)}}
        content = hashlib.sha256(json.dumps([sql, config]).encode()).hexdigest()
        name = stem if stem == self._last else re.sub(r"\W", "_", f"{stem}_{content[:8]}", flags=re.ASCII)
        self._append(name, sql, told, config, "changelog" if name == self._last else None)
        return name

    def _wide(self, joined: _Part) -> None:
        """The wide table itself: its columns in the order of the declaration."""
        selected = [quoted(column["name"]) for column in self._plan["columns"]]
        config: dict[str, Any] = {}
        name, expression = self._wanted.partition
        if name:
            selected += [f"{value_of('_wide_sql', expression)} as {quoted(name)}"] if expression else []
            config = {"materialized": "table", "file_format": "delta", "partition_by": [name]}
        source, condition = self._read(joined), ""
        if self._wanted.load_columns:
            selected += [f"`valid_from` as {quoted(LOADED[0])}", f"`valid_from_snapshot` as {quoted(LOADED[1])}"]
            source = f"{{{{ reverse_etl.scd2(ref('{joined.model}'), key={list(joined.key)}) }}}}"
            condition = "\nwhere `is_current`"
        sql = "select\n    " + ",\n    ".join(selected) + f"\nfrom {source}{condition}"
        told = f"The wide table that {self._inputs.model} declares; one row for each {', '.join(joined.key)}."
        self._append(f"{self._inputs.model}_chain", sql, told, config, "wide")

    def _append(self, name: str, sql: str, told: str, config: dict[str, Any], named: str | None) -> None:
        """The model, with what the declaration adds to it by that name."""
        properties = {"description": told, **({"config": config} if config else {})}
        added = (self._plan["chain"] or {}).get(named, {})
        where = f"{self._inputs.model}.wide_table.chain.{named}"
        self._models.append(ChainModel(name, sql, merged(properties, added, where, self._problems)))


def _columns(part: _Part, carries: bool) -> list[str]:
    return [*part.shown, *(part.carried if carries else ())]
