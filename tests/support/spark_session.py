"""The Spark session of the tests: one per pytest process, in a directory of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.support import ROOT
from tests.support.dbt.project import Project
from tests.support.servers.maven import jars

JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
# A driver that makes many plans: a young generation in which they die.
HEAP = "-Xms1500m -Xmn700m"
# The metastore of a test need not outlive a power cut.
DERBY = "-Dderby.system.durability=test"
# Spark keeps the story of each query for its page, which nobody opens here.
NO_PAGE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.ui.explainMode": "simple",
}
# Of this environment: `make test` makes it, see tests/support/class_archive.py.
CLASS_ARCHIVE = Path(sys.prefix) / "classes.jsa"
MASTER = os.environ.get("TEST_SPARK_MASTER", "local[2]")
# Spark's workers find the data source for Excel there.
EXCEL = str(ROOT / "examples" / "excel")


def delta_lake() -> str:
    """The jar for the versions that are installed: since Delta Lake 4.1 its name says for which Spark it is."""
    delta, spark = version("delta-spark"), ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark{'' if delta.startswith('4.0.') else f'_{spark}'}_2.13:{delta}"


def spark_settings(home: Path) -> dict[str, str]:
    """The settings of a small local session with Delta whose warehouse, metastore and logs stay below `home`."""
    archive = f' "-XX:SharedArchiveFile={CLASS_ARCHIVE}"' if CLASS_ARCHIVE.exists() else ""
    return {
        "spark.master": MASTER,
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": f"{JVM} {HEAP}{archive} {DERBY} -Dderby.system.home={home / 'derby'}",
        "spark.executor.extraJavaOptions": JVM,
        "spark.jars.packages": delta_lake(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.local.dir": str(home / "local"),
        "spark.log.level": "ERROR",
        **NO_PAGE,
    }


# Generating and compiling code costs a quarter of a test with a few rows, a second task a tenth.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.shuffle.partitions": "3",
}


def source_settings() -> dict[str, str]:
    """Spark's sources for Kafka and Postgres, for a driver that is the executor too: `spark.jars` keeps the packages from other executors.

    The token provider is for delegation tokens alone, and not every mirror has the newest one.
    """
    token_provider = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")
    return {
        "spark.jars.packages": f"{delta_lake()},org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__},org.postgresql:postgresql:42.7.8",
        "spark.jars.excludes": ":".join(token_provider),
        "spark.jars": ",".join(jars(*token_provider, "4.1.0-preview1", "-notransitive")),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Hive support, because dbt-spark's session method asks for it and must get this very session."""
    builder = SparkSession.builder.enableHiveSupport()
    sources = source_settings() if MASTER.startswith("local[") else {}
    settings = spark_settings(tmp_path_factory.mktemp("spark")) | sources | INTERPRETED
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as jvm:
        jvm.setenv("PYTHONPATH", EXCEL, prepend=os.pathsep)
        jvm.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
    # Whoever looks for installed packages reads each of them as an archive.
    sys.path[:] = [place for place in sys.path if not place.endswith(".jar")]
    # As where nobody has told Spark's Python: that is what users start from.
    session.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", "python3")
    yield session
    session.stop()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Generated code, as users have it; for tests with many rows."""
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture
def project(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    """A dbt project and a schema of its own for one test."""
    schema = re.sub(r"\W+", "_", request.node.name)[:60].strip("_") + f"_{abs(hash(str(tmp_path))) % 10**6}"
    return Project(tmp_path / "shop", spark, schema)
