"""What a task of an executor keeps in memory at once."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.sinks.base import Limits
from dbt_reverse_etl.warehouse.executors import _CHUNK, _chunks

BATCHES = st.lists(st.integers(0, 30_000), max_size=40)


@settings(deadline=None)
@given(BATCHES, st.integers(1, 300_000), st.integers(1, 2**22))
def test_chunks_hold_each_row_once_in_order_and_no_more_rows_or_bytes_than_a_batch_may(
    sizes: list[int], rows: int, size: int
) -> None:
    numbers = pa.RecordBatch.from_pydict({"n": pa.array(range(sum(sizes)), pa.int64())})
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    batches = [numbers.slice(start, length) for start, length in zip(starts, sizes, strict=True)]
    chunks = list(_chunks(batches, Limits(rows=rows, bytes=size)))
    assert pa.concat_tables([pa.Table.from_batches([], numbers.schema), *chunks])["n"].to_pylist() == list(
        range(sum(sizes))
    )
    for chunk in chunks:
        assert chunk.num_rows <= max(_CHUNK, rows)
        assert chunk.num_rows <= _CHUNK or chunk.nbytes <= size
    for chunk, after in pairwise(chunks):
        assert chunk.num_rows + len(after["n"].chunk(0)) > _CHUNK, "as many as may be"


@pytest.mark.guarantee("What is sent")
def test_chunks_of_large_rows_hold_no_more_bytes_than_a_task_should() -> None:
    large = pa.RecordBatch.from_pydict({"text": pa.array([b"x" * 2**20] * 20)})
    chunks = list(_chunks([large] * 10, Limits()))
    assert [chunk.num_rows for chunk in chunks] == [60, 60, 60, 20]
