"""Columns that are added, dropped, widened and reordered: every way to compare captures the same changes, and the changelog holds the rows of the model."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.dbt.captures import Captures
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
KINDS = ("rows", "drop", "add", "rename", "widen", "drop")
RENAMED = "other"
RENAME = [
    "alter table {t} set tblproperties ('delta.columnMapping.mode' = 'name')",
    f"alter table {{t}} rename column b to {RENAMED}",
]
WIDER = {"int": "bigint", "float": "double", "decimal(5,2)": "decimal(9,3)"}
OPTIONAL = {"a": "string", "b": "string", "n": "int", "f": "float", "d": "decimal(5,2)"}
COLUMNS = ["at", *OPTIONAL]

Row = dict[str, Any]


class Source:
    """A table whose columns change between two captures."""

    def __init__(self, rng: random.Random, kinds: Sequence[str]) -> None:
        self.rng, self.kinds, self.step = rng, kinds, 0
        self.types = dict(OPTIONAL)
        self.present = COLUMNS[:]
        self.renamed: dict[str, str] = {}
        self.rows: dict[int, Row] = {}
        self.events: dict[int, Row] = {}

    def change(self) -> str:
        """Some rows, and in turn: columns that go, that come back, that get another name or a wider type; always in another order. Says which."""
        kind = self.kinds[self.step]
        self.step += 1
        if kind == "drop":
            optional = [name for name in self.present if name != "at"]
            self.present = ["at", *self.rng.sample(optional, len(optional) - 2)]
        elif kind == "add":
            self.present = COLUMNS[:]
        elif kind == "widen":
            self.types = {name: WIDER.get(type_, type_) for name, type_ in self.types.items()}
        elif kind == "rename":
            self.renamed = {"b": RENAMED}
        for row in [*self.rows.values(), *self.events.values()]:
            row.update({name: None for name in OPTIONAL if name not in self.present})
        if kind == "add":  # filled without another time, of which no event tells
            for row in self.rows.values():
                row.update({name: self.value(name) for name in OPTIONAL if row[name] is None})
        changed = self.rng.sample(range(8), 3 if self.rows else 8)
        for key in changed:
            self.rows[key] = {"at": self.step, **{name: self.value(name) for name in OPTIONAL}}
        if self.step > 1:
            del self.rows[self.rng.choice([*self.rows])]
        self.events |= {key: dict(self.rows[key]) for key in changed if key in self.rows}
        self.rng.shuffle(self.present)
        return kind

    def value(self, name: str) -> Any:
        if name not in self.present or self.rng.random() < 0.3:
            return None
        return self.rng.choice("pqr") if name in "ab" else self.rng.randrange(4) / (4 if name in "fd" else 1)

    def view(self, schema: str) -> str:
        """A statement that makes these the rows of the model."""
        rows = []
        for key, row in self.rows.items():
            columns = [(literal(row[name]), self.types.get(name, "int"), name) for name in self.present]
            values = [f"cast({value} as {type_}) as {self.renamed.get(name, name)}" for value, type_, name in columns]
            rows.append(f"select {', '.join([f'{key} as id', *values])}")
        return f"create or replace view {schema}.source as {' union all '.join(rows)}"


def literal(value: Any) -> str:
    return "null" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


@pytest.mark.guarantee("Capture")
@pytest.mark.full
def test_when_columns_come_and_go_or_get_wider_every_compare_captures_the_same_changes(project: Project) -> None:
    source, steps, expected, told = Source(random.Random(SEED), KINDS), [], [], []
    for _ in KINDS:
        kind = source.change()
        steps.append([source.view(project.schema), *(RENAME if kind == "rename" else [])])
        expected.append({key: tuple(row[name] for name in COLUMNS) for key, row in source.rows.items()})
        told.append({key: tuple(row[name] for name in COLUMNS) for key, row in source.events.items()})
    captures, sync = Captures(project), {"on_column_change": "sync_all_columns"}
    settings: dict[str, dict[str, Any]] = {
        "by_hash": {"compare": "hash"},
        "by_except": {"compare": "except"},
        "by_timestamp": {"capture": {"strategy": "timestamp", "updated_at": "at", "full_above": 1}},
        "by_feed": {"capture": {"strategy": "feed", "operation": "op", "sequence": "at"}},
    }
    for name, one in settings.items():
        of_it = [[statement.replace("{t}", f"{project.schema}.{name}") for statement in step] for step in steps]
        operation = ", 'u' as op" if name == "by_feed" else ""
        captures.changelog(name, f"select *{operation} from {project.schema}.source", of_it, one | sync)
    said = captures.run()
    columns = [source.renamed.get(name, name) for name in COLUMNS]
    assert said["by_except"] == said["by_hash"]
    for name in settings:
        for step, image in enumerate(captures.images(name, columns, said[name])):
            # A row that vanished is found by the next full compare; of a feed by none.
            seen = {key: row for key, row in image.items() if name != "by_timestamp" or key in expected[step]}
            assert seen == (told if name == "by_feed" else expected)[step], (SEED, name, step, said[name])
    names = f"_change, _snapshot_id, _row_hash, id, {', '.join(columns)}"
    changes = [sorted(project.rows(f"select {names} from {{s}}.{name}"), key=str) for name in ("by_hash", "by_except")]
    assert changes[0] == changes[1]


def test_types_that_spark_cuts_off_where_it_shows_them_are_read_whole_and_a_setting_of_the_session_stays(
    project: Project,
) -> None:
    many = ", ".join(f"'field_{number}', id + {number}" for number in range(60))
    project.changelog("people", f"select id, named_struct({many}) as s from range(3)")
    assert project.run().messages["people"] == "+3 ~0 -0, snapshot 1"
    project.spark.conf.set("spark.sql.debug.maxToStringFields", "500")
    try:
        project.changelog("people", f"select id, named_struct({many}) as s from range(4)")
        assert project.run().messages["people"] == "+1 ~0 -0, snapshot 2"
        assert project.spark.conf.get("spark.sql.debug.maxToStringFields") == "500"
    finally:
        project.spark.conf.unset("spark.sql.debug.maxToStringFields")
