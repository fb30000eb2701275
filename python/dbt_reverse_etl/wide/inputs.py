"""The tables of a wide table, as dbt's manifest knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt_reverse_etl.base.errors import Problem, mistake, raise_if_any
from dbt_reverse_etl.base.sql import value_of
from dbt_reverse_etl.wide.trees import declared

_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_SAME = {
    **{"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "bool": "boolean"},
    **{"dec": "decimal", "numeric": "decimal", "timestamp_ltz": "timestamp"},
    **dict.fromkeys(("text", "varchar", "char", "character"), "string"),
}

Node = Mapping[str, Any]


class Inputs:
    """What a wide table reads.

    Args:
        manifest: dbt's.
        model: the node of the model that declares the wide table.
        plan: see the macro _wide_plan.

    Attributes:
        model: what the names of its chain begin with.
        chains: names of the last models of all chains that the project declares, also in models that are disabled.

    Raises:
        ConfigurationError: tables on which the model does not depend, or several of one name; another wide table whose chain has this name.
    """

    def __init__(self, manifest: Mapping[str, Any], model: Node, plan: Mapping[str, Any]) -> None:
        self._project = manifest["metadata"]["project_name"]
        self.model = self._name_of_chain(model)
        capture = ((model["config"].get("meta") or {}).get("reverse_etl") or {}).get("capture")
        self._reads_others = isinstance(capture, Mapping) and capture.get("recompute") == "full"
        self._refuse_name_of_other_chain(declared(manifest), model)
        disabled = {node["unique_id"]: node for nodes in (manifest.get("disabled") or {}).values() for node in nodes}
        every = [*declared(manifest).values(), *declared({"nodes": disabled}).values()]
        self.chains = {f"{self._name_of_chain(node)}_chain" for node in every}
        known = [manifest["nodes"].get(one) or manifest["sources"].get(one) for one in model["depends_on"]["nodes"]]
        self._known: dict[str, Node] = {_name(one): one for one in known if one}
        wanted = {node["table"] for node in plan["nodes"].values()}
        tables = sorted(wanted - set(self._known))
        where = f"{model.get('original_file_path', 'manifest.json')}: {self.model}.wide_table.nodes"
        if several := [one for one in known if one and _name(one) in wanted and one is not self._known[_name(one)]]:
            expected = "one thing of each name among those that the model depends on"
            found = ", ".join(f"another {_name(one)}" for one in several)
            raise mistake(where, found, expected, "read it through a model of another name")
        if tables:
            expected = f"tables on which the model depends ({', '.join(sorted(self._known)) or 'none'})"
            lines = str(value_of("_dependency_lines", tables)).strip()
            raise mistake(where, ", ".join(tables), expected, f"correct them, or add: {lines}")

    def relation(self, table: str) -> str:
        """What stands behind `from`, in Jinja: of a changelog the rows as they are."""
        node = self._known[table]
        if not self._is_changelog(table):
            return f"{{{{ {self._call(node)} }}}}"
        key = node["config"]["unique_key"]
        return f"{{{{ reverse_etl.current({self._call(node)}, key={[key] if isinstance(key, str) else key}) }}}}"

    def capture(self, node: Node, key: Mapping[str, str]) -> dict[str, Any]:
        """meta.reverse_etl of a changelog over one table: how it learns what changed; {}: everything is compared."""
        computes = bool(node["where"] or node["aggregates"])
        if (self._reads_others and computes) or value_of("_wide_outside", {"group": [node], "joined": []}):
            return {}
        if node["changes"] == "cdf":
            renamed = {own: column for column, own in key.items()}
            return {"capture": {"strategy": "cdf", "table": node["table"], "key": renamed}}
        if (
            not self._is_changelog(node["table"])
            or node["cardinality"] == "many"
            or any(key[one] != one for one in key)
        ):
            return {}
        alone = {"name": node["name"], "table": node["table"], "key": list(key)}
        capture = {"strategy": "affected_keys", "recompute": "affected"}
        return {"capture": capture, "wide_table": {"root": node["name"], "nodes": [alone]}}

    def types_of_joins(self, plan: Mapping[str, Any]) -> dict[tuple[str, str], str]:
        """{(node, column): type} of the columns of joins that have to be cast, so that both sides have the wider whole number.

        Raises:
            ConfigurationError: types that are not known to compare; one that the manifest does not tell is left as it is.
        """
        casts: dict[tuple[str, str], str] = {}
        problems = []
        for columns in _joined_columns(plan):
            types = {one: found for one in columns if (found := self._type(plan["nodes"][one[0]]["table"], one[1]))}
            if len(set(types.values())) < 2:
                continue
            if set(types.values()) <= set(_WHOLE_NUMBERS):
                widest = max(types.values(), key=_WHOLE_NUMBERS.index)
                casts |= {one: widest for one, found in types.items() if found != widest}
                continue
            found = ", ".join(f"{node}.{column} of type {types[node, column]}" for node, column in sorted(types))
            expected = "one type, or whole numbers: any other comparison depends on what the engine casts"
            problems.append(
                Problem(f"{self.model}.wide_table", f"joins of {found}", expected, "cast one in a model that it reads")
            )
        raise_if_any(problems)
        return casts

    def _type(self, table: str, column: str) -> str:
        """As the project says it in columns.data_type; empty where it does not."""
        for name, described in (self._known[table].get("columns") or {}).items():
            if name.lower() == column.lower():
                told = str(described.get("data_type") or "").lower().partition("(")[0].strip()
                return _SAME.get(told, told)
        return ""

    def _is_changelog(self, table: str) -> bool:
        return bool(self._known[table].get("config", {}).get("materialized") == "changelog")

    def _name_of_chain(self, node: Node) -> str:
        """With the version of the model, and with its package where that is another one."""
        package = [] if node["package_name"] == self._project else [node["package_name"]]
        version = [] if node.get("version") is None else [f"v{node['version']}"]
        return "_".join([*package, node["name"], *version])

    def _refuse_name_of_other_chain(self, known: Mapping[str, Node], model: Node) -> None:
        """What is joined with _ may read the same: v2 of people, and people_v2. No chain is written over another one."""
        shared = [name for name, node in known.items() if self._name_of_chain(node).lower() == self.model.lower()]
        if others := [name for name in sorted(shared) if known[name] is not model]:
            where = f"{model.get('original_file_path', 'manifest.json')}: {self.model}"
            found = f"the chain {self.model}_chain, which {' and '.join(others)} would write too"
            expected = "a chain of its own for each model with a declared wide table"
            raise mistake(where, found, expected, "rename one of the models")

    def _call(self, node: Node) -> str:
        if node["resource_type"] == "source":
            return f"source('{node['source_name']}', '{node['name']}')"
        package = [] if node["package_name"] == self._project else [node["package_name"]]
        version = [] if node.get("version") is None else [f"v={node['version']!r}"]
        return f"ref({', '.join([*(repr(one) for one in [*package, node['name']]), *version])})"


def _name(node: Node) -> str:
    return f"{node['source_name']}.{node['name']}" if node["resource_type"] == "source" else str(node["name"])


def _joined_columns(plan: Mapping[str, Any]) -> list[set[tuple[str, str]]]:
    """The columns (node, column) that joins compare with each other, also through others."""
    classes: list[set[tuple[str, str]]] = []
    for node in plan["group"][1:] + plan["joined"]:
        for pair in node["pairs"]:
            both = {(node["name"], pair["child"]), (node["parent"], pair["parent"])}
            meeting = [one for one in classes if one & both]
            classes = [one for one in classes if not one & both] + [both.union(*meeting)]
    return classes
