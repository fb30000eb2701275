"""In Spark: what each capture strategy spends on finding 0.1 % of changed rows, against the full compare of the same run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dbt.adapters.spark.session import Cursor
from pyspark.sql import SparkSession

from tests.benchmarks.capture import COLUMNS
from tests.benchmarks.turns import report
from tests.support.dbt.files_read import files_read
from tests.support.dbt.project import Project

# The statements that find what changed, and what stood there before: positions, candidates, diff, old images. The commit is the same for all.
FINDING = ("__candidates_", "__uncommitted_", "describe history", "show tblproperties", "max(`number`)", "unix_micros(")
FILES = 12


def strategies(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """`rows` of ten columns; each round changes another 0.1 % of them: spread over all files, and side by side in a source in the order of its keys."""
    share = rows // 1000
    _compared(Project(home / "strategies", spark, "bench_strategies", quiet=True), "", "id % 1000 = {0}", rows, rounds)
    _compared(
        Project(home / "side_by_side", spark, "bench_side_by_side", quiet=True),
        ", changes side by side, source clustered by key",
        f"id between {rows // 2} + {{0}} * {share} and {rows // 2} + {{0}} * {share} + {share - 1}",
        rows,
        rounds,
    )


def _compared(project: Project, layout: str, changed: str, rows: int, rounds: int) -> None:
    schema = project.schema
    project.spark.sql(
        f"create table {schema}.source using delta tblproperties ('delta.enableChangeDataFeed' = 'true') as "
        f"select {COLUMNS}, cast(id as bigint) as number, 'I' as op from range(0, {rows}, 1, {FILES})"
    )
    project.spark.sql(f"create table {schema}.log (id bigint, number bigint) using delta")
    project.spark.sql(f"create table {schema}.events using delta as select * from {schema}.source")
    source = {"name": "app", "schema": schema, "tables": [{"name": "source"}, {"name": "log"}]}
    project.properties("sources", {"sources": [source]})
    read = "select * except (number, op) from {{ source('app', 'source') }}"
    project.changelog("by_compare", read)
    for name, query, options in [
        ("timestamp", "select * from {{ source('app', 'source') }}", {"updated_at": "number"}),
        ("change_table", "-- depends_on: {{ source('app', 'log') }}\n" + read, {"table": "app.log", "sequence": "number", "overlap": 0}),
        ("cdf", read, {"table": "app.source"}),
        ("feed", f"select * from {schema}.events", {"operation": "op", "sequence": "number"}),
    ]:  # fmt: skip
        project.changelog(f"by_{name}", query, settings={"capture": {"strategy": name, **options}})
    assert project.run().success

    def captured(number: int) -> Iterable[str]:
        _change(project, changed.format(number), rows * (number + 2))
        messages = project.run().messages
        assert set(messages.values()) == {f"+0 ~{rows // 1000} -0, snapshot {number + 2}"}, messages
        return messages

    with files_read(project.spark) as read_of:  # which takes time; and the first round warms up
        captured(0)
    best: dict[str, float] = {}
    for number in range(1, rounds + 1):
        with statements() as taken:
            names = captured(number)
        for name in names:
            seconds = sum(took for text, took in taken if f"{name}__" in text or _asks(name, text))
            best[name] = min(seconds, best.get(name, seconds))
    for name in ("by_timestamp", "by_change_table", "by_cdf", "by_feed"):
        files = ", ".join(
            f"{some} of {every} files of {table}" for table, (some, every) in read_of[f"{name}__uncommitted"].items()
        )
        report(
            f"{name[3:]}: finding 0.1 % of changed rows{layout} / full compare ({files})",
            best[name] / best["by_compare"],
            "<= 0.35" if name == "by_feed" or layout else "<= 0.55",
        )


def _change(project: Project, where: str, sequence: int) -> None:
    schema = project.schema
    changed = f"select * except (number, i), i + 1 as i, {sequence} + id as number from {schema}.source where {where}"
    project.table("changed", changed)
    project.spark.sql(
        f"merge into {schema}.source s using {schema}.changed c on s.id = c.id when matched then update set *"
    )
    project.spark.sql(f"insert into {schema}.log select id, number from {schema}.changed")
    project.spark.sql(f"insert into {schema}.events by name select * from {schema}.changed")
    # Who reads a new version first loads the state of its table: here none of those that are compared.
    for table in ("source", "log", "events"):
        project.spark.table(f"{schema}.{table}").agg({"id": "max"}).collect()


def _asks(name: str, text: str) -> bool:
    """Questions about the inputs, which do not name the changelog."""
    return {
        "by_cdf": text.startswith(("describe history", "show tblproperties")) and "by_" not in text,
        "by_change_table": "max(`number`)" in text and "log" in text and "__" not in text,
    }.get(name, False)


@contextmanager
def statements() -> Iterator[list[tuple[str, float]]]:
    """The statements that find changes, with their seconds; a query is carried out when its rows are fetched."""
    taken: list[tuple[str, float]] = []
    execute, fetchall = Cursor.execute, Cursor.fetchall

    def timed(cursor: Cursor, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        text = cursor.timed_sql  # type: ignore[attr-defined]
        if any(part in text for part in FINDING) and "txnAppId" not in text and "drop table" not in text:
            taken.append((text, time.perf_counter() - began))
        return result

    def timed_execute(self: Cursor, sql: str, *arguments: Any) -> None:
        self.timed_sql = re.sub(r"^\s*/\*.*?\*/\s*", "", sql, flags=re.DOTALL)  # type: ignore[attr-defined]
        timed(self, lambda: execute(self, sql, *arguments))

    with (
        patch.object(Cursor, "execute", timed_execute),
        patch.object(Cursor, "fetchall", lambda self: timed(self, lambda: fetchall(self))),
    ):
        yield taken


def against_dbt_snapshot(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """The same change of 1 % of the rows, captured by a changelog and by dbt's own snapshot, strategy `check`."""
    project = Project(home / "snapshot", spark, "bench_snapshot", quiet=True)
    project.table("source", f"select {COLUMNS} from range({rows})")
    tables = [{"name": "source"}]
    project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
    project.changelog("things", "select * from {{ source('app', 'source') }}")
    check = {"unique_key": "id", "strategy": "check", "check_cols": "all", "hard_deletes": "invalidate"}
    snapshot = {"name": "checked", "relation": "source('app', 'source')", "config": {**check, "file_format": "delta"}}
    project.properties("checked", {"snapshots": [snapshot]})
    best: dict[str, float] = {}
    for number in range(rounds + 2):
        for command in (("run", "--select", "things"), ("snapshot",)):
            result = project.dbt(*command)
            assert result.success, result.text
            if number > 1:  # the first makes the tables, the second warms up
                for name, seconds in result.seconds.items():
                    best[name] = min(seconds, best.get(name, seconds))
        project.spark.sql(f"update {project.schema}.source set i = i + 1 where id % 100 = {number}")
    report("dbt snapshot (check) / capture of a changelog, 1 % changed", best["checked"] / best["things"], ">= 3")
