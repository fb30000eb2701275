"""Which rights a push needs on which tables of a database; each dialect asks for them in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.table import Name, soft_delete

SELECT, INSERT, UPDATE, DELETE = ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
UNTRIED = "types of the columns, constraints and triggers of the table"
OR_LET_IT_BE_MADE = "or set create_object: true and a mode that inserts"
Lack = tuple[str, str]  # what was found, what to do next


@dataclass(frozen=True)
class Need:
    """What a push needs of one table.

    Attributes:
        column: one of the table's.
        is_made: a push makes it where it is not there.
        fields: columns that are surely written, or looked for.
        has_all: there are no others.
    """

    table: Name
    column: str
    rights: tuple[str, ...]
    is_made: bool
    fields: tuple[str, ...] = ()
    has_all: bool = False


def needs(
    task: SinkTask, table: Name, ours: Sequence[Name], *, create_object: bool, insert_only: tuple[str, ...]
) -> list[Need]:
    """Of the object, and of our own tables, which any push makes where they are not there.

    Args:
        insert_only: the rights that this mode needs on the object.
    """
    is_made = create_object and task.mode is not Mode.UPDATE_ONLY
    fields, has_all = tuple(task.schema.names), task.known != "key"
    mirror = (SELECT, INSERT, UPDATE) if soft_delete(task) else ALL
    by_mode = {Mode.INSERT_ONLY: insert_only, Mode.UPDATE_ONLY: (SELECT, UPDATE), Mode.MIRROR: mirror}
    rights = by_mode.get(task.mode, (SELECT, INSERT, UPDATE))
    of_object = Need(table, task.key[0], rights, is_made, fields, has_all)
    return [*(Need(one, "sync_id", ALL, is_made=True) for one in ours), of_object]


def no_table(need: Need) -> Lack:
    """An object that nobody makes."""
    grant = f"GRANT {', '.join(need.rights)} ON {need.table.sql}"
    return f"no table {need.table}", f"make it, then {grant}; {OR_LET_IT_BE_MADE}"
