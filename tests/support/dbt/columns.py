"""Histories of a model whose columns come, go and change their type, and what its changelog must show, in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, str]
Row = dict[str, Any]
WIDER = {("int", "bigint")}
TYPES = ["int", "bigint", "string"]
# A column that was dropped came back with these.
RETURNS = {"same": lambda old, new: old == new, "wider": lambda old, new: (old, new) in WIDER}


@dataclass
class Table:
    """A changelog by the columns of its table.

    Attributes:
        images: by snapshot id, key -> values; the first entry stands before any snapshot.
        types: of each column of the table, former ones included.
        model: the columns of the newest snapshot.
        came: what has happened to columns.
    """

    images: list[dict[int, Row]] = field(default_factory=lambda: [{}])
    types: Columns = field(default_factory=dict)
    model: Columns = field(default_factory=dict)
    came: set[str] = field(default_factory=set)

    def capture(self, columns: Columns, rows: dict[int, Row]) -> None:
        """The image that a model gives."""
        self._take(columns)
        self._add(columns, {key: {**dict.fromkeys(self.types), **row} for key, row in rows.items()})

    def _take(self, columns: Columns) -> None:
        """A column that comes back with a type that its values do not fit begins empty; they stay under another name."""
        for name, kind in columns.items():
            old = self.types.get(name, kind)
            if name not in self.model and name in self.types:
                self.came.add(next((word for word, fits in RETURNS.items() if fits(old, kind)), "other"))
            if old != kind and (old, kind) not in WIDER:
                former = f"{name}_before_{len(self.images)}"
                self.types[former] = self.types[name]
                for row in (row for image in self.images for row in image.values() if name in row):
                    row[former] = row.pop(name)
            self.types[name] = kind

    def _add(self, columns: Columns, image: dict[int, Row]) -> None:
        gone = bool(self.model.keys() - columns.keys())
        widened = any(self.model.get(name, kind) != kind for name, kind in columns.items())
        if gone or widened or self.shown(image) != self.shown(self.images[-1]):
            self.images.append(image)
            self.model = columns

    def shown(self, image: dict[int, Row]) -> dict[int, Row]:
        """The rows with all columns of the table: one that was not there then is NULL."""
        return {key: {**dict.fromkeys(self.types), **row} for key, row in image.items()}


def random_columns(rng: random.Random, before: Columns) -> Columns:
    """Some of two columns; only one that is gone comes back with a type that it cannot be widened to, and none widens when one goes."""
    columns = {}
    for name in ("a", "b"):
        if rng.random() < 0.6:
            old = before.get(name)
            fitting = [kind for kind in TYPES if old is None or kind == old or (old, kind) in WIDER]
            columns[name] = rng.choice(fitting)
    if before.keys() - columns.keys():
        columns.update({name: before[name] for name in columns.keys() & before.keys()})
    return columns


def random_row(rng: random.Random, columns: Columns) -> Row:
    """Few values, NULL among them."""
    row = {name: rng.choice([None, 0, 1, 2]) for name in columns}
    return {
        name: str(value) if columns[name] == "string" and value is not None else value for name, value in row.items()
    }


def relation(columns: Columns, rows: dict[int, Row]) -> str:
    """The rows as a query of Spark."""
    typed = ", ".join(
        ["cast(id as int) as id", *(f"cast({name} as {kind}) as {name}" for name, kind in columns.items())]
    )
    listed = [(key, *map(row.get, columns)) for key, row in rows.items()] or [(None, *columns)]
    values = ", ".join(f"({', '.join(map(literal, row))})" for row in listed)
    return f"select {typed} from values {values} as t ({', '.join(['id', *columns])}) where id is not null"


def literal(value: object) -> str:
    """A number, a text or NULL as SQL."""
    return "null" if value is None else repr(value)


def random_models(rng: random.Random, number: int) -> list[Columns]:
    """The columns of the model run by run, such that a dropped one came back with the same type, with a wider and with another one."""
    while True:
        table, models = Table(), [{"a": "int", "b": "int"}]
        for run in range(1, number):
            table.capture(models[-1], {0: dict.fromkeys(models[-1], run)})
            models.append(random_columns(rng, table.model))
        table.capture(models[-1], {})
        if table.came == {"same", "wider", "other"}:
            return models
