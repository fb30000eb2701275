"""Waves cover every bucket once and follow the measured time; batches are the rows, in order, within the limits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS
from dbt_reverse_etl.delivery.waves import Histogram, Waves, WaveSize, batches
from dbt_reverse_etl.sinks.base import Limits

histograms = st.sampled_from([1, 2, 8, 32]).flatmap(
    lambda n: st.lists(st.integers(0, 200), min_size=n, max_size=n).map(
        lambda rows: Histogram(tuple(PerOperation(insert=r) for r in rows))
    )
)


def of(*rows: int) -> Histogram:
    return Histogram(tuple(PerOperation(update=r) for r in rows))


@pytest.mark.guarantee("What is sent")
@settings(deadline=None)
@given(histograms, st.integers(1, 300), st.lists(st.floats(0, 60), min_size=40, max_size=40))
def test_waves_are_contiguous_and_cover_all_buckets_whatever_they_take(
    histogram: Histogram, rows: int, seconds: list[float]
) -> None:
    waves = Waves(histogram, WaveSize(rows))
    at, planned = 0, 0
    took: float | None = None
    while (found := waves.next_range(took)) is not None:
        lo, hi = found
        assert lo == at
        assert hi > lo
        planned += histogram.rows(lo, hi).total
        at, took = hi, seconds.pop()
    assert at == BUCKETS
    assert planned == histogram.total.total
    assert waves.next_range(1.0) is None


@settings(deadline=None)
@given(histograms, st.integers(1, 300))
def test_a_wave_is_larger_than_its_size_only_if_a_single_bin_is(histogram: Histogram, rows: int) -> None:
    waves = Waves(histogram, WaveSize(rows, grow_below=-1))
    took = None
    while (found := waves.next_range(took)) is not None:
        took = 15.0
        inside = histogram.rows(*found).total
        largest = max(histogram.rows(lo, lo + histogram.width).total for lo in range(*found, histogram.width))
        assert inside <= max(rows, largest)


def test_nothing_planned_is_a_single_range() -> None:
    assert Waves(of(0, 0, 0, 0), WaveSize(1)).next_range() == (0, BUCKETS)


def test_empty_bins_at_the_end_join_the_last_wave() -> None:
    assert Waves(of(5, 0, 0, 0), WaveSize(5)).next_range() == (0, BUCKETS)


def test_the_next_wave_grows_with_the_time_that_a_quick_one_left_halves_after_a_slow_one_and_else_stays() -> None:
    size = WaveSize()
    assert size.rows == 50_000
    assert size.after(50_000, 5.0) == 100_000
    assert size.after(50_000, 0.1) == size.most
    assert size.after(1_000, 0.0) == 10_000
    assert size.after(50_000, 10.0) == 50_000
    assert size.after(50_000, 30.0) == 50_000
    assert size.after(50_000, 30.1) == 25_000
    assert size.after(1, 99.0) == 1


@pytest.mark.guarantee("What is sent")
def test_a_wave_of_large_rows_has_fewer_of_them() -> None:
    size = WaveSize(rows=50_000, most=400_000, most_bytes=1_000_000)
    assert (size.of_rows(0).rows, size.of_rows(0).most) == (50_000, 400_000)
    assert (size.of_rows(10).rows, size.of_rows(10).most) == (50_000, 100_000)
    assert (size.of_rows(1_000).rows, size.of_rows(1_000).most) == (1_000, 1_000)
    assert (size.of_rows(9_999_999).rows, size.of_rows(9_999_999).most) == (1, 1)
    waves = Waves(Histogram((PerOperation(insert=10),) * 8, row_bytes=50_000), size)
    assert waves.next_range() == (0, BUCKETS // 4), "20 rows of 50 kB are a megabyte"
    assert waves.next_range(0.1) == (BUCKETS // 4, BUCKETS // 2), "however quick the first one was"


def test_the_planner_uses_the_time_of_the_wave_before() -> None:
    quick, slow = Waves(of(*[10] * 8), WaveSize(10)), Waves(of(*[10] * 8), WaveSize(20))
    bin_ = BUCKETS // 8
    assert quick.next_range() == (0, bin_)
    assert quick.next_range(5.0) == (bin_, 3 * bin_)
    assert quick.next_range(15.0) == (3 * bin_, 5 * bin_)
    assert slow.next_range() == (0, 2 * bin_)
    assert slow.next_range(31.0) == (2 * bin_, 3 * bin_)


def test_a_histogram_refuses_what_its_bins_cannot_answer() -> None:
    with pytest.raises(ValueError, match="bin"):
        of(1, 2).rows(1, BUCKETS)
    with pytest.raises(ValueError, match="divide"):
        of(1, 2, 3)


texts = st.lists(st.text(max_size=40), max_size=60)


@pytest.mark.guarantee("What is sent")
@settings(deadline=None)
@given(texts, st.integers(1, 20), st.integers(1, 400))
def test_batches_put_together_are_the_rows(values: list[str], rows: int, size: int) -> None:
    table = pa.table({"text": pa.array(values, pa.string()), "n": pa.array(range(len(values)), pa.int64())})
    parts = list(batches(table, Limits(rows=rows, bytes=size)))
    assert [row for part in parts for row in part] == list(range(len(values)))
    for part in parts:
        assert 0 < len(part) <= rows
        assert len(part) == 1 or table.slice(part.start, len(part)).nbytes <= size


@pytest.mark.guarantee("What is sent")
def test_a_row_that_is_larger_than_a_batch_goes_alone() -> None:
    table = pa.table({"text": ["a", "b" * 1000, "c"]})
    assert range(1, 2) in list(batches(table, Limits(bytes=100)))
