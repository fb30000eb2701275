"""Arrow columns in the form that messages of Protobuf take."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.kafka.protobuf_values import to_form
from dbt_reverse_etl.testing import TYPES
from dbt_reverse_etl.values.arrow import exact

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LISTS = pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.int64()))]))
NESTED = [[{"a": [("k", 1), ("l", None)]}, None], None, [], [{"a": None}, {"a": []}]]


@pytest.mark.parametrize(
    ("kind", "values"), [*((kind, [*some, None, *some]) for kind, some in TYPES.values()), (LISTS, NESTED)]
)
def test_a_slice_has_the_form_of_its_values(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind).cast(exact(pa.schema([("x", kind)])).field("x").type)
    whole = to_form(array).to_pylist()
    assert [value is None for value in whole] == [value is None for value in values]
    for start in range(len(values)):
        assert to_form(array.slice(start, 2)).to_pylist() == whole[start : start + 2]


@pytest.mark.parametrize("microseconds", [-1, 0, 1, -1_000_000, -1_000_001, -62_135_596_800_000_000])
def test_the_parts_of_an_instant_count_forward_before_1970_too(microseconds: int) -> None:
    kind = pa.timestamp("us", "UTC")
    (parts,) = to_form(pa.array([EPOCH + timedelta(microseconds=microseconds)], kind)).to_pylist()
    assert parts["seconds"] * 10**9 + parts["nanos"] == microseconds * 1000
    assert 0 <= parts["nanos"] < 10**9
