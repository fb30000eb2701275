"""What a piece of work costs besides seconds: bytes that Spark shuffles, files that it reads, commits, and the memory that the driver keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

SETTINGS = {"spark.sql.ui.retainedExecutions": "5000"}  # what `files` is read from


@dataclass
class Cost:
    """Of one piece of work.

    Attributes:
        seconds: by the clock.
        shuffled: bytes written for exchanges, by all executors.
        files: read by scans, those of Delta's logs included.
        commits: to all Delta tables of the warehouse.
        heap: bytes that the driver's JVM still needs afterwards.
    """

    seconds: float = 0.0
    shuffled: int = 0
    files: int = 0
    commits: int = 0
    heap: int = 0


@contextmanager
def metered(spark: SparkSession, warehouse: Path) -> Iterator[Cost]:
    """The cost stands when the block has ended."""
    cost, executions = Cost(), _executions(spark)
    commits, shuffled, began = _commits(warehouse), _shuffled(spark), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    cost.shuffled = _shuffled(spark) - shuffled
    cost.commits = _commits(warehouse) - commits
    cost.files = sum(_files(spark, number) for number in _executions(spark) - executions)
    cost.heap = _heap(spark)


def _commits(warehouse: Path) -> int:
    return sum(1 for _ in warehouse.rglob("_delta_log/*.json"))


def _shuffled(spark: SparkSession) -> int:
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(n).totalShuffleWrite() for n in range(executors.size()))


def _store(spark: SparkSession) -> Any:
    return spark._jsparkSession.sharedState().statusStore()


def _executions(spark: SparkSession) -> set[int]:
    found = _store(spark).executionsList()
    return {found.apply(n).executionId() for n in range(found.size())}


def _files(spark: SparkSession, execution: int) -> int:
    store = _store(spark)
    metrics, values = store.execution(execution).get().metrics(), store.executionMetrics(execution)
    asked = (metrics.apply(n) for n in range(metrics.size()))
    told = (values.get(one.accumulatorId()) for one in asked if one.name() == "number of files read")
    return sum(int(one.get().replace(",", "")) for one in told if one.isDefined())


def _heap(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm
    jvm.java.lang.System.gc()
    return int(jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())
