"""The session of Spark in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.warehouse.zone import zone_of

# For a session on one machine. Delta Lake loads the state of a table with 50 tasks, and one capture has more parts than Spark keeps compiled.
# Outside UTC Delta loads that state once more after each commit, to check a list of files that it keeps beside it.
_CHECKED_LIST = "spark.databricks.delta.allFilesInCrc.enabled"
_OF_A_SESSION = {
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    _CHECKED_LIST: "false",
}
_OF_A_START = {"spark.sql.codegen.cache.maxEntries": "1000"}
LOCAL = _OF_A_SESSION | _OF_A_START
_WRITTEN = "spark.sql.parquet.outputTimestampType"


@apart
def connect(parameters: Mapping[str, str]) -> SparkSession:
    """The session of a dbt profile of `method: session`; like dbt-spark, with ANSI off, or casts would differ.

    Raises:
        ReverseEtlError: there is no Java that starts it.
    """
    builder = SparkSession.builder.enableHiveSupport()
    is_first = not _has_session()
    may_be_local = "spark.remote" not in parameters and "SPARK_REMOTE" not in os.environ
    defaults = _OF_A_START if is_first and may_be_local else {}
    # What a push or reconcile writes would lose microseconds. A session of dbt is the user's: its captures refuse the setting.
    kept = {name: value for name, value in parameters.items() if name != _WRITTEN or not _cuts(value)}
    for name, value in {**defaults, **kept, "spark.sql.ansi.enabled": "false"}.items():
        builder = builder.config(name, value)
    spark = _started(builder)
    # A session that dbt has started keeps its settings; of a new one, spark-defaults.conf may name the master and have them.
    if is_first and _is_local(spark):
        for name, value in _OF_A_SESSION.items():
            if _is_unset(spark, name):
                spark.conf.set(name, value)
    if is_first and _cuts(spark.conf.get(_WRITTEN)):
        spark.conf.set(_WRITTEN, "TIMESTAMP_MICROS")
    return spark


def _cuts(written: object) -> bool:
    return str(written).upper() == "TIMESTAMP_MILLIS"


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        next_step = "install it and set JAVA_HOME, or correct what Java's own lines above name"
        raise ReverseEtlError(Problem("Spark", "no Java that starts it", "Java 17 or 21", next_step)) from None


@apart
def advice(spark: SparkSession) -> str:
    """One line for a session on one machine that works with Spark's settings for a cluster; else empty."""
    if not _is_local(spark):
        return ""
    of_use = {name: value for name, value in LOCAL.items() if name != _CHECKED_LIST or not _is_in_utc(spark)}
    missing = [f'{name}: "{value}"' for name, value in of_use.items() if _is_unset(spark, name)]
    if not missing:
        return ""
    return f"Small runs on one machine are faster with {', '.join(missing)} in server_side_parameters: docs/clusters.md"


def _is_local(spark: SparkSession) -> bool:
    return not is_remote() and (spark.sparkContext.master or "").startswith("local")


def _is_in_utc(spark: SparkSession) -> bool:
    """Of a session in this process: itself, and its Java."""
    assert spark._jvm is not None  # noqa: S101  (not over Connect)
    of_java = spark._jvm.java.util.TimeZone.getDefault().getID()
    return zone_of(spark) == "UTC" and of_java in ("UTC", "Etc/UTC", "GMT")


def _is_unset(spark: SparkSession, name: str) -> bool:
    unset = "<undefined>"  # Spark checks any other default against the type of the setting
    return spark.conf.get(name, unset) == spark.sparkContext.getConf().get(name, unset) == unset


def _has_session() -> bool:
    """Whether any thread of this process has started one."""
    try:
        SparkSession.active()
    except PySparkRuntimeError:
        return False
    return True


def mark_jobs(spark: SparkSession, tag: str) -> None:
    """Let `cancel_jobs` end what this thread asks of Spark from now on."""
    if is_remote():
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """End the queries with this mark that are under way; others of the session, as of a notebook, go on."""
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def ansi_off(spark: SparkSession) -> AbstractContextManager[None]:
    """As in every session of `connect`, in one that belongs to somebody else."""
    return _set(spark, "spark.sql.ansi.enabled", "false")


@contextmanager
def uncompressed_cache(spark: SparkSession) -> Iterator[None]:
    """The rows of a push are kept for as long as it takes: to compress them costs as much as to find and sort them."""
    with ExitStack() as stack:
        with suppress(Exception):  # where the session does not allow it, the push is only slower
            stack.enter_context(_set(spark, "spark.sql.inMemoryColumnarStorage.compressed", "false"))
        yield


@contextmanager
def _set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # a session that has ended; what became of the pushes is still to be reported
            spark.conf.set(name, before)
