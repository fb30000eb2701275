"""A table that is there, and how names are written."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from dbt_reverse_etl.sinks.base import SinkTask

OURS = "_dbt_reverse_etl_"

Wrong = tuple[str, str, str]  # what was found, what was expected, what to do next


@dataclass(frozen=True)
class Name:
    """A table, or a type, with its schema; None: that of the connection.

    Attributes:
        catalog: of the schema, where SQL has to name it.
    """

    schema: str | None
    name: str
    quote: str = '"'
    catalog: str | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def sql(self) -> str:
        """As SQL."""
        catalog = self.catalog if self.schema else None
        return ".".join(quoted(part, self.quote) for part in (catalog, self.schema, self.name) if part)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        kind: its type, for people.
        required: an insert that does not name it fails.
        nullable: it takes NULL.
        writable: it takes a value.
        declared: its type with length, precision and scale, for people, where `kind` has none of them.
    """

    name: str
    kind: str
    required: bool
    nullable: bool
    writable: bool
    declared: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Table:
    """An object that is there.

    Attributes:
        columns: by folded name.
        unique: the folded columns of each index that makes a key one row.
        names: of constraints, indexes and columns, which a reason may show.
        wrong, wrong_deletes: why no row can be written into it, e.g. a view, or deleted from it.
        rewrites: a trigger may store a row under another key.
        fills: folded columns that a trigger may give their value in a new row.
        looked_for_fills: there is such a trigger, and its function was searched for names of columns.
        cascades: folded columns that point at the same table, with ON DELETE CASCADE, SET NULL or SET DEFAULT.
        partitioned: its rows are in partitions.
    """

    columns: Mapping[str, Column]
    unique: Set[frozenset[str]]
    names: Set[str] = frozenset()
    wrong: Wrong | None = None
    wrong_deletes: Wrong | None = field(default=None, kw_only=True)
    rewrites: bool = field(default=False, kw_only=True)
    fills: Set[str] = field(default=frozenset(), kw_only=True)
    looked_for_fills: bool = field(default=False, kw_only=True)
    cascades: Set[str] = field(default=frozenset(), kw_only=True)
    partitioned: bool = field(default=False, kw_only=True)


def quoted(name: str, quote: str = '"') -> str:
    """An identifier as SQL."""
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


def soft_delete(task: SinkTask) -> str | None:
    """The column that a delete sets, or None."""
    return getattr(task.options, "soft_delete", None)
