"""MERGE, the upsert of SQL Server and Oracle, as a construct of SQLAlchemy: identifiers and values go through its dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.expression import Executable

TARGET, SOURCE = "target", "source"


class Merge(Executable, ClauseElement):
    """One row into a table by its key.

    Attributes:
        table: where to.
        values: name of the column -> bound parameter, in the order of the columns.
        key: the columns that identify a row.
        updates, inserts: whether a row that is there is changed, and whether one that is not is added.
    """

    inherit_cache = False

    def __init__(
        self,
        table: sa.Table,
        values: Mapping[str, sa.BindParameter[Any]],
        key: Sequence[str],
        *,
        updates: bool,
        inserts: bool,
    ) -> None:
        self.table, self.values, self.key = table, values, key
        self.updates, self.inserts = updates, inserts

    @property
    def others(self) -> list[str]:
        """The columns that an update sets."""
        return [name for name in self.values if name not in self.key]


@compiles(Merge)
def _no_merge(element: Merge, compiler: Any, **_: Any) -> str:
    raise NotImplementedError(f"no MERGE for {compiler.dialect.name}")


@compiles(Merge, "mssql")
def _sql_server(element: Merge, compiler: Any, **more: Any) -> str:
    """The row is a table of its own, whose casts tell the driver the types; HOLDLOCK keeps others from adding the key meanwhile."""
    quote, cells = compiler.preparer.quote, {name: f"{SOURCE}.c{at}" for at, name in enumerate(element.values)}
    row = ", ".join(
        f"{compiler.process(sa.cast(value, element.table.c[name].type), **more)} AS c{at}"
        for at, (name, value) in enumerate(element.values.items())
    )
    match = " AND ".join(f"{TARGET}.{quote(name)} = {cells[name]}" for name in element.key)
    table = compiler.preparer.format_table(element.table)
    head = f"MERGE INTO {table} WITH (HOLDLOCK) AS {TARGET} USING (SELECT {row}) AS {SOURCE} ON ({match})"
    return f"{head}{_branches(element, quote, cells, f'{TARGET}.')};"


@compiles(Merge, "oracle")
def _oracle(element: Merge, compiler: Any, **more: Any) -> str:
    """Parameters stand where they are stored: a LOB cannot be selected from DUAL."""
    quote = compiler.preparer.quote
    cells = {name: compiler.process(value, **more) for name, value in element.values.items()}
    match = " AND ".join(f"{TARGET}.{quote(name)} = {cells[name]}" for name in element.key)
    table = compiler.preparer.format_table(element.table)
    return f"MERGE INTO {table} {TARGET} USING DUAL ON ({match}){_branches(element, quote, cells, f'{TARGET}.')}"


def _branches(element: Merge, quote: Any, cells: Mapping[str, str], own: str) -> str:
    written = ""
    if element.updates and element.others:
        assigned = ", ".join(f"{own}{quote(name)} = {cells[name]}" for name in element.others)
        written += f" WHEN MATCHED THEN UPDATE SET {assigned}"
    if element.inserts:
        names, values = ", ".join(map(quote, cells)), ", ".join(cells.values())
        written += f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"  # noqa: S608  (quoted names and parameters)
    return written
