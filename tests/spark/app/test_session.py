"""The session of Spark with which a push works."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from dbt_reverse_etl.warehouse.spark import LOCAL, connect


def test_a_session_that_dbt_has_started_keeps_its_settings_in_whichever_thread_the_push_runs(
    spark: SparkSession,
) -> None:
    before = {name: spark.conf.get(name) for name in LOCAL}
    assert before != LOCAL
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(connect, {}).result()
    assert {name: spark.conf.get(name) for name in LOCAL} == before
