"""Full loads of the files sink: a reader sees the object before or the new one, whole, whenever a process dies."""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.testing import batch_of, opened, outcomes, person
from tests.support.effort import scaled
from tests.support.sinks.files import changed, full, ids, inserted, loaded, manifest, sink_at, task_of
from tests.support.sinks.files_consumer import in_folder, listed_in


@pytest.mark.guarantee("Files")
def test_a_reader_of_the_manifest_before_ends_its_read_after_the_swap_and_the_next_run_sweeps(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1, 2)
    before = manifest(tmp_path)
    loaded(sink_at(tmp_path), full(2), 3, 4)
    assert [row["id"] for row in listed_in(before, in_folder(tmp_path / "people"))] == [1, 2]
    assert ids(tmp_path) == [3, 4]
    changed(tmp_path, 3, 5)
    assert ids(tmp_path) == [3, 4, 5]
    assert not (tmp_path / "people" / before["parts"][0]["name"]).exists()


@pytest.mark.guarantee("Files")
def test_with_keep_days_files_of_a_superseded_image_stay_that_long(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1)
    (old,) = manifest(tmp_path)["parts"]
    for fence in (2, 3, 4):
        loaded(sink_at(tmp_path, keep_days=7), full(fence), fence)
    assert next(part["name"] for part in manifest(tmp_path)["superseded"]) == old["name"]
    assert (tmp_path / "people" / old["name"]).exists()
    aged = manifest(tmp_path)
    aged["superseded"][0]["superseded"] = "2001-01-01T00:00:00Z"
    (tmp_path / "people" / "manifest.json").write_text(json.dumps(aged))
    for fence in (5, 6):
        loaded(sink_at(tmp_path, keep_days=7), full(fence), fence)
    assert not (tmp_path / "people" / old["name"]).exists()
    assert all((tmp_path / "people" / part["name"]).exists() for part in manifest(tmp_path)["superseded"])
    assert ids(tmp_path) == [6]


def test_an_empty_full_load_empties_the_object(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1)
    loaded(sink_at(tmp_path), full(2))
    assert ids(tmp_path) == []


def test_a_full_load_replaces_what_a_crash_left_pending(tmp_path: Path) -> None:
    task = task_of()
    crashed = sink_at(tmp_path)
    crashed.open(task)
    crashed.deliver(inserted(task, 1, last=False))
    loaded(sink_at(tmp_path), full(2), 2)
    changed(tmp_path, 3, 3)
    assert ids(tmp_path) == [2, 3]


def test_a_repeated_batch_and_a_repeated_swap_add_nothing(tmp_path: Path) -> None:
    task = full(1)
    with opened(sink_at(tmp_path), task) as sink:
        for _ in range(3):
            assert sink.deliver(inserted(task, 1, claim="whole", last=False)).results == ()
        sink.swap("whole")
        swapped = manifest(tmp_path)
        sink.swap("whole")
        assert manifest(tmp_path) == swapped
        assert ids(tmp_path) == [1]


def test_a_last_batch_shows_nothing_before_the_swap(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1)
    task = full(2)
    with opened(sink_at(tmp_path), task) as sink:
        assert sink.deliver(inserted(task, 2, claim="whole", last=True)).results == ()
        assert ids(tmp_path) == [1]
        sink.close()
    assert ids(tmp_path) == [1]


def test_a_full_load_that_left_a_row_out_is_never_settled_as_whole(tmp_path: Path) -> None:
    task = full(1)
    with opened(sink_at(tmp_path), task) as sink:
        changes = [("insert", person(1, score=float("nan"))), ("insert", person(2))]
        assert outcomes(sink.deliver(batch_of(task, changes, "whole", last=False)), 2)[0] is Outcome.REJECTED
        sink.swap("whole")
    with opened(sink_at(tmp_path), full(2)) as sink:
        assert sink.settle(["whole"]) == {"whole": False}


@pytest.mark.guarantee("Files")
def test_a_full_load_that_a_newer_run_overtook_neither_writes_nor_swaps(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1)
    old = sink_at(tmp_path)
    old.open(full(2))
    assert old.deliver(inserted(full(2), 2, claim="whole", last=False)).results == ()
    changed(tmp_path, 3, 3)
    assert outcomes(old.deliver(inserted(full(2), 4, claim="whole", last=False)), 1) == [Outcome.FATAL]
    with pytest.raises(DestinationError, match="newer run"):
        old.swap("whole")
    old.close()
    assert ids(tmp_path) == [1, 3]


def test_records_of_claims_do_not_pile_up_over_full_loads(tmp_path: Path) -> None:
    for fence in range(1, 5):
        loaded(sink_at(tmp_path), full(fence), fence)
    assert list(manifest(tmp_path)["claims"]) == ["w4"]
    changed(tmp_path, 5, 5)
    assert manifest(tmp_path)["claims"] == {}


@pytest.mark.guarantee("Files")
def test_a_reader_beside_full_loads_always_sees_one_whole_image(tmp_path: Path) -> None:
    loaded(sink_at(tmp_path, keep_days=1), full(1), 100, 101, 102)
    seen, ended = list[list[int]](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen.append(ids(tmp_path))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for fence in range(2, 12):
            loaded(sink_at(tmp_path, keep_days=1), full(fence), *(100 * fence + number for number in range(3)))
    finally:
        ended.set()
        reader.join()
    assert seen
    assert all(image == [100 * (image[0] // 100) + number for number in range(3)] for image in seen)


STEP = st.tuples(st.sampled_from(["changes", "full"]), st.sampled_from(["finish", "crash before", "crash after"]))


@pytest.mark.guarantee("Files")
@settings(max_examples=scaled(40), deadline=None)
@given(st.lists(STEP, max_size=8))
def test_after_any_crashes_of_full_loads_and_changes_the_object_is_what_was_settled(
    steps: list[tuple[str, str]],
) -> None:
    """A crash is before or after the step that shows the rows; the ledger learns of it by the next run's question."""
    with tempfile.TemporaryDirectory() as home:
        path, wanted, open_claims = Path(home), list[int](), list[tuple[str, list[int]]]()
        for number, (kind, then) in enumerate([*steps, ("changes", "finish")], 1):
            task = full(number) if kind == "full" else replace(task_of(), fence=number, first=number == 1)
            sink, claim = sink_at(path), f"c{number}"
            sink.open(task)
            answers = sink.settle([claim for claim, _ in open_claims])
            wanted = next((rows for claim, rows in open_claims if answers[claim]), wanted)
            after = [number] if kind == "full" else [*wanted, number]
            sink.deliver(inserted(task, number, claim=claim, last=kind != "full" and then != "crash before"))
            if kind == "full" and then != "crash before":
                sink.swap(claim)
            open_claims = [] if then == "finish" else [(claim, after)]
            if then == "finish":
                sink.finish(claim)
                sink.close()
                wanted = after
        assert ids(path) == wanted
