"""What the filter of a sync may say, and which columns it can send."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.filters import told_of, told_otherwise


@pytest.mark.guarantee("What is sent")
def test_a_filter_that_depends_on_more_than_the_row_is_refused_and_no_other(spark: SparkSession) -> None:
    assert told_otherwise(spark) == {}


def test_a_column_of_a_type_that_cannot_be_sent_is_refused_by_its_type(spark: SparkSession) -> None:
    columns = {"id": "int", "spans": "array<interval day>"}
    assert "found interval day has no form in Arrow; expected columns that can be sent" in told_of(spark, {}, columns)
    assert told_of(spark, {"fields": {"id": "id"}}, columns) == ""
