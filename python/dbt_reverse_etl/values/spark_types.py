"""The types of Spark and of Arrow, each as the other: the functions of pyspark for this are private, and differ between its versions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.values.arrow import is_bytes, is_text

_SAME: tuple[tuple[type[st.DataType], pa.DataType, str], ...] = (
    (st.BooleanType, pa.bool_(), "boolean"),
    (st.ByteType, pa.int8(), "tinyint"),
    (st.ShortType, pa.int16(), "smallint"),
    (st.IntegerType, pa.int32(), "int"),
    (st.LongType, pa.int64(), "bigint"),
    (st.FloatType, pa.float32(), "float"),
    (st.DoubleType, pa.float64(), "double"),
    (st.StringType, pa.string(), "string"),
    (st.BinaryType, pa.binary(), "binary"),
    (st.DateType, pa.date32(), "date"),
    (st.TimestampType, pa.timestamp("us", "UTC"), "timestamp"),
    (st.TimestampNTZType, pa.timestamp("us"), "timestamp_ntz"),
)


def arrow_type(kind: st.DataType) -> pa.DataType:
    """The Arrow type of the values. Raises TypeError where there is none."""
    if isinstance(kind, st.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), nullable=kind.containsNull))
    if isinstance(kind, st.MapType):
        values = pa.field("value", arrow_type(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(kind.keyType), nullable=False), values)
    if isinstance(kind, st.StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable) for field in kind])
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for spark, arrow, _ in _SAME:
        if isinstance(kind, spark):
            return arrow
    raise TypeError(f"{kind.simpleString()} has no form in Arrow")


def spark_type(kind: pa.DataType) -> str:
    """The Spark type of the values, as SQL. Raises TypeError where there is none."""
    if pt.is_map(kind):
        return f"map<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    if pt.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pt.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(field.name)}: {spark_type(field.type)}' for field in kind)}>"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    kind = pa.string() if is_text(kind) else pa.binary() if is_bytes(kind) else kind
    for _, arrow, spark in _SAME:
        if kind == arrow:
            return spark
    raise TypeError(f"{kind} has no form in Spark")
