"""What the log of a Delta table says, asked of the JVM of this process."""

from __future__ import annotations

from typing import Any

import orjson
from py4j.java_gateway import JavaPackage
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

_EXPLICIT = "delta.identity.allowExplicitInsert"
_TAKEN_OVER = (
    "spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions", "spark.sql.parquet.outputTimestampType"
)  # fmt: skip
# No table, or another thing than a Delta table. Any other error may be an outage, after which the table is there.
_ABSENT = (
    "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST", "DELTA_NOT_A_DELTA_TABLE", "DELTA_NO_RELATION_TABLE", "DELTA_TABLE_ONLY_OPERATION",
    "DELTA_UNSUPPORTED_DESCRIBE_DETAIL_VIEW", "DELTA_OPERATION_ON_VIEW_NOT_ALLOWED", "EXPECT_TABLE_NOT_VIEW", "WRONG_COMMAND_FOR_OBJECT_TYPE",
)  # fmt: skip


def session() -> SparkSession:
    """The session of this process: that of dbt, or of the command."""
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def sized_as(known: SparkSession) -> SparkSession:
    """A new session, sized as the known one and with its times: by itself it has only the settings with which Spark was started."""
    made, unset = known.newSession(), "<undefined>"
    for name in _TAKEN_OVER:
        value = str(known.conf.get(name, unset))
        if value not in (unset, made.conf.get(name, unset)):
            made.conf.set(name, value)
    return made


def has_no_log(spark: SparkSession) -> bool:
    """The Delta of Databricks has other classes."""
    return isinstance(_delta_log(spark), JavaPackage)


def location_of(spark: SparkSession, name: str) -> str | None:
    """Where a Delta table is; None: there is none."""
    try:
        (detail,) = spark.sql(f"describe detail {name}").collect()
    except AnalysisException as error:
        if str(error.getCondition()).partition(".")[0] not in _ABSENT:
            raise
        return None
    return str(detail.location) if detail.format == "delta" else None


def properties_of(spark: SparkSession, name: str) -> dict[str, str]:
    """The properties of a Delta table, its features among them."""
    (detail,) = spark.sql(f"describe detail {name}").collect()
    return {**detail.properties, **{f"delta.feature.{feature}": "supported" for feature in detail.tableFeatures}}


def newest_version(spark: SparkSession, name: str, app: str) -> int | None:
    """The newest `txnVersion` of a `txnAppId`; None: it never committed, or there is no table."""
    location = location_of(spark, name)
    if location is None:
        return None
    found = _snapshot(spark, location).transactions().get(app)
    return int(found.get()) if found.isDefined() else None


def writable_columns(spark: SparkSession, location: str) -> list[str]:
    """Without those that Delta numbers itself: it refuses to be given one, even without rows."""
    return [column.name for column in _columns(spark, location) if "delta.identity.start" not in column.metadata]


def numbered(spark: SparkSession, location: str) -> dict[str, bool]:
    """The identity columns, in small letters, and whether Delta takes a value for a new row; it takes none for one that is there."""
    explicit = {column.name.casefold(): column.metadata.get(_EXPLICIT) for column in _columns(spark, location)}
    return {name: is_taken for name, is_taken in explicit.items() if is_taken is not None}


def _columns(spark: SparkSession, location: str) -> StructType:
    return StructType.fromJson(orjson.loads(_snapshot(spark, location).metadata().schemaString()))


def _snapshot(spark: SparkSession, location: str) -> Any:
    return _delta_log(spark).forTableWithSnapshot(spark._jsparkSession, location)._2()


def _delta_log(spark: SparkSession) -> Any:
    assert spark._jvm is not None  # noqa: S101  (not over Connect)
    return spark._jvm.org.apache.spark.sql.delta.DeltaLog
