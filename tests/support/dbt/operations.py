"""A changelog and the operations on its history, with a plain Python account of what every snapshot must show."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from dbt.adapters.spark.connections import SparkConnectionManager
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.project import Project, Result

Image = dict[int, str | None]
Step = dict[str, Any]
PLAY = """
{% macro play(model, steps) %}
    {%- for step in steps -%}
        {%- if step.op == 'capture' -%}
            {%- do capture_rows(model, step.rows, step.settings) -%}
        {%- else -%}
            {%- do reverse_etl[step.op](model=model, **step.args) -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}

{# What `dbt run` does, without the time that dbt takes around it; `settings`: those of a model that has any. #}
{% macro capture_rows(model, rows, settings=none) %}
    {%- set changelog = reverse_etl._opened_changelog('capture', model) -%}
    {%- if not changelog.head.frozen and settings -%}
        {%- do run_query('create or replace temporary view played as select * from ' ~ rows) -%}
        {%- set query = {'name': 'played', 'columns': reverse_etl._columns_of('played') | rejectattr('name', 'in', settings.only_captured) | list, 'types': {}, 'stored': false} -%}
        {%- set columns = reverse_etl._reconcile_columns(changelog.target, changelog.head, query.columns, settings) -%}
        {%- do reverse_etl._capture_model(changelog.target, changelog.head, columns, query, changelog.uuid, settings) -%}
    {%- elif not changelog.head.frozen -%}
        {%- do reverse_etl._capture_image(changelog, changelog.columns, rows, {'kind': 'capture'}) -%}
    {%- endif -%}
{% endmacro %}
"""
# As _changelog_settings gives them.
SETTINGS = {
    "key": ["id"], "compare": "hash", "on_bad_key": "fail", "on_column_change": "sync_all_columns",
    "capture": {"strategy": "compare"}, "label": None, "only_captured": [],
}  # fmt: skip
WRITES = ("create table", "begin declare", "insert", "merge", "drop table")


class Killed(BaseException):
    """Ends a run as SIGKILL does: no `except Exception` of dbt sees it."""


class Operations:
    """A project with one changelog, `things`; operations run with the manifest of its first run, which saves the parsing."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.table = f"{project.schema}.things"
        (project.folder / "macros").mkdir()
        (project.folder / "macros" / "play.sql").write_text(PLAY)
        project.changelog("things", f"select * from {project.schema}.source")

    def run(self, operation: str, **arguments: Any) -> Result:
        """`dbt run-operation`."""
        place = ["--project-dir", str(self.project.folder), "--profiles-dir", str(self.project.folder)]
        lines: list[str] = []
        manifest = dbtRunner().invoke(["parse", *place]).result if not hasattr(self, "_manifest") else self._manifest
        self._manifest = manifest
        runner = dbtRunner(manifest=manifest, callbacks=[lambda event: lines.append(event.info.msg)])
        found = runner.invoke(["run-operation", operation, "--args", json.dumps(arguments), *place])
        return Result(found.success, lines, found.exception)

    def done(self, operation: str, **arguments: Any) -> str:
        """What an operation on `things` that must succeed says."""
        result = self.run(operation, model="things", **arguments)
        assert result.success, result.text
        return next(line for line in result.lines if line.startswith(f"{operation} things: "))

    def refused(self, operation: str, **arguments: Any) -> str:
        """What an operation on `things` that must fail says; nothing is written."""
        before = self.project.rows(f"describe history {self.table} limit 1")[0].version
        result = self.run(operation, model="things", **arguments)
        assert not result.success
        assert self.project.rows(f"describe history {self.table} limit 1")[0].version == before
        return result.text

    def image(self, snapshot: int | None = None, **at: Any) -> set[tuple[Any, ...]]:
        """`current`, or `as_of`."""
        given = {"snapshot": snapshot, **at}
        view = (
            render("as_of", self.table, key="id", **given)
            if snapshot or at
            else render("current", self.table, key="id")
        )
        return {tuple(row) for row in self.project.rows(f"select * from {view}")}

    def kinds(self) -> dict[int, str]:
        """Snapshot id -> kind, of those that are kept."""
        return {
            row.snapshot_id: row.kind for row in self.project.rows(f"select * from {render('snapshots', self.table)}")
        }


@contextmanager
def killed_after(writes: int, words: tuple[str, ...] = WRITES) -> Iterator[None]:
    """The process ends right after that many statements that write, or that begin with other words."""
    real, seen = SparkConnectionManager.add_query, 0

    def add_query(self: Any, sql: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        answer = real(self, sql, *args, **kwargs)
        seen += sql.partition("*/")[2].strip().lower().startswith(words)
        if seen == writes:
            raise Killed
        return answer

    with patch.object(SparkConnectionManager, "add_query", add_query), suppress(Killed):
        yield
    assert seen == writes, f"only {seen} statements wrote"


def store_states(spark: SparkSession, table: str, states: Sequence[Image]) -> None:
    """The rows of the model in each of its states."""
    rows = [(number, key, value) for number, state in enumerate(states) for key, value in state.items()]
    columns = pa.table(dict(zip(("state", "id", "v"), map(pa.array, zip(*rows, strict=True)), strict=True)))
    spark.createDataFrame(columns).selectExpr("state", "cast(id as int) as id", "v").write.format("delta").saveAsTable(
        table
    )


@dataclass
class Account:
    """What the operations must have made, kept in plain Python.

    Attributes:
        images: by snapshot id; the first entry stands before any snapshot.
        full: snapshots with a full image that reading may begin with.
        saved: savepoints by name.
        since: changes after the newest full image.
        kept_from: everything below was pruned, but for the savepoints.
        pruned: snapshots that are gone.
    """

    images: list[Image] = field(default_factory=lambda: [{}])
    full: list[int] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    since: int = 0
    frozen: bool = False
    kept_from: int = 1
    pruned: set[int] = field(default_factory=set)

    @property
    def head(self) -> int:
        return len(self.images) - 1

    @property
    def kept(self) -> list[int]:
        return [snapshot for snapshot in range(1, self.head + 1) if snapshot not in self.pruned]

    def capture(self, image: Image) -> None:
        """A run of the model."""
        if not self.frozen and image != self.images[-1]:
            self._add(image)

    def savepoint(self, name: str) -> None:
        self._add(self.images[-1])
        self.saved[name] = self.head

    def checkpoint(self) -> None:
        if self.since:
            self._add(self.images[-1], full=True)

    def rollback(self, to: int) -> None:
        if not (self.frozen and self.images[to] == self.images[-1]):
            self._add(self.images[to])
            self.frozen = True

    def release(self, savepoint: str | None = None) -> None:
        if savepoint is None and self.frozen:
            self._add(self.images[-1])
            self.frozen = False
        elif savepoint in self.saved:
            self._add(self.images[-1])
            del self.saved[savepoint]

    def prune(self, keep: int) -> None:
        changed = max(n for n in range(1, self.head + 1) if n in self.full or self.images[n] != self.images[n - 1])
        base = max((full for full in self.full if full <= min(max(self.head - keep + 1, 1), changed)), default=1)
        self.pruned |= {n for n in range(1, base) if n not in self.saved.values()}
        self.kept_from = max(self.kept_from, base)

    def _add(self, image: Image, *, full: bool = False) -> None:
        before = self.images[-1]
        self.since += sum(
            (key in before) != (key in image) or before.get(key) != image.get(key)
            for key in before.keys() | image.keys()
        )
        self.images.append(dict(image))
        if self.head == 1 or full or self.since * 4 > len(image):
            self.full.append(self.head)
            self.since = 0

    def scd2(self) -> set[tuple[Any, ...]]:
        """id, v, valid_from_snapshot, valid_to_snapshot of what pruning left, walked image by image."""
        found = set()
        for key in set().union(*self.images):
            start, value = None, None
            for snapshot in range(self.kept_from, self.head + 1):
                now = self.images[snapshot]
                state = (now[key],) if key in now else None
                if state != value:
                    if value is not None:
                        found.add((key, *value, start, snapshot))
                    start, value = snapshot, state
            if value is not None:
                found.add((key, *value, start, None))
        return found


def random_states(rng: random.Random, number: int, keys: int = 60) -> list[Image]:
    """Few values, so that deletes, re-inserts and values that come back are frequent; from a trickle of changes to most rows."""
    state: Image = {}
    states = []
    for _ in range(number):
        state = dict(state)
        for key in rng.sample(range(keys), rng.choice([2, 5, 20, keys]) if states else keys):
            if rng.random() < 0.35:
                state.pop(key, None)
            else:
                state[key] = rng.choice([None, "", "a", "b"])
        states.append(state)
    return states


def random_script(
    rng: random.Random, states: list[Image], *, parts: int, number: int
) -> list[tuple[list[Step], Account]]:
    """Steps, and the account after them; such that in the end keys have died in a pruned range, above a savepoint."""
    while True:
        account, script = Account(), []
        account.capture(states[0])
        for _ in range(parts):
            steps = random_steps(rng, states, account, number=number)
            script.append((steps, deepcopy(account)))
        older = [snapshot for snapshot in account.saved.values() if snapshot < account.kept_from - 1]
        known = (account.images[n] for n in (account.kept_from - 1, account.kept_from, account.head))
        since = set().union(*known)
        if any(account.images[snapshot].keys() - since for snapshot in older):
            return script


def random_steps(rng: random.Random, states: list[Image], account: Account, *, number: int) -> list[Step]:
    """Operations in any order, then a prune; the account follows."""
    chosen = ["savepoint", "checkpoint", "rollback"]
    chosen += rng.choices(
        ["capture", "release", "give up", "prune", "rollback", "savepoint"], [10, 1, 2, 2, 1, 1], k=number - 4
    )
    rng.shuffle(chosen)
    return [_random_step(rng, states, account, name) for name in [*chosen, "prune"]]


def _random_step(rng: random.Random, states: list[Image], account: Account, name: str) -> Step:
    if name == "capture" and account.frozen and rng.random() < 0.8:
        name = "release"
    if name == "savepoint":
        account.savepoint(f"s{account.head}")
        return {"op": "savepoint", "args": {"name": f"s{account.head - 1}"}}
    if name == "rollback":
        saved, to = rng.choice([(None, n) for n in account.kept] + 3 * [*account.saved.items()])
        account.rollback(to)
        return {"op": "rollback", "args": {"savepoint": saved} if saved else {"to": to}}
    if name == "give up" and account.saved:
        saved = rng.choice([*account.saved])
        account.release(saved)
        return {"op": "release", "args": {"savepoint": saved}}
    if name == "prune":
        keep = rng.randint(1, 4)
        account.prune(keep)
        return {"op": "prune", "args": {"keep": keep}}
    if name in ("checkpoint", "release"):
        getattr(account, name)()
        return {"op": name, "args": {}}
    state = rng.randrange(len(states))
    account.capture(states[state])
    return {"op": "capture", "rows": f"(select id, v from {{states}} where state = {state})"}
