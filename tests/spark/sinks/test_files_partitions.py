"""Partitioned parts of the files sink, found by Spark's own partition discovery."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.testing import batch_of, opened
from tests.support.sinks.files import TEXTS, manifest, sink_at, visit, visits


@pytest.mark.guarantee("Files")
def test_spark_finds_any_value_by_the_name_of_its_folder(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        visit(number, text, date(2024, 1, 1 + number % 3))
        for number, text in enumerate([*TEXTS[::3], "é", "日本", None])
    ]
    with opened(sink_at(tmp_path, format="parquet"), visits("country", "day")) as sink:
        assert sink.deliver(batch_of(visits("country", "day"), [("insert", row) for row in rows])).results == ()
    folder = str(tmp_path / "people")
    parts = [f"{folder}/{part['name']}" for part in manifest(tmp_path)["parts"]]
    schema = "id bigint, new boolean, country string, day date"
    found = spark.read.schema(schema).option("basePath", folder).parquet(*parts)
    assert sorted((row.id, row.country, row.day) for row in found.collect()) == [
        (row["id"], row["country"], row["day"]) for row in rows
    ]
