"""The session of Spark with which a push works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.warehouse.session import LOCAL, advice, cancel_jobs, connect, mark_jobs


def test_a_session_that_dbt_has_started_keeps_its_settings_in_whichever_thread_the_push_runs(
    spark: SparkSession,
) -> None:
    before = {name: spark.conf.get(name, "<undefined>") for name in LOCAL}
    assert before != LOCAL
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(connect, {}).result()
    assert {name: spark.conf.get(name, "<undefined>") for name in LOCAL} == before


def test_a_session_on_one_machine_is_told_which_of_its_settings_are_for_a_cluster(spark: SparkSession) -> None:
    assert 'spark.sql.codegen.cache.maxEntries: "1000" in server_side_parameters' in advice(spark)
    before = spark.conf.get("spark.databricks.delta.snapshotPartitions")
    assert "snapshotPartitions" not in advice(spark), "the test session has a value of its own"
    spark.conf.unset("spark.databricks.delta.snapshotPartitions")
    assert "snapshotPartitions" not in advice(spark), "that of its start holds"
    spark.conf.set("spark.databricks.delta.snapshotPartitions", before)


def test_a_setting_that_spares_time_outside_utc_is_advised_there_alone(spark: SparkSession) -> None:
    spark.conf.unset("spark.databricks.delta.allFilesInCrc.enabled")  # a test of before may have set it
    assert "allFilesInCrc" not in advice(spark)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert 'allFilesInCrc.enabled: "false"' in advice(spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.full
def test_a_new_session_keeps_microseconds_whatever_spark_defaults_has(tmp_path: Path) -> None:
    setting = "spark.sql.parquet.outputTimestampType"
    (tmp_path / "spark-defaults.conf").write_text(f"{setting} timestamp_millis\nspark.ui.enabled false\n")
    program = f"""
from dbt_reverse_etl.sinks.delta_log import sized_as
from dbt_reverse_etl.warehouse.session import connect
spark = connect({{}})
for one in (spark, sized_as(spark)):
    place = "times" + one.conf.get("{setting}")
    one.sql("select timestamp'2024-01-01 00:00:00.123456' as at").write.mode("overwrite").parquet(place)
    print("found:", one.read.parquet(place).first().at.microsecond)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("found: 123456") == 2, done.stdout


@pytest.mark.full
def test_a_new_session_on_one_machine_has_settings_for_it_but_for_what_spark_defaults_has(tmp_path: Path) -> None:
    """A profile names no master where spark-defaults.conf does."""
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 7\nspark.ui.enabled false\n")
    program = """
from dbt_reverse_etl.warehouse.session import LOCAL, connect
spark = connect({})
print("found:", *[spark.conf.get(name) for name in LOCAL])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "found: 7 2 false 1000" in done.stdout


SLOW = "select java_method('java.lang.Thread', 'sleep', id) from range(5000L, 5001L)"


def test_jobs_of_others_in_the_session_go_on_when_a_push_is_cancelled(spark: SparkSession) -> None:
    def marked() -> None:
        mark_jobs(spark, "dbt-reverse-etl test")
        spark.sql(SLOW).collect()

    tracker = spark.sparkContext.statusTracker()
    with ThreadPoolExecutor(1) as others, ThreadPoolExecutor(1) as ours:  # each in a thread of its own
        other, own = others.submit(lambda: spark.sql(SLOW).collect()), ours.submit(marked)
        until = time.monotonic() + 60
        while len(tracker.getActiveJobsIds()) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        cancel_jobs(spark, "dbt-reverse-etl test")
        with pytest.raises(Exception, match=r"(?i)cancel"):
            own.result(60)
        assert len(other.result(60)) == 1
