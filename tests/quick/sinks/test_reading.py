"""Texts of a destination as Arrow columns."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.reading import UNREADABLE, rows_of

WIDE = "200000000.5" + "0" * 29  # as numeric(65,30) shows it


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("kind", [pa.decimal128(10, 1), pa.decimal128(38, 18), pa.decimal256(50, 20)], ids=str)
@pytest.mark.parametrize("shown", [WIDE, f"-{WIDE}", "100." + "0" * 90, "1e2", "-0.0", ".0", "-.00", ".50"])
def test_a_decimal_is_read_from_a_column_with_more_decimal_places(kind: pa.DataType, shown: str) -> None:
    read = rows_of({"value": pa.array([shown, None])}, pa.schema([("value", kind)])).to_pylist()
    assert read == [{"value": Decimal(shown), UNREADABLE: False}, {"value": None, UNREADABLE: False}]


@pytest.mark.guarantee("What is sent")
def test_the_decimals_of_an_array_are_read_from_one_with_more_decimal_places() -> None:
    kind = pa.list_(pa.decimal128(10, 1))
    read = rows_of({"value": pa.array([f'["{WIDE}", null]'])}, pa.schema([("value", kind)]), arrays=["value"])
    assert read.to_pylist() == [{"value": [Decimal("200000000.5"), None], UNREADABLE: False}]


def test_a_decimal_with_more_places_than_the_field_is_no_value_of_it() -> None:
    read = rows_of({"value": pa.array([WIDE.replace("50", "51")])}, pa.schema([("value", pa.decimal128(10, 1))]))
    assert read.to_pylist() == [{"value": None, UNREADABLE: True}]
