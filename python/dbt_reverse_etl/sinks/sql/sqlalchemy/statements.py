"""The statements of one sync on its table.

Values come as bound parameters, one row at a time; for DuckDB, whose driver plans each row anew, from an Arrow table that it reads
where it lies in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.expression import Executable

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import OURS
from dbt_reverse_etl.sinks.sql.sqlalchemy.merge import Merge

STAGE = f"{OURS}stage"
MERGES = frozenset({"mssql", "oracle"})
STAGED = frozenset({"duckdb"})
AT_ONCE = 500  # values of keys in one question; SQL Server takes 2100 parameters, Oracle 1000 in a list


Cells = dict[str, Any]  # column -> where its value comes from


@dataclass(frozen=True)
class Statements:
    """What a batch runs. Parameters are c0, c1, ... in the order of the fields.

    Attributes:
        table: with the mapped columns only, in the order of the fields.
        key: the columns of the key.
        write: None where there is nothing to write: update_only with a key alone.
        delete: by key.
        staged: rows come from the table STAGE.
    """

    table: sa.Table
    key: tuple[str, ...]
    write: Executable | None
    delete: Executable
    staged: bool

    def there(self, keys: Sequence[tuple[Any, ...]]) -> list[sa.Select[Any]]:
        """Questions for the keys of these that the table has, in its own spelling."""
        columns = [self.table.c[name] for name in self.key]
        asked = sa.select(*columns)
        if self.staged:
            stage = _stage(self.table)
            match = _match(self.table, self.key, _staged_cells(self.table, stage))
            return [asked.select_from(self.table).join(stage, match)]
        step = max(AT_ONCE // len(columns), 1)
        parts = [keys[start : start + step] for start in range(0, len(keys), step)]
        if len(columns) == 1:
            return [asked.where(columns[0].in_([value for (value,) in part])) for part in parts]
        pairs = ([zip(columns, one, strict=True) for one in part] for part in parts)
        return [asked.where(sa.or_(*(sa.and_(*(a == b for a, b in one)) for one in part))) for part in pairs]


def statements(table: sa.Table, key: Sequence[str], mode: Mode, dialect: str) -> Statements:
    """Build the statements of a sync."""
    staged = dialect in STAGED
    cells = _staged_cells(table, _stage(table)) if staged else _bound_cells(table)
    delete = sa.delete(table).where(_match(table, key, cells))
    return Statements(table, tuple(key), _write(table, key, mode, dialect, cells), delete, staged)


def _match(table: sa.Table, key: Sequence[str], cells: Cells) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == cells[name] for name in key))


def _write(table: sa.Table, key: Sequence[str], mode: Mode, dialect: str, cells: Cells) -> Executable | None:
    others = [name for name in cells if name not in key]
    if mode is Mode.UPDATE_ONLY:
        changed = {name: cells[name] for name in others}
        return sa.update(table).where(_match(table, key, cells)).values(changed) if others else None
    if dialect in MERGES:
        return Merge(table, cells, key, updates=mode is not Mode.INSERT_ONLY, inserts=True)
    insert = postgresql.insert(table)
    if dialect in STAGED:
        insert = insert.from_select(list(cells), sa.select(*cells.values()).where(sa.true()))
    else:
        insert = insert.values(cells)
    if mode is Mode.INSERT_ONLY or not others:
        return insert.on_conflict_do_nothing(index_elements=list(key))
    return insert.on_conflict_do_update(index_elements=list(key), set_={name: insert.excluded[name] for name in others})


def _bound_cells(table: sa.Table) -> Cells:
    """JSON is bound as the text that it is, and made JSON by the database."""
    cells: Cells = {}
    for column in table.c:
        is_json = isinstance(column.type, sa.JSON)
        bound = sa.bindparam(_cell(table, column.name), type_=sa.Text() if is_json else column.type)
        cells[column.name] = sa.cast(bound, column.type) if is_json else bound
    return cells


def _staged_cells(table: sa.Table, stage: sa.TableClause) -> Cells:
    return {column.name: stage.c[_cell(table, column.name)] for column in table.c}


def _stage(table: sa.Table) -> sa.TableClause:
    columns: list[sa.ColumnClause[Any]] = [sa.column(_cell(table, column.name), column.type) for column in table.c]
    return sa.table(STAGE, *columns)


def _cell(table: sa.Table, name: str) -> str:
    return f"c{list(table.c.keys()).index(name)}"
