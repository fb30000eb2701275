"""The cells in which the keys of a few candidates lie: what a capture reads of the model is bounded by them."""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render, value_of
from tests.support.dbt.files_read import files_read
from tests.support.dbt.project import Project
from tests.support.dbt.ranges import GREATEST, LEAST, ranges_of


@pytest.mark.parametrize(
    "keys",
    [[], [None], [7, None, 7], [LEAST, GREATEST], [LEAST], [GREATEST - 1, GREATEST], list(range(0, 10**9, 10**6))],
    ids=["none", "null", "one", "both_ends", "least", "greatest", "spread"],
)
def test_all_keys_lie_in_the_cells_that_spark_finds(spark: SparkSession, keys: list[int | None]) -> None:
    spark.createDataFrame([(key,) for key in keys], "id bigint").createOrReplaceTempView("candidates_of_ranges")
    ((found,),) = spark.sql(render("_occupied_cells", "candidates_of_ranges", "id")).collect()
    occupied = json.loads(found)
    ranges = ranges_of(occupied.get("bits"), occupied["cells"])
    assert all(any(low <= key <= high for low, high in ranges) for key in keys if key is not None)
    assert bool(ranges) == any(key is not None for key in keys)
    assert len(occupied["cells"]) <= 1025


def test_texts_that_may_equal_a_whole_number_have_no_cells(spark: SparkSession) -> None:
    spark.createDataFrame([("7.0",)], "id string").createOrReplaceTempView("candidates_of_ranges")
    assert spark.sql(render("_occupied_cells", "candidates_of_ranges", "id")).collect() == [(None,)]
    assert value_of("_in_cells", "id", None) is None


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_capture_of_few_keys_reads_the_files_where_they_lie_and_a_full_image_is_in_the_order_of_its_keys(
    project: Project,
) -> None:
    source, sql = f"{project.schema}.source", project.spark.sql
    sql(
        f"create table {source} using delta tblproperties ('delta.enableChangeDataFeed' = 'true') as "
        "select 'a' as value, 1 as bits, cast(id % 2 as smallint) as line, cast(id div 2 as int) as id from range(0, 600000, 1, 3)"
    )
    table = {"name": "app", "schema": project.schema, "tables": [{"name": "source"}]}
    project.properties("sources", {"sources": [table]})
    query = "select value, bits, line, id from {{ source('app', 'source') }}"
    capture = {"strategy": "cdf", "table": "app.source"}
    project.changelog("rows", query, ["id", "line"], settings={"capture": capture})
    assert project.run().success
    stored = project.rows("select _metadata.file_path, id, line from {s}.rows where id is not null")
    assert len({file for file, _, _ in stored}) == 2
    for _, image in groupby(stored, key=itemgetter(0)):
        places = [row[1:] for row in image]
        assert places == sorted(places)

    def captured(*changes: str) -> tuple[str, dict[str, tuple[int, int]]]:
        for change in changes:
            project.rows(change)
        with files_read(project.spark) as files:
            return project.run().messages["rows"], files["rows__uncommitted"]

    one = "update {s}.source set value = 'b' where id between 12000 and 12010"
    assert captured(one) == ("+0 ~22 -0, snapshot 2", {"source": (1, 3), "rows": (1, 2)})
    both = ("delete from {s}.source where id in (5, 299000)", "delete from {s}.source where id = 12000 and line = 1")
    assert captured(*both) == ("+0 ~0 -5, snapshot 3", {"source": (2, 3), "rows": (3, 3)})
    assert captured() == ("+0 ~0 -0, snapshot 3", {})
