"""Hundreds of random histories in one Delta table, and a view of them against a plain Python truth."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.dbt.histories import SNAPSHOTS, TABLE_TYPE, History, header_row

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))

CASES = 300

TABLE = "views.histories"

KEY = ["case_id", "part"]


@pytest.fixture(scope="module")
def histories(spark: SparkSession) -> list[History]:
    rng = random.Random(SEED)
    found = [History.random(case, rng) for case in range(CASES)]
    rows = [row for history in found for row in history.rows()]
    rows += [header_row(snapshot) for snapshot in range(1, SNAPSHOTS + 1)]
    rng.shuffle(rows)
    spark.sql("create database if not exists views")
    spark.createDataFrame(rows, TABLE_TYPE).repartition(4).write.format("delta").mode("overwrite").saveAsTable(TABLE)
    return found


def query(spark: SparkSession, relation: str) -> DataFrame:
    return spark.sql(f"select * from {relation}")


def by_case(frame: DataFrame) -> dict[int, Counter[tuple[Any, ...]]]:
    """The rows of each case, counted, so that a row too many shows."""
    case = frame.columns.index("case_id")
    found: dict[int, Counter[tuple[Any, ...]]] = {}
    for row in frame.collect():
        found.setdefault(row[case], Counter())[tuple(row)] += 1
    return found


def assert_shows(
    frame: DataFrame,
    histories: list[History],
    truth: Callable[[History], Iterable[tuple[Any, ...]]],
    comparable: Callable[[History], bool] = lambda history: True,
) -> None:
    found = by_case(frame)
    compared = 0
    for case, history in enumerate(histories):
        if comparable(history):
            compared += 1
            assert found.get(case, Counter()) == Counter(truth(history)), f"seed {SEED}, case {case}: {history}"
    assert compared > CASES // 10
