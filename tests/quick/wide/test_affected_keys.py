"""The claim of affected keys, on random wide tables: after every run the incremental rows are those of a full recompute."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.effort import scaled
from tests.support.wide.tables import index_misses, late_misses, misses

DECLARATIONS, RUNS = 50, 4
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.guarantee("Capture")
@settings(max_examples=scaled(DECLARATIONS), deadline=None, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_incremental_equals_full_recompute_after_every_run(seed: int) -> None:
    assert not misses(seed, RUNS)


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("images", [("after",), ("before",)], ids=["without_pre_images", "without_post_images"])
def test_images_of_one_side_alone_miss_rows(images: tuple[str, ...]) -> None:
    assert sum(bool(misses(seed, 3, images)) for seed in range(6)) >= 3, "or the property above proves nothing"


@pytest.mark.guarantee("Capture")
@settings(max_examples=scaled(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_tables_that_are_read_later_than_their_positions_lose_no_change(seed: int) -> None:
    assert not late_misses(seed, 5)


@pytest.mark.guarantee("Capture")
def test_with_net_changes_alone_such_tables_would_lose_some() -> None:
    assert any(late_misses(seed, 5, net=True) for seed in range(12))


@pytest.mark.guarantee("Capture")
@settings(max_examples=scaled(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(SEEDS, st.booleans())
def test_with_reverse_indexes_incremental_equals_full_recompute_through_re_targets_nulls_and_deletes(
    seed: int, late: bool
) -> None:
    assert not index_misses(seed, 4, late=late)


@pytest.mark.guarantee("Capture")
def test_with_reverse_indexes_that_are_older_than_the_wide_table_rows_would_be_missed() -> None:
    assert any(index_misses(seed, 4, skipped=True) for seed in range(8)), "or nobody would have to ask how old they are"
