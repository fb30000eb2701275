"""A changelog of 200 snapshots: what the diff, range reads, `as_of` and one key's history cost, before and after `maintain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from tests.benchmarks.capture import COLUMNS, rendered_diff
from tests.benchmarks.turns import fastest, report
from tests.support.dbt.project import Project

SHORT, LONG = 10, 200
EVERY = 100  # each snapshot changes one row of so many, another one each time
FILE = 2 * 1024 * 1024  # of a compacted file, in proportion to the small table


def history(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """Bounded by live rows, whatever the number of snapshots; files that a question reads."""
    short, long = (changelog_of(spark, home, rows, snapshots) for snapshots in (SHORT, LONG))
    diffs = fastest(rounds, {"short": _diff(short, SHORT), "long": _diff(long, LONG)})
    report(f"diff of the {LONG}th capture / diff of the {SHORT}th", diffs["long"] / diffs["short"], "<= 1.5")

    table = f"{long.schema}.things"
    asked = {
        "changes of the last five snapshots": f"select * from {render('changes', table, LONG - 5, LONG)}",
        "as_of a snapshot in the middle": f"select * from {render('as_of', table, snapshot=LONG // 2, key='id')}",
        "history of one key": f"select * from {render('scd2', table, key='id')} where id = {rows // 2}",
    }
    before = {name: _files(spark, query) for name, query in asked.items()}
    all_before = _all_files(spark, table)
    slow = fastest(rounds, {name: _read(spark, query) for name, query in asked.items()})
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", FILE)
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", 2)
    maintained = long.dbt("run-operation", "maintain", "--args", "{model: things}")
    assert maintained.success, maintained.text
    quick = fastest(rounds, {name: _read(spark, query) for name, query in asked.items()})
    for name, query in asked.items():
        files = (
            f"{before[name]} of {all_before} files, after maintain {_files(spark, query)} of {_all_files(spark, table)}"
        )
        report(f"{name}: {files}; time after / before", quick[name] / slow[name], "<= 1.5")


def changelog_of(spark: SparkSession, home: Path, rows: int, snapshots: int) -> Project:
    """The first snapshot is captured; the others are written in one go, as captures would have written them."""
    project = Project(home / f"history_{snapshots}", spark, f"bench_history_{snapshots}", quiet=True)
    project.table("source", f"select {row('1')} from range({rows})")
    project.changelog("things", f"select * from {project.schema}.source")
    assert project.run().success
    project.table("changed", f"select {row_at(snapshots + 1)} from range({rows})")
    columns = [
        {"name": f.name, "type": f.dataType.simpleString()} for f in spark.table(f"{project.schema}.source").schema
    ]
    row_hash = render("_hash", [{**column, "expression": column["name"]} for column in columns])
    full = [n for n in range(2, snapshots + 1) if _base(n) == n]
    written = " union all ".join(
        [
            f"select 'update_preimage' as _change, n as _snapshot_id, {row(_last_change('id', 'n - 1'))} from {_changed(rows, snapshots)}",
            f"select 'update_postimage', n, {row('n')} from {_changed(rows, snapshots)}",
            *(f"select 'checkpoint', {n}, {row_at(n)} from range({rows})" for n in full),
        ]
    )
    header = spark.table(f"{project.schema}.things").schema["_header"].dataType.simpleString()
    heads = ", ".join(f"({n}L, '{text}')" for n, text in _headers(project, rows, snapshots).items())
    names = ", ".join(column["name"] for column in columns)
    empty = ", ".join(f"cast(null as {column['type']})" for column in columns)
    spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", "false")
    frame = spark.sql(
        f"select _change, cast(_snapshot_id as bigint) as _snapshot_id, current_timestamp() as _captured_at, {row_hash} as _row_hash, "
        f"cast(null as {header}) as _header, {names} from ({written}) union all "
        f"select 'snapshot', n, current_timestamp(), null, from_json(header, '{header}'), {empty} from values {heads} as t (n, header)"
    )
    frame.repartitionByRange(snapshots - 1, "_snapshot_id").write.format("delta").mode("append").saveAsTable(
        f"{project.schema}.things"
    )
    spark.conf.unset("spark.databricks.delta.optimizeWrite.enabled")
    return project


def _headers(project: Project, rows: int, snapshots: int) -> dict[int, str]:
    """Those of the later snapshots, as JSON: the first header, with the fields that change at each capture."""
    first = json.loads(project.rows("select to_json(_header) from {s}.things where _change = 'snapshot'")[0][0])
    changes = rows // EVERY
    return {
        n: json.dumps(
            {
                **first,
                "capture_uuid": str(uuid4()),
                "base": _base(n),
                "since_base": (n - _base(n)) * changes,
                "inserts": 0,
                "updates": changes,
                "changed": n,
            }
        )
        for n in range(2, snapshots + 1)
    }


def row(changed: str) -> str:
    """All columns of row `id`; `changed` is the value of the one that changes."""
    return COLUMNS.replace("cast(id % 1000 as int) as i", f"cast({changed} as int) as i")


def row_at(snapshot: int) -> str:
    """As it is in that snapshot."""
    return row(_last_change("id", snapshot))


def _last_change(key: str, at: int | str) -> str:
    """Row `key` changes at each snapshot n with (key + n) % EVERY = 0."""
    return f"if({at} - pmod({key} + {at}, {EVERY}) >= 2, {at} - pmod({key} + {at}, {EVERY}), 1)"


def _changed(rows: int, snapshots: int) -> str:
    return f"(select id, n from range({rows}) lateral view explode(sequence(2, {snapshots})) as n where pmod(id + n, {EVERY}) = 0)"


def _base(snapshot: int) -> int:
    """A full image belongs to the snapshot with which the changes exceed a quarter of the rows."""
    every = EVERY // 4 + 1
    return 1 + (snapshot - 1) // every * every


def _diff(project: Project, head: int) -> Callable[[], None]:
    query = rendered_diff(project, "hash", "changed", base=_base(head), head=head)
    return _read(project.spark, query)


def _read(spark: SparkSession, query: str) -> Callable[[], None]:
    return lambda: spark.sql(query).write.format("noop").mode("overwrite").save()


def _files(spark: SparkSession, query: str) -> int:
    return len(spark.sql(query).inputFiles())


def _all_files(spark: SparkSession, table: str) -> int:
    return int(spark.sql(f"describe detail {table}").collect()[0].numFiles)
