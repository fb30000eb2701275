"""In Spark: a push of changes from the executors into Postgres, the plan, the fence row, the waves and the ledger included."""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
from click.testing import CliRunner
from pyspark.sql import SparkSession

from dbt_reverse_etl.cli import cli
from tests.benchmarks.postgres import PostgresWork, by_hand
from tests.benchmarks.rows import payload
from tests.benchmarks.turns import fastest, report
from tests.support.dbt.project import Project
from tests.support.servers.postgres import new_database


def from_spark(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """Against the same changes as bytes that are ready; each round has a sync and a database of its own."""
    work = PostgresWork(rows)
    project = Project(home / "from_spark", spark, "bench_from_spark", quiet=True)
    databases = [new_database() for _ in range(rounds + 1)]
    project.destinations = {
        f"crm_{number}": {"type": "postgres", **database.settings()} for number, database in enumerate(databases)
    }
    for number, database in enumerate(databases):
        database.make(work.task)
        project.sync(f"people_{number}", "things", mode="mirror", object="people", destination=f"crm_{number}")
    before, after = (str(home / name) for name in ("before.parquet", "after.parquet"))
    pq.write_table(payload(work.before), before)
    pq.write_table(work.after.drop_columns("_event_id"), after)
    names = ", ".join(work.names)
    project.changelog("things", f"select {names} from parquet.`{before}`")
    assert project.run().success
    for database in databases:
        database.run("VACUUM ANALYZE people")
    project.changelog(
        "things",
        f"select {names} from parquet.`{before}` b left anti join parquet.`{after}` a on a.id = b.id "
        f"union all select {names} from parquet.`{after}` where _operation <> 'delete'",
    )
    with patch.dict(os.environ, DBT_REVERSE_ETL_PUSH="off"):
        assert project.run().success
    numbers = iter(range(len(databases)))

    def ours() -> float:
        number = next(numbers)
        databases[number].run("CHECKPOINT")
        seconds = _pushed(project, f"people_{number}")
        assert work.contents(databases[number], "people") == work.expected
        return seconds

    figures = fastest(rounds, {"raw": lambda: work.measure(lambda one: by_hand(one, work.ready)), "ours": ours})
    report(
        f"{rows} changes from Spark into Postgres / binary COPY of ready bytes by hand",
        figures["ours"] / figures["raw"],
        "<= 1.6",
    )


def _pushed(project: Project, sync: str) -> float:
    """Seconds from the sync's first step to its last."""
    here = Path.cwd()
    try:
        place = ["--project-dir", str(project.folder), "--profiles-dir", str(project.folder)]
        output = CliRunner().invoke(cli, ["push", "--select", sync, *place]).output
    finally:
        os.chdir(here)  # dbt has left it
    found = re.search(r" in ([\d.]+)s\]", output)
    assert found, output
    assert "0 failed" in output, output
    return float(found[1])
