"""Which rights a push needs on which tables of a database. How a database is asked for them stands in its own `rights`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbt_reverse_etl.sinks.base import Mode, SinkTask

SELECT, INSERT, UPDATE, DELETE = ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
UNTRIED = "constraints and triggers of the table"
Lack = tuple[str, str]  # what was found, what to do next


@dataclass(frozen=True)
class Need:
    """What a push needs of one table.

    Attributes:
        table: a name of the database.
        column: one of its columns.
        is_made: a push makes it where it is not there.
    """

    table: Any
    column: str
    rights: tuple[str, ...]
    is_made: bool


def needs(task: SinkTask, table: Any, ours: Sequence[Any], *, soft_delete: bool, create_object: bool) -> list[Need]:
    """Of the object, and of our own tables.

    Args:
        ours: the tables that any push makes where they are not there.
        soft_delete: a delete sets a column.
    """
    is_made = create_object and task.mode is not Mode.UPDATE_ONLY
    of_object = Need(table, task.key[0], _rights_on_object(task, soft_delete), is_made)
    return [*(Need(one, "sync_id", ALL, is_made=True) for one in ours), of_object]


def no_table(need: Need, sql: str) -> Lack:
    """An object that nobody makes."""
    next_step = (
        f"make it, then GRANT {', '.join(need.rights)} ON {sql}; or set create_object: true and a mode that inserts"
    )
    return f"no table {need.table}", next_step


def _rights_on_object(task: SinkTask, soft_delete: bool) -> tuple[str, ...]:
    if task.full_load:
        return ALL
    mirror = (SELECT, INSERT, UPDATE) if soft_delete else ALL
    by_mode = {Mode.INSERT_ONLY: (SELECT, INSERT), Mode.UPDATE_ONLY: (SELECT, UPDATE), Mode.MIRROR: mirror}
    return by_mode.get(task.mode, (SELECT, INSERT, UPDATE))
