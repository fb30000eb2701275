"""The session of Spark with which a push works."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from dbt_reverse_etl.warehouse.session import LOCAL, advice, connect


def test_a_session_that_dbt_has_started_keeps_its_settings_in_whichever_thread_the_push_runs(
    spark: SparkSession,
) -> None:
    before = {name: spark.conf.get(name) for name in LOCAL}
    assert before != LOCAL
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(connect, {}).result()
    assert {name: spark.conf.get(name) for name in LOCAL} == before


def test_a_session_on_one_machine_is_told_which_of_its_settings_are_for_a_cluster(spark: SparkSession) -> None:
    assert 'spark.sql.codegen.cache.maxEntries: "1000" in server_side_parameters' in advice(spark)
    before = spark.conf.get("spark.databricks.delta.snapshotPartitions")
    assert "snapshotPartitions" not in advice(spark), "the test session has a value of its own"
    spark.conf.unset("spark.databricks.delta.snapshotPartitions")
    assert "snapshotPartitions" not in advice(spark), "that of its start holds"
    spark.conf.set("spark.databricks.delta.snapshotPartitions", before)
