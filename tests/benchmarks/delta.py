"""A push into a Delta table against a plain MERGE of the same changes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.delta import DeltaSettings, DeltaSink
from dbt_reverse_etl.sinks.delta_statements import merge
from tests.benchmarks.capture import COLUMNS
from tests.benchmarks.turns import fastest, report


def delta(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """One row of a hundred changes: 45/45/10 updates, inserts, deletes."""
    changes = (
        f"select {COLUMNS}, case when id % 1000 < 45 then 'update' when id % 1000 < 90 then 'insert' else 'delete' end as _operation, "
        f"'' as _event_id from (select if(n % 1000 < 45 or n % 1000 >= 90, n * 100, {rows} + n) as id from range({rows // 100}) as t (n))"
    )
    changed = spark.sql(changes).persist()
    changed.count()
    changed.createOrReplaceTempView("changed")
    schema = spark.sql(f"select {COLUMNS} from range(1)").toArrow().schema
    task = SinkTask("bench", "bench", 1, "ours", Mode.MIRROR, ("id",), schema)
    for name in ("plain", "ours"):
        spark.sql(f"create table delta.`{home}/lake/{name}` using delta as select {COLUMNS} from range({rows})")
    sink = DeltaSink(DeltaSettings(path=str(home / "lake")))
    sink.open(task)

    def ours() -> None:
        assert not sink.push(changed, "claim").results

    def plain() -> None:
        spark.sql(merge(f"delta.`{home}/lake/plain`", "changed", task)).collect()

    best = fastest(rounds + 1, {"ours": ours, "plain": plain})
    report("delta: a push / a plain MERGE of the same changes", best["ours"] / best["plain"], "<= 1.15")
