"""SQL with which a push changes a Delta table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.sinks.base import Mode, SinkTask

_MAPPED = "tblproperties ('delta.columnMapping.mode' = 'name')"
# Delta turns it on by itself only where it makes a table.
_LOCAL_TIMES = "tblproperties ('delta.feature.timestampNtz' = 'supported')"


def create(target: str, names: Iterable[str], columns: str) -> str:
    """The CREATE TABLE of columns; `columns` has them with their types."""
    return f"create table {target} ({columns}) using delta{f' {_MAPPED}' if _needs_mapping(names) else ''}"


def add(target: str, names: Iterable[str], columns: str, properties: Mapping[str, str]) -> list[str]:
    """The statements that add columns to a table with these properties."""
    # Delta refuses another mode where a table is mapped by `id`.
    is_mapped = properties.get("delta.columnMapping.mode", "none").lower() != "none"
    mapped = [f"alter table {target} set {_MAPPED}"] if _needs_mapping(names) and not is_mapped else []
    has_feature = "delta.feature.timestampNtz" in properties
    types = re.sub(r"`[^`]*`", "", columns)
    featured = [f"alter table {target} set {_LOCAL_TIMES}"] if "timestamp_ntz" in types and not has_feature else []
    return [*mapped, *featured, f"alter table {target} add columns ({columns})"]


def _needs_mapping(names: Iterable[str]) -> bool:
    """Whether a name has a sign that Delta takes only where columns have names of their own in the files."""
    return any(re.search(r"[ ,;{}()\n\t=]", name) for name in names)


def merge(target: str, source: str, task: SinkTask) -> str:
    """The MERGE of a task, whose source has `_operation` and the fields."""
    fields, key = [quoted(name) for name in task.schema.names], [quoted(name) for name in task.key]
    clauses = []
    if task.mode is Mode.MIRROR:
        clauses.append("when matched and s._operation = 'delete' then delete")
    # Without the key, which is equal: Delta refuses to set an identity column.
    changed = ", ".join(f"t.{name} = s.{name}" for name in fields if name not in key)
    if task.mode is not Mode.INSERT_ONLY and changed:
        clauses.append(f"when matched then update set {changed}")
    values = ", ".join(f"s.{name}" for name in fields)
    clauses.append(f"when not matched and s._operation <> 'delete' then insert ({', '.join(fields)}) values ({values})")  # noqa: S608
    same = " and ".join(f"t.{name} = s.{name}" for name in key)
    return f"merge into {target} t using {source} s on {same} {' '.join(clauses)}"


def overwrite(target: str, source: str, task: SinkTask) -> str:
    """The statement of a full load."""
    fields = ", ".join(map(quoted, task.schema.names))
    return f"insert overwrite {target} ({fields}) select {fields} from {source}"  # noqa: S608
