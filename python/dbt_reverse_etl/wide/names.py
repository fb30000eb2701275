"""The columns of a wide table's chain: one name for each, from the first model that has it to the last that needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Names:
    """Columns of the wide table have their names there; keys keep their own; what only joins need is node__column.

    Args:
        plan: of a wide table, see the macro _wide_plan.
        casts: (node, column) of the columns whose joins need another type than the wide table shows.
    """

    def __init__(self, plan: Mapping[str, Any], casts: Collection[tuple[str, str]]) -> None:
        self._plan, self._casts = plan, casts
        self._nodes: list[Mapping[str, Any]] = plan["group"] + plan["joined"]
        keys = {column.lower() for node in self._nodes for column in _key(node)}
        self._taken = {*(column["name"].lower() for column in plan["columns"]), *keys}
        self._keys = {node["name"]: self._names_of_key(node) for node in self._nodes}
        self._carried = {node["name"]: self._names_of_carried(node) for node in self._nodes}

    def key(self, node: Mapping[str, Any]) -> dict[str, str]:
        """{column of the table: name} of the columns that identify the rows of its leaf."""
        return self._keys[node["name"]]

    def carried(self, node: Mapping[str, Any]) -> dict[str, str]:
        """{column of the table: name} of the columns that the joins of its children need, apart from its key."""
        return self._carried[node["name"]]

    def of_parent(self, node: Mapping[str, Any], column: str) -> str:
        """The name of a column of the node's parent, where the node joins it."""
        if node["parent"] == self._plan["root"] and column in self._plan["key"]:
            return column
        parent = self._plan["nodes"][node["parent"]]
        for names in (self._carried[parent["name"]], self._joinable(parent), self._keys[parent["name"]]):
            if column in names:
                return names[column]
        raise KeyError(column)

    def _names_of_key(self, node: Mapping[str, Any]) -> dict[str, str]:
        """A column that is joined to the table, or beside another column of it, may have the name."""
        columns = [] if node["aggregates"] else node["output"]
        outputs = {one["name"].lower(): (one["name"], one["column"]) for one in columns}
        below = {one["name"].lower() for child in self._below(node) for one in child["output"]}
        names = {}
        for column in _key(node):
            is_alone = outputs.get(column.lower()) in (None, (column, column))  # in another case it is a second column
            is_free = column.lower() not in below and is_alone
            is_root = node["name"] == self._plan["root"]
            names[column] = column if is_root or is_free else self._fresh(node, column)
        return names

    def _below(self, node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        children = [child for child in self._plan["joined"] if child["parent"] == node["name"]]
        return children + [one for child in children for one in self._below(child)]

    def _names_of_carried(self, node: Mapping[str, Any]) -> dict[str, str]:
        known = {**self._joinable(node), **({} if self._is_beside_the_root(node) else self._keys[node["name"]])}
        children = (child for child in self._plan["joined"] if child["parent"] == node["name"])
        needed = {pair["parent"] for child in children for pair in child["pairs"]}
        return {column: self._fresh(node, column) for column in sorted(needed) if column not in known}

    def _is_beside_the_root(self, node: Mapping[str, Any]) -> bool:
        """Its key is NULL where only another table of the group has the row, so it is no key of the group."""
        return node in self._plan["group"] and node["name"] != self._plan["root"]

    def _joinable(self, node: Mapping[str, Any]) -> dict[str, str]:
        """{column: name} of the columns of the wide table that joins can use as they are."""
        own = node["name"]
        return {one["column"]: one["name"] for one in node["output"] if (own, one["column"]) not in self._casts}

    def _fresh(self, node: Mapping[str, Any], column: str) -> str:
        name = f"{node['name']}__{column}"
        while name.lower() in self._taken:
            name += "_"
        self._taken.add(name.lower())
        return name


def _key(node: Mapping[str, Any]) -> list[str]:
    """The columns of a table that identify the rows which it brings."""
    return [pair["child"] for pair in node["pairs"]] if node["cardinality"] == "many" else list(node["key"])
