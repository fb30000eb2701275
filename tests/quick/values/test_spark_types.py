"""Types of Spark as Arrow's, Arrow's in Spark's SQL, and that each has a form in every destination."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from dbt_reverse_etl.sinks.kafka.avro_types import avro_schema, unsupported
from dbt_reverse_etl.sinks.singer.messages import json_schema
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.dialects.duckdb import DuckdbDialect
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlDialect
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresDialect
from dbt_reverse_etl.sinks.sql.dialects.sqlite.sink import SqliteDialect
from dbt_reverse_etl.sinks.sql.settings import DuckdbSettings, MysqlSettings, PostgresSettings, SqliteSettings
from dbt_reverse_etl.values.encoding import encode_values
from dbt_reverse_etl.values.spark_types import _SAME, arrow_type, spark_type

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
DIALECTS: list[Dialect] = [
    PostgresDialect(PostgresSettings(host="/nowhere", database="d", user="u")),
    MysqlDialect(MysqlSettings(host="/nowhere", database="d", user="u")),
    SqliteDialect(SqliteSettings(path="nowhere.db")),
    DuckdbDialect(DuckdbSettings(path="nowhere.duckdb")),
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


@pytest.mark.parametrize("arrow", [pa.decimal128(38, 10), *(arrow for _, arrow, _ in _SAME)], ids=str)
def test_each_type_has_a_form_in_every_destination(arrow: pa.DataType) -> None:
    for kind in (arrow, pa.list_(arrow), pa.map_(pa.string(), arrow), pa.struct([("x", arrow)])):
        assert unsupported(pa.schema([("field", kind)])) == []
        assert json_schema(kind)["type"]
        assert encode_values(pa.nulls(1, kind)).rejected == {}
        for dialect in DIALECTS:
            assert dialect.column_type(kind), dialect.name
    for dialect in DIALECTS:
        assert dialect.is_supported(arrow), dialect.name


def test_a_type_that_no_model_can_have_has_no_form_in_a_destination() -> None:
    for arrow in (pa.time64("us"), pa.duration("us"), pa.list_(pa.time64("us"))):
        with pytest.raises(TypeError, match="has no form in Avro"):
            avro_schema(pa.schema([("field", arrow)]), "Value")
        assert unsupported(pa.schema([("field", arrow)])) == ["field"]
    for dialect in DIALECTS:
        assert not dialect.is_supported(pa.time64("us")), dialect.name
