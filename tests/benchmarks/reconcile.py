"""In Spark: what a reconcile of a table of which ten rows differ reads beside the pass that hashes every row."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from click.testing import CliRunner
from pyspark.sql import SparkSession

from dbt_reverse_etl.app import sync
from dbt_reverse_etl.app.reconcile import differences
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from tests.benchmarks.capture import COLUMNS
from tests.benchmarks.turns import report
from tests.support.dbt.project import Project

WRONG = [  # ten keys
    "update contacts set s = 'somebody else''s' where id in (7, 77, 777, 7777)",
    "delete from contacts where id in (8, 88, 888)",
    "update contacts set m = '0.00' where id in (9, 99, 999)",
]
DIFFERENT = {"missing": 3, "different": 7, "extra": 0, "foreign": 0}


def reconcile(spark: SparkSession, home: Path, rows: int) -> None:
    """`rows` of ten columns in SQLite."""
    project = Project(home / "reconcile", spark, "bench_reconcile", quiet=True)
    project.table("source", f"select {COLUMNS} from range({rows})")
    project.changelog("things", f"select * from {project.schema}.source")
    project.sync("to_sqlite", "things", mode="mirror")
    assert project.run().success
    with closing(sqlite3.connect(project.folder / "crm.db", isolation_level=None)) as connection:
        for statement in WRONG:
            connection.execute(statement)
    with counted_rows(spark) as (read, scanned):
        began = time.perf_counter()
        place = ["--project-dir", str(project.folder), "--profiles-dir", str(project.folder)]
        found = json.loads(CliRunner().invoke(cli, ["reconcile", "--json", *place]).stdout)[0]
        seconds = time.perf_counter() - began
    assert {name: found[name] for name in DIFFERENT} == DIFFERENT, found
    what, both = f"reconcile of {rows} rows in SQLite, 10 differ", rows + found["rows"]
    report(f"{what}: rows read of SQLite more than once, %", 100 * (sum(read) / found["rows"] - 1), "<= 1")
    report(f"{what}: rows of both sides that Spark compares more than once, %", 100 * (sum(scanned) / both - 1), "<= 1")
    report(f"{what}: seconds", seconds, "")


@contextmanager
def counted_rows(spark: SparkSession) -> Iterator[tuple[list[int], list[int]]]:
    """Of each table that the sink reads, and of each stage of the comparison that reads files."""
    read, scanned = list[int](), list[int]()
    read_all, here = SqliteSink.read, Path.cwd()

    def counted(self: SqliteSink, task: Any) -> Iterator[pa.Table]:
        for table in read_all(self, task) or ():
            read.append(table.num_rows)
            yield table

    def compared(*arguments: Any) -> Any:
        before = len(_stages(spark))
        found = differences(*arguments)
        scanned.extend(_stages(spark)[before:])
        return found

    with patch.object(SqliteSink, "read", counted), patch.object(sync, "differences", compared):
        yield read, scanned
    os.chdir(here)  # dbt has left it


def _stages(spark: SparkSession) -> list[int]:
    """In the order of their ids."""
    context: Any = spark.sparkContext
    java, no_quantiles = context._jvm, context._gateway.new_array(context._jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, java.java.util.ArrayList())
    found = [(stages.apply(n).stageId(), stages.apply(n).inputRecords()) for n in range(stages.size())]
    return [rows for _, rows in sorted(found)]
