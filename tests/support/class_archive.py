"""Makes the archive of the classes that Spark and Delta Lake load, which the JVMs of the tests map into memory: to load them is a quarter of a cold start.

A dynamic archive of OpenJDK 17 (JEP 350). A JVM to which it does not fit starts without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.dbt.project import Project
from tests.support.spark_session import CLASS_ARCHIVE, INTERPRETED, source_settings, spark_settings


def main() -> None:
    """The JVM writes it when it ends."""
    with tempfile.TemporaryDirectory() as home:
        # With every jar that a session of the tests asks for: Ivy cannot fetch them for two sessions at once.
        settings = spark_settings(Path(home)) | source_settings() | INTERPRETED
        settings["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={CLASS_ARCHIVE} -Xlog:disable"
        builder = SparkSession.builder.enableHiveSupport()
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sql("create table things using delta as select id, 'a' as value from range(10)")
        spark.sql(
            "merge into things t using (select id, 'b' as value from range(5, 15)) s on s.id = t.id "
            "when matched then update set * when not matched then insert *"
        )
        spark.sql("describe history things").collect()
        spark.table("things").groupBy("value").count().toArrow()
        capture_and_push(Project(Path(home) / "shop", spark, "archived"))
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def capture_and_push(project: Project) -> None:
    """What most tests do, and most of the classes that they load."""
    project.changelog("people_changelog", f"select * from {project.schema}.source")
    project.sync("crm_people", "people_changelog", mode="mirror", object="people")
    for query in ("select id, 'a' as name from range(9)", "select id, 'b' as name from range(2, 10)"):
        project.table("source", query)
        result = project.dbt("run")
        assert result.success, result.text


if __name__ == "__main__":
    CLASS_ARCHIVE.unlink(missing_ok=True)
    print("Making an archive of Spark's classes, once ...", file=sys.stderr)
    main()
