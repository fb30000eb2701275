"""The files sink on a real directory, read back by a consumer that knows only the manifest."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Rights
from dbt_reverse_etl.sinks.files import disk
from dbt_reverse_etl.sinks.files.settings import FilesOptions, FilesSettings
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import PEOPLE, batch_of, next_run, opened, outcomes, person
from tests.support.effort import scaled
from tests.support.sinks.files import ids, inserted, listed, manifest, sink_at, task_of


def test_a_claim_that_was_cut_off_is_never_listed_and_leaves_no_record(tmp_path: Path) -> None:
    task = task_of()
    crashed = sink_at(tmp_path)
    crashed.open(task)
    crashed.deliver(inserted(task, 1))
    crashed.deliver(inserted(task, 2, claim="c2", last=False))
    assert ids(tmp_path) == [1]
    with opened(sink_at(tmp_path), next_run(task)) as sink:
        assert sink.settle(["c1", "c2"]) == {"c1": True, "c2": None}
        sink.deliver(inserted(task, 2, claim="c3"))
        sink.finish()
    assert ids(tmp_path) == [1, 2]
    assert manifest(tmp_path)["pending"] == []
    assert manifest(tmp_path)["claims"] == {}


def test_a_cut_off_claim_that_the_ledger_acknowledged_is_listed_by_the_next_run_before_its_own_parts(
    tmp_path: Path,
) -> None:
    task = task_of()
    crashed = sink_at(tmp_path)
    crashed.open(task)
    crashed.deliver(inserted(task, 1, last=False))
    with opened(sink_at(tmp_path), next_run(task)) as sink:  # no open claims: settle is not called
        sink.deliver(inserted(task, 2, claim="c2"))
        assert ids(tmp_path) == [1, 2]


def test_a_run_that_ends_early_lists_what_it_delivered(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1, last=False))
        assert listed(tmp_path / "people") == []
    assert ids(tmp_path) == [1]


def test_a_claim_with_a_rejected_row_is_never_settled_as_whole(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        changes = [("insert", person(1, score=float("nan"))), ("insert", person(2))]
        delivery = sink.deliver(batch_of(task, changes, "c1"))
        assert outcomes(delivery, 2) == [Outcome.REJECTED, Outcome.DELIVERED]
    with opened(sink_at(tmp_path), next_run(task)) as sink:
        assert sink.settle(["c1"]) == {"c1": False}
    assert ids(tmp_path) == [2]


def test_a_rejected_row_counts_against_its_claim_whichever_batch_it_was_in(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(batch_of(task, [("insert", person(1, score=float("nan")))], "c1", last=False))
        sink.deliver(inserted(task, 2))
        assert sink.settle(["c1"]) == {"c1": False}


def test_an_empty_last_batch_closes_its_claim(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1, last=False))
        assert sink.deliver(inserted(task)).results == ()
        assert ids(tmp_path) == [1]
        assert sink.settle(["c1"]) == {"c1": True}


def test_repeating_a_batch_lists_its_rows_once(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        for _ in range(3):
            assert sink.deliver(inserted(task, 1, 2)).results == ()
    assert ids(tmp_path) == [1, 2]


@pytest.mark.parametrize("full_load", [False, True])
def test_a_batch_that_is_repeated_after_another_one_is_listed_once(tmp_path: Path, *, full_load: bool) -> None:
    task = replace(task_of(), full_load=full_load)
    with opened(sink_at(tmp_path), task) as sink:
        for number in (1, 2, 1):
            assert sink.deliver(inserted(task, number, last=False)).results == ()
        if full_load:
            sink.swap("c1")
        sink.finish()
    assert [part["rows"] for part in manifest(tmp_path)["parts"]] == [1, 1]
    assert ids(tmp_path) == [1, 2]


def test_files_that_nobody_lists_are_removed_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, remove = threading.Barrier(2, timeout=10), disk.DirectoryStore.remove

    def together(store: disk.DirectoryStore, name: str) -> None:
        both.wait()  # one after the other, the first would wait in vain
        remove(store, name)

    (tmp_path / "people").mkdir()
    for number in range(2):
        (tmp_path / "people" / f".tmp-{number}-x").touch()
    monkeypatch.setattr(disk.DirectoryStore, "remove", together)
    with opened(sink_at(tmp_path), task_of()):
        assert not [*(tmp_path / "people").glob(".tmp-*")]


@pytest.mark.guarantee("Files")
def test_orphans_are_swept_when_the_object_is_opened_and_nothing_else_is(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1))
    directory = tmp_path / "people"
    orphan = directory / "0000000001-c1-0123456789ab.jsonl"
    orphan.write_text("half a li")
    (directory / ".tmp-1-x").write_text("")
    (directory / "README.md").write_text("mine")
    with opened(sink_at(tmp_path), next_run(task)):
        names = {path.name for path in directory.iterdir()}
    assert orphan.name not in names
    assert ".tmp-1-x" not in names
    assert names >= {"README.md", "manifest.json", *(part["name"] for part in manifest(tmp_path)["parts"])}


def test_an_object_of_another_sync_is_refused(tmp_path: Path) -> None:
    with opened(sink_at(tmp_path), task_of()):
        pass
    with pytest.raises(DestinationError, match=r"another sync.*renamed_from"):
        sink_at(tmp_path).open(task_of(sync_id="b2"))


@pytest.mark.guarantee("Files")
def test_a_manifest_that_vanishes_during_the_run_stops_it(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        (tmp_path / "people" / "manifest.json").unlink()
        assert outcomes(sink.deliver(inserted(task, 1)), 1) == [Outcome.FATAL]
        with pytest.raises(DestinationError, match="removed"):
            sink.finish()


@pytest.mark.guarantee("Files")
def test_a_damaged_manifest_stops_the_run_and_is_kept(tmp_path: Path) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task):
        pass
    path = tmp_path / "people" / "manifest.json"
    path.write_bytes(path.read_bytes()[:-20])
    damaged = path.read_bytes()
    with pytest.raises(DestinationError, match="damaged"):
        sink_at(tmp_path).open(next_run(task))
    assert path.read_bytes() == damaged


def test_a_damaged_manifest_is_left_by_what_its_error_advises(tmp_path: Path) -> None:
    task, resync = task_of(), replace(next_run(task_of()), first=True)
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1))
    path = tmp_path / "people" / "manifest.json"
    path.write_bytes(b"")
    for attempt in (sink_at(tmp_path).missing, sink_at(tmp_path).open):
        with pytest.raises(DestinationError, match="remove it and run dbt run-operation resync"):
            attempt(resync)
    path.unlink()
    with opened(sink_at(tmp_path), resync) as sink:
        assert sink.deliver(inserted(resync, 2)).results == ()
    assert ids(tmp_path) == [2]


def test_an_error_of_the_store_is_not_called_a_damaged_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise pa.ArrowInvalid("of a storage")  # a ValueError

    with opened(sink_at(tmp_path), task_of()) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(disk.DirectoryStore, "read", failing)
            for attempt in (sink.missing, sink.open):
                with pytest.raises(pa.ArrowInvalid):
                    attempt(task_of())
        assert outcomes(sink.deliver(inserted(task_of(), 1)), 1) == [Outcome.DELIVERED]
        (tmp_path / "people" / "manifest.json").write_bytes(b"{")
        delivery = sink.deliver(inserted(task_of(), 2))
        assert [(row.outcome, row.reason) for row in delivery.results] == [(Outcome.FATAL, "a damaged manifest.json")]


@pytest.mark.parametrize("foreign", [b'{"metadata": {}}', b"[]", b"{"])
def test_a_manifest_of_another_tool_is_told_before_anything_is_sent(foreign: bytes, tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "manifest.json").write_bytes(foreign)
    for task in (task_of(), next_run(task_of())):
        with pytest.raises(DestinationError, match="damaged"):
            sink_at(tmp_path).missing(task)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_text_that_is_not_utf8_refuses_its_row_alone_however_deep_it_stands(form: Any, tmp_path: Path) -> None:
    bad = pa.array([b"ok", b"\xff", b"ok", None], pa.binary()).view(pa.string())
    deep = pa.array([[b"ok"], [], [b"ok", b"\xc3"], None], pa.list_(pa.binary())).view(pa.list_(pa.string()))
    task = task_of(schema=pa.schema([*PEOPLE, ("text", pa.string()), ("deep", deep.type)]))
    batch = batch_of(task, [("insert", {**person(number), "text": "", "deep": []}) for number in range(4)])
    columns = {name: batch.rows.column(name) for name in batch.rows.column_names} | {"text": bad, "deep": deep}
    batch = replace(batch, rows=pa.table(columns))
    with opened(sink_at(tmp_path, format=form), task) as sink:
        result = sink.deliver(batch)
        sink.finish()
    refused = Outcome.REJECTED
    assert outcomes(result, 4) == [Outcome.DELIVERED, refused, refused, Outcome.DELIVERED]
    assert [re.sub(r"\[\]", "", row.reason) for row in result.results] == [
        f"field {at}: text that is not UTF-8" for at in ("text", "deep")
    ]
    read = pa.concat_tables(FilesSink(FilesSettings(path=str(tmp_path), format=form)).read(task))
    assert sorted(read.column("id").to_pylist()) == [0, 3]


def test_a_lost_manifest_is_reported_as_missing_but_not_before_the_first_run(tmp_path: Path) -> None:
    task = task_of()
    assert sink_at(tmp_path).missing(task) is None
    assert sink_at(tmp_path).missing(next_run(task)) == "no manifest.json of object people"


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.ENOSPC, Outcome.FATAL), (errno.EROFS, Outcome.FATAL), (errno.EIO, Outcome.RETRYABLE)]
)
def test_a_disk_that_refuses_leaves_listing_and_claims_as_they_were(
    number: int, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1))
        before = manifest(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _refuse(number))
            delivery = sink.deliver(inserted(task, 2, claim="c2"))
        assert outcomes(delivery, 1) == [outcome]
        assert delivery.results[0].reason == f"OSError {errno.errorcode[number]}"
        assert manifest(tmp_path) == before
        assert sink.deliver(inserted(task, 2, claim="c2")).results == ()
    assert ids(tmp_path) == [1, 2]


def test_a_manifest_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, rename = task_of(), Path.replace

    def refuse_manifest(path: Path, target: Path) -> Path:
        if Path(target).name == "manifest.json":
            raise OSError(errno.EIO, "refused")
        return rename(path, target)

    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1))
        before = (tmp_path / "people" / "manifest.json").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", refuse_manifest)
            assert outcomes(sink.deliver(inserted(task, 2)), 1) == [Outcome.RETRYABLE]
        assert (tmp_path / "people" / "manifest.json").read_bytes() == before


def _refuse(number: int) -> Any:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, "refused")

    return refuse


def test_a_manifest_that_may_not_be_on_disk_is_unknown_and_a_repeat_lists_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync_directory", _fine(disk.sync_directory, times=1))
            assert outcomes(sink.deliver(inserted(task, 1)), 1) == [Outcome.UNKNOWN]
        assert sink.deliver(inserted(task, 1)).results == ()
    assert ids(tmp_path) == [1]


def test_a_part_that_may_not_be_on_disk_is_not_listed_and_surely_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of()
    with opened(sink_at(tmp_path), task) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync_directory", _fine(disk.sync_directory, times=0))
            assert outcomes(sink.deliver(inserted(task, 1)), 1) == [Outcome.RETRYABLE]
        assert listed(tmp_path / "people") == []


def _fine(sync: Any, *, times: int) -> Any:
    calls: list[Path] = []

    def sync_directory(directory: Path) -> None:
        calls.append(directory)
        if len(calls) > times:  # the first is for the part, the second for the manifest
            raise OSError(errno.EIO, "refused")
        sync(directory)

    return sync_directory


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("object_name", ["", "/etc", "../x", "a/../b", ".hidden", "a//b", "a\nb", "a/"])
def test_an_object_that_leaves_its_directory_is_refused(object_name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="relative path"):
        sink_at(tmp_path).validate(task_of(object=object_name))


def test_what_is_wrong_with_fields_is_said_all_at_once(tmp_path: Path) -> None:
    fields = [("id", pa.int64()), ("_event_id", pa.string()), ("_operation", pa.string())]
    options = FilesOptions(partition_by=["nope"])
    with pytest.raises(ConfigurationError) as caught:
        sink_at(tmp_path).validate(task_of(schema=pa.schema(fields), options=options))
    assert len(caught.value.problems) == 3


def test_nan_becomes_null_only_where_the_sync_says_so(tmp_path: Path) -> None:
    task = task_of(options=FilesOptions(nan="null"))
    with opened(sink_at(tmp_path), task) as sink:
        assert sink.deliver(batch_of(task, [("insert", person(1, score=float("inf")))])).results == ()
    assert listed(tmp_path / "people")[0]["score"] is None


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_key_that_is_no_number_is_refused_where_such_a_value_is_written_as_null(form: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.float64()), ("score", pa.float64())])
    task = task_of(schema=schema, options=FilesOptions(nan="null"))
    nan = float("nan")
    with opened(sink_at(tmp_path, format=form), task) as sink:
        delivery = sink.deliver(batch_of(task, [("insert", {"id": key, "score": nan}) for key in (1.5, nan)]))
    kept = [] if form == "parquet" else [(1, Outcome.REJECTED, "field id: NaN or Infinity has no JSON form")]
    assert [(result.index, result.outcome, result.reason) for result in delivery.results] == kept


def test_the_same_batch_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        task = task_of(object=name)
        with opened(sink_at(tmp_path, compression="gzip"), task) as sink:
            sink.deliver(inserted(task, 1, 2, 3))
    sums = [json.loads((tmp_path / name / "manifest.json").read_bytes())["parts"][0]["sha256"] for name in ("a", "b")]
    assert sums[0] == sums[1]


@pytest.mark.guarantee("Files")
def test_parts_that_are_too_old_leave_the_manifest_when_a_run_ends_and_the_folder_when_the_next_begins(
    tmp_path: Path,
) -> None:
    task, file = task_of(), tmp_path / "people" / "manifest.json"
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(inserted(task, 1))
        sink.finish()
    (old,) = manifest(tmp_path)["parts"]
    file.write_bytes(file.read_bytes().replace(old["written"][:4].encode(), b"2001", 1))
    with opened(sink_at(tmp_path), next_run(task)) as sink:
        sink.finish()
    assert ids(tmp_path) == [1], "nothing is too old by default"
    with opened(sink_at(tmp_path, keep_days=7), next_run(task, 3)) as sink:
        sink.deliver(inserted(task, 2, claim="c2"))
        sink.finish()
        assert ids(tmp_path) == [2]
        assert (tmp_path / "people" / old["name"]).exists()
    with opened(sink_at(tmp_path, keep_days=7), next_run(task, 4)):
        assert not (tmp_path / "people" / old["name"]).exists()
        assert ids(tmp_path) == [2]


STEP = st.tuples(st.booleans(), st.sampled_from(["close", "crash", "go on"]))


@pytest.mark.guarantee("Files")
@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(STEP, max_size=8))
def test_after_any_crashes_each_acknowledged_row_is_listed_exactly_once(steps: list[tuple[bool, str]]) -> None:
    """The ledger here acknowledges a claim when its last batch was delivered; a crash in between leaves it open."""
    with tempfile.TemporaryDirectory() as home:
        path, task, acknowledged, open_claims = Path(home), task_of(), list[int](), list[str]()
        sink: FilesSink | None = None
        for number, (whole, then) in enumerate(steps):
            if sink is None:
                sink = sink_at(path)
                sink.open(task)
                answers = sink.settle(open_claims)
                assert all(answer is None for answer in answers.values()), "a cut-off claim was never visible"
                open_claims = []
            claim = f"c{number}"
            assert sink.deliver(inserted(task, number, claim=claim, last=whole)).results == ()
            if whole or then == "close":  # an interrupted run records what was delivered
                acknowledged.append(number)
            elif then == "crash":
                open_claims.append(claim)
            else:
                assert sink.deliver(inserted(task, 100 + number, claim=claim)).results == ()
                acknowledged += [number, 100 + number]
            if then == "close":
                sink.close()
            if then != "go on":
                sink, task = None, next_run(task, task.fence + 1)
        if sink is None:
            sink = sink_at(path)
            sink.open(task)
            sink.settle(open_claims)
        sink.finish()
        assert ids(path) == acknowledged


@pytest.mark.guarantee("Files")
def test_a_newer_run_takes_over_from_one_that_still_lives(tmp_path: Path) -> None:
    task = task_of()
    old, new = sink_at(tmp_path), sink_at(tmp_path)
    old.open(task)
    new.open(replace(task, fence=2, first=False))
    assert outcomes(old.deliver(inserted(task, 1)), 1) == [Outcome.FATAL]
    old.close()
    assert new.deliver(inserted(task, 2)).results == ()
    new.close()
    assert ids(tmp_path) == [2]


def test_check_looks_at_the_folder_of_the_object_too(tmp_path: Path) -> None:
    """Somebody else has made it, or a file in its place; the tests run as root, to whom no folder is closed."""
    (tmp_path / "people").write_text("a file")
    sink, task = sink_at(tmp_path), task_of()
    sink.check()
    with pytest.raises(DestinationError, match="people not to be a writable directory"):
        sink.rights(replace(task, object="people/daily"))
    assert sink.rights(replace(task, object="orders")) == Rights()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["people"], "nothing was made"


def test_check_wants_to_write_into_the_folder_of_an_object_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "people").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and path == tmp_path))
    sink = sink_at(tmp_path)
    sink.check()
    assert sink.rights(task_of()) == Rights()
    for refused in (lambda: sink.rights(task_of(object="orders")), sink_at(tmp_path / "absent").check):
        with pytest.raises(DestinationError, match=f"{tmp_path} not to be a writable directory"):
            refused()


def test_a_system_without_locks_is_refused_with_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(DestinationError, match=r"without fcntl.*expected.*Linux or macOS"):
        sink_at(tmp_path).check()
