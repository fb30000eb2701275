"""The wide tables of a dbt project: their join trees from the manifest, in the order that the macros decide, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbt_reverse_etl.base.errors import Problem, mistake, raise_if_any
from dbt_reverse_etl.base.sql import value_of


@dataclass(frozen=True)
class WideNode:
    """A table of a wide table.

    Attributes:
        table: its name in the declaration: a model, seed or snapshot, or source.table.
        key: columns that identify a row; () where rows are aggregated and none is declared.
        parent: name of the node that it joins; None for the root.
        join: left, inner or full; "" for the root.
        pairs: (own column, column of the parent) of its join.
        shows: what the wide table takes from it: columns by their names there, or aggregates.
    """

    name: str
    table: str
    key: tuple[str, ...]
    parent: str | None
    join: str
    many: bool
    pairs: tuple[tuple[str, str], ...]
    shows: tuple[str, ...]
    where: str | None


@dataclass(frozen=True)
class WideTable:
    """A wide table; its nodes in the order of their joins, the root first.

    Attributes:
        model: a name that is its alone, see `declared_plan`.
    """

    unique_id: str
    model: str
    key: tuple[str, ...]
    nodes: tuple[WideNode, ...]

    def children(self, name: str) -> list[WideNode]:
        """The nodes that join this one."""
        return [node for node in self.nodes if node.parent == name]


def wide_tables(manifest: Mapping[str, Any]) -> list[WideTable]:
    """All that are declared under meta.reverse_etl.wide_table, by name; without those that have problems."""
    planned = [(*one, value_of("_wide_plan", _declaration(one[1]))) for one in sorted(declared(manifest).items())]
    return [_wide_table(name, node, plan) for name, node, plan in planned if not plan["problems"]]


def wide_table(manifest: Mapping[str, Any], model: str) -> WideTable:
    """The one of that model; raises as `declared_plan` does."""
    return _wide_table(model, *declared_plan(manifest, model))


def declared_plan(manifest: Mapping[str, Any], model: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The manifest's node of that model, and its plan: see the macro _wide_plan.

    Args:
        manifest: dbt's.
        model: people, people.v2 of a model with versions, or shop.people where another package has one, too.

    Raises:
        ConfigurationError: with every problem of its declaration, or with the names of those that there are.
    """
    known = declared(manifest)
    found = [name for name, node in known.items() if model in _names(node)]
    if len(found) > 1:
        said = f"the name of {' and '.join(sorted(found))}"
        raise mistake(model, said, "one model with a declared wide table", "name one of them")
    if not found:
        expected = f"one of {', '.join(sorted(known))}" if known else "a model with meta.reverse_etl.wide_table"
        next_step = "correct the name; a declaration that only the SQL of the model holds is not in the manifest"
        raise mistake(model, "no model with a declared wide table", expected, next_step)
    node = known[found[0]]
    plan = value_of("_wide_plan", _declaration(node))
    raise_if_any([_problem(node, text) for text in plan["problems"]])
    return node, plan


def declared(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The models that declare a wide table, each by the first of its names that no other has."""
    found = [node for node in manifest["nodes"].values() if _declaration(node) is not None]
    taken = Counter(name for node in found for name in _names(node))
    return {next((name for name in _names(node) if taken[name] == 1), node["unique_id"]): node for node in found}


def _names(node: Mapping[str, Any]) -> list[str]:
    """What a user may call it, as in the macro _the_one: the name of changelogs first."""
    version = node.get("version")
    name = node["name"] if version is None else f"{node['name']}.v{version}"
    return list(dict.fromkeys([name, f"{node['package_name']}.{name}", node["name"]]))


def _declaration(node: Mapping[str, Any]) -> Any:
    meta = node.get("config", {}).get("meta") or {}
    settings = meta.get("reverse_etl") if isinstance(meta, Mapping) else None
    return settings.get("wide_table") if isinstance(settings, Mapping) else None


def _problem(node: Mapping[str, Any], text: str) -> Problem:
    """The macros say what is wrong in one line: `where: found; expected; next step`."""
    found, _, rest = text.partition("; expected ")
    expected, _, next_step = rest.partition("; ")
    where, _, found = found.partition(": ")
    file = node.get("original_file_path", "manifest.json")
    return Problem(
        f"{file}: {node['name']}.{where}",
        found.removeprefix("found ").replace("not found", "nothing"),
        expected,
        next_step,
    )


def _wide_table(model: str, node: Mapping[str, Any], plan: Mapping[str, Any]) -> WideTable:
    nodes = tuple(_node(one, plan) for one in plan["group"] + plan["joined"])
    return WideTable(node["unique_id"], model, tuple(plan["key"]), nodes)


def _node(node: Mapping[str, Any], plan: Mapping[str, Any]) -> WideNode:
    is_root = node["name"] == plan["root"]
    aggregates = node["aggregates"]
    shows = [f"{name} = {aggregate}" for name, aggregate in aggregates.items()] or [
        one["name"] if one["name"] == one["column"] else f"{one['name']} = {one['column']}" for one in node["output"]
    ]
    return WideNode(
        node["name"],
        node["table"],
        tuple(node["key"]),
        None if is_root else node["parent"],
        "" if is_root else node["join"],
        node["cardinality"] == "many",
        tuple((pair["child"], pair["parent"]) for pair in node["pairs"]),
        tuple(shows),
        node["where"],
    )


def as_text(wide: WideTable) -> str:
    """The join tree with one line for each node, and below it what the wide table takes from each."""
    lines = [f"{wide.model}: one row for each {', '.join(wide.key)}; {len(wide.nodes) - 1} joins"]
    _branch(wide, wide.nodes[0], "", "", lines)
    width = max(len(node.name) for node in wide.nodes)
    lines += ["", *(f"{node.name:{width}}  {', '.join(node.shows)}" for node in wide.nodes if node.shows)]
    return "\n".join(lines)


def _branch(wide: WideTable, node: WideNode, mark: str, indent: str, lines: list[str]) -> None:
    number = wide.nodes.index(node)
    condition = " and ".join(f"{node.name}.{own} = {node.parent}.{theirs}" for own, theirs in node.pairs)
    how = f"{number}. {node.join} join {node.name} ({node.table}) on {condition}" if number else node.name
    kind = "many rows, aggregated" if node.many else f"one row for each {', '.join(node.key)}"
    filtered = f", where {node.where}" if node.where else ""
    lines.append(f"{mark}{how}: {kind}{filtered}" if number else f"{mark}{how} ({node.table}): the root{filtered}")
    children = wide.children(node.name)
    for child in children:
        last = child is children[-1]
        _branch(wide, child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "), lines)
