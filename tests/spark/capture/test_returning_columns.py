"""Columns of a model that go and come back: every view shows of each snapshot what the model had then."""

from __future__ import annotations

import os
import random

import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.columns import Columns, Row, Table, random_models, random_row, relation
from tests.support.dbt.operations import SETTINGS, Operations
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
RUNS, KEYS = 8, 8


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("how", ["hash", "except"])
def test_a_column_that_goes_and_comes_back_shows_in_each_snapshot_what_the_model_had_then(
    project: Project, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With the same type, a wider or another one, in any order."""
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    rng, operations, table = random.Random(SEED), Operations(project), Table()
    settings = {**SETTINGS, "compare": how}
    project.changelog(
        "things",
        f"select * from {project.schema}.source",
        settings={"compare": how, "on_column_change": "sync_all_columns"},
    )
    models = random_models(rng, RUNS)
    rows = [captured(rng, table, columns) for columns in models]
    told = f"seed {SEED}: {models}"
    project.table("source", rows[0])
    assert project.run().success
    steps = [{"op": "capture", "rows": f"({query})", "settings": settings} for query in rows[1:]]
    result = operations.run("play", model="things", steps=steps)
    assert result.success, f"{told}\n{result.text}"
    assert_shows(operations, table, told)
    assert "has had another type since" in operations.refused("rollback", to=1)


def captured(rng: random.Random, table: Table, columns: Columns) -> str:
    """The query of a model; the table follows."""
    image = {key: random_row(rng, columns) for key in range(KEYS) if rng.random() < 0.8}
    table.capture(columns, image)
    return relation(columns, image)


def assert_shows(operations: Operations, table: Table, told: str) -> None:
    """Every snapshot, the head, every change and every version."""
    project, name = operations.project, operations.table
    columns = ["id", *table.types]
    last = len(table.images) - 1
    assert project.rows(f"select max(_snapshot_id) as n from {name}")[0].n == last, told
    shown = [table.shown(image) for image in table.images]
    images = " union all ".join(
        f"select {n} as _n, {', '.join(columns)} from {render('as_of', name, snapshot=n, key='id')}"
        for n in range(1, last + 1)
    )
    found: list[dict[int, Row]] = [{} for _ in shown]
    for row in project.rows(images):
        found[row._n][row.id] = {column: row[column] for column in table.types}
    for n, image in enumerate(shown):
        assert found[n] == image, f"snapshot {n}, {told}"
    current = project.rows(f"select * from {render('current', name, key='id')}")
    assert {row.id: row.asDict() for row in current} == {key: {"id": key, **row} for key, row in shown[-1].items()}, (
        told
    )
    for row in project.rows(f"select * from {render('changes', name)}"):
        before = row._change in ("update_preimage", "delete")
        values = shown[row._snapshot_id - before].get(row.id)
        assert values == {column: row[column] for column in table.types}, f"{row}, {told}"
    held = [0] * (last + 1)
    for row in project.rows(f"select * from {render('scd2', name, key='id')}"):
        for n in range(row.valid_from_snapshot, row.valid_to_snapshot or last + 1):
            held[n] += 1
            assert shown[n].get(row.id) == {column: row[column] for column in table.types}, f"{n}, {row}, {told}"
    assert held == [len(image) for image in shown], told
