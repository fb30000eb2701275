"""Types of Spark as Arrow's, and Arrow's in Spark's SQL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from dbt_reverse_etl.values.spark_types import arrow_type, spark_type

# Spark's, Arrow's, Spark's in SQL.
PAIRS = [
    (st.BooleanType(), pa.bool_(), "boolean"),
    (st.ByteType(), pa.int8(), "tinyint"),
    (st.ShortType(), pa.int16(), "smallint"),
    (st.IntegerType(), pa.int32(), "int"),
    (st.LongType(), pa.int64(), "bigint"),
    (st.FloatType(), pa.float32(), "float"),
    (st.DoubleType(), pa.float64(), "double"),
    (st.DecimalType(38, 10), pa.decimal128(38, 10), "decimal(38, 10)"),
    (st.StringType(), pa.string(), "string"),
    (st.BinaryType(), pa.binary(), "binary"),
    (st.DateType(), pa.date32(), "date"),
    (st.TimestampType(), pa.timestamp("us", "UTC"), "timestamp"),
    (st.TimestampNTZType(), pa.timestamp("us"), "timestamp_ntz"),
    (st.ArrayType(st.TimestampNTZType()), pa.list_(pa.field("element", pa.timestamp("us"))), "array<timestamp_ntz>"),
    (
        st.MapType(st.DateType(), st.ArrayType(st.IntegerType(), containsNull=False)),
        pa.map_(pa.date32(), pa.list_(pa.field("element", pa.int32(), nullable=False))),
        "map<date, array<int>>",
    ),
    (
        st.StructType(
            [st.StructField("a b", st.TimestampType()), st.StructField("c`d", st.LongType(), nullable=False)]
        ),
        pa.struct([("a b", pa.timestamp("us", "UTC")), pa.field("c`d", pa.int64(), nullable=False)]),
        "struct<`a b`: timestamp, `c``d`: bigint>",
    ),
]
OTHER_FORMS = [
    (pa.large_string(), "string"),
    (pa.large_binary(), "binary"),
    (pa.timestamp("us", "Europe/Berlin"), "timestamp"),
]


@pytest.mark.parametrize(("spark", "arrow", "written"), PAIRS)
def test_each_type_of_spark_is_one_of_arrow_and_back(spark: st.DataType, arrow: pa.DataType, written: str) -> None:
    assert arrow_type(spark) == arrow
    assert spark_type(arrow) == written


@pytest.mark.parametrize(("arrow", "written"), OTHER_FORMS)
def test_other_forms_of_the_same_values_are_the_same_type_of_spark(arrow: pa.DataType, written: str) -> None:
    assert spark_type(arrow) == written


def test_a_type_that_the_other_has_not_is_refused_by_its_name() -> None:
    for spark in (st.DayTimeIntervalType(), st.VariantType(), st.NullType(), st.ArrayType(st.YearMonthIntervalType())):
        with pytest.raises(TypeError, match="has no form in Arrow"):
            arrow_type(spark)
    for arrow in (pa.uint32(), pa.float16(), pa.duration("us"), pa.list_(pa.time64("us"))):
        with pytest.raises(TypeError, match="has no form in Spark"):
            spark_type(arrow)
