"""Every capture strategy against the full compare: over random histories each captures the same changes."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.integration.project import Project

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
KEYS = 400
RUNS = 4
LATE = 4  # minutes by which a row may come late
COLUMNS = "id, value, at"

Row = tuple[str | None, int]  # value, minute of its last update


class Source:
    """A table with its update times, its change feed, a log of its keys and its changes as events; some come late, some twice."""

    def __init__(self, project: Project, rng: random.Random) -> None:
        self.project, self.rng, self.minute, self.sequence = project, rng, 0, 0
        self.live: dict[int, Row] = {}
        self._held: list[tuple[str, str]] = []
        sql = project.spark.sql
        feed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
        sql(
            f"create table {project.schema}.source (id bigint, value string, at timestamp, gone boolean) using delta {feed}"
        )
        sql(f"create table {project.schema}.log (number bigint, source_id bigint) using delta")
        sql(
            f"create table {project.schema}.events (id bigint, value string, at timestamp, op string, number bigint) using delta"
        )

    def change(self, keys: int) -> None:
        """Change some keys, each up to three times; what was held back of the run before comes now, too."""
        rows, log, events = {}, [], []
        for key in self.rng.sample(range(KEYS), keys):
            for _ in range(self.rng.randint(1, 3)):
                rows[key] = self._once(key, log, events)
        late = [pair for pair in zip(log, events, strict=True) if self.rng.random() < 0.2]
        now = [pair for pair in zip(log, events, strict=True) if pair not in late] + self._held
        self.rng.shuffle(now)
        now += self.rng.sample(now, min(3, len(now)))
        self._held = late
        schema = self.project.schema
        self.project.spark.sql(
            f"merge into {schema}.source s using (select * from values {', '.join(rows.values())} as v(id, value, at, gone)) v "
            "on s.id = v.id when matched then update set * when not matched then insert *"
        )
        self.project.spark.sql(f"insert into {schema}.log values {', '.join(entry for entry, _ in now)}")
        self.project.spark.sql(f"insert into {schema}.events values {', '.join(event for _, event in now)}")

    def settle(self) -> None:
        """Whatever was held back comes."""
        while self._held:
            self.change(1)

    def _once(self, key: int, log: list[str], events: list[str]) -> str:
        self.sequence += 1
        self.minute += 1
        gone = self.rng.random() < 0.3
        value = "null" if self.rng.random() < 0.2 else f"'{self.rng.choice('abc')}'"
        at = f"timestamp'2024-01-01' + interval {self.minute - self.rng.randint(0, LATE)} minute"
        log.append(f"({self.sequence}, {key})")
        operation = "D" if gone else self.rng.choice("IU")
        events.append(f"({key}, {value}, {at}, '{operation}', {self.sequence})")
        return f"({key}, {value}, {at}, {str(gone).lower()})"


def declare(project: Project, **capture: Any) -> None:
    source = f"{project.schema}.source"
    live = f"select {COLUMNS} from {source} where not gone"
    project.properties(
        "sources",
        {"sources": [{"name": "app", "schema": project.schema, "tables": [{"name": n} for n in ("source", "log")]}]},
    )
    project.changelog("by_compare", live)
    strategies: dict[str, tuple[str, dict[str, Any]]] = {
        "timestamp": (
            f"select {COLUMNS}, gone from {source}",
            {"updated_at": "at", "overlap": f"{LATE} minutes", "deleted": "gone"},
        ),
        "change_table": (
            "-- depends_on: {{ source('app', 'log') }}\n" + live,
            {"table": "app.log", "sequence": "number", "overlap": 100, "key": {"id": "source_id"}},
        ),
        "cdf": (
            f"select {COLUMNS} from {{{{ source('app', 'source') }}}} where not gone",
            {"table": "app.source"},
        ),
        "feed": (
            f"select {COLUMNS}, op, number from {project.schema}.events",
            {"operation": "op", "sequence": "number", "overlap": 100},
        ),
    }
    for name, (query, options) in strategies.items():
        settings = {"capture": {"strategy": name, **options, **({} if name == "feed" else capture)}}
        project.changelog(f"by_{name}", query, settings=settings)


IMAGE = (
    "select {columns} from (select *, row_number() over (partition by id order by _snapshot_id desc) as n from {{s}}.{name} "
    "where _change in ('insert', 'update_postimage', 'delete')) where n = 1 and _change <> 'delete' order by id"
)


def image(project: Project, name: str) -> list[Any]:
    return project.rows(IMAGE.format(columns=COLUMNS, name=name))


def test_every_strategy_captures_what_the_full_compare_captures_over_random_histories(project: Project) -> None:
    source = Source(project, random.Random(SEED))
    declare(project, full_above=1)
    source.change(KEYS // 2)
    for run in range(RUNS):
        source.change(20) if run < RUNS - 1 else source.settle()
        result = project.run()
        assert result.success, result.text
        truth = image(project, "by_compare")
        assert "full compare" not in str(result.messages)
        for name in ("timestamp", "cdf"):
            assert image(project, f"by_{name}") == truth, (SEED, run, name)
    for name in ("change_table", "feed"):
        assert image(project, f"by_{name}") == truth, (SEED, name)
