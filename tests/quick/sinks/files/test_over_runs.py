"""The files sink under whole runs of the engine: what the manifest lists after backups, age, resync and forget."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.delivery.gate import never
from dbt_reverse_etl.delivery.ports import OneRow, Status
from dbt_reverse_etl.delivery.progress import no_step
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.files.run import FilesRun
from tests.support.delivery.desk import Desk
from tests.support.delivery.reference import bucket
from tests.support.sinks.files import sink_at


class Export:
    """A desk whose sink writes files, and its manifest."""

    def __init__(self, home: Path, keep_days: float | None = 7) -> None:
        self.desk = Desk(cast("Any", lambda: sink_at(home, keep_days=keep_days)))
        self.path = home / "object" / "manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.path.read_bytes()))

    def age(self) -> None:
        """Every part was written long ago."""
        content, old = self.manifest, datetime.now(timezone.utc) - timedelta(days=30)
        for part in content["parts"]:
            part["written"] = old.isoformat()
        self.path.write_text(json.dumps(content))

    def rows(self) -> dict[str, int]:
        """As `reconcile` reads them, of the whole object alone."""
        tables = self.desk.sink.read(self.desk._job().task)
        return {row["key"]: row["value"] for table in tables for row in table.to_pylist()}

    def cut_off(self) -> None:
        """A push that is interrupted after its first row."""
        seen: list[str] = []
        usual, self.desk.policy = self.desk.policy, replace(self.desk.policy, waves=WaveSize(rows=1, most=1))
        self.desk.step, self.desk.interrupted = seen.append, lambda: "wave.acknowledged" in seen
        result = self.desk.push()
        assert (result.status, result.counts.delivered.total) == (Status.INTERRUPTED, 1)
        self.desk.policy, self.desk.step, self.desk.interrupted = usual, no_step, never

    def refuse(self, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
        """As the sink refuses a row with NaN in its key."""

        def refused(rows: pa.Table, *_: Any, **__: Any) -> dict[int, str]:
            return {number: "refused" for number, one in enumerate(rows["key"].to_pylist()) if one == key}

        monkeypatch.setattr("dbt_reverse_etl.sinks.files.sink.nan_keys", refused)

    def push_one(self, key: str) -> None:
        """As `dbt-reverse-etl test` sends it."""
        job = replace(self.desk._job(), only=OneRow(key, bucket(key)))
        assert run(job, self.desk._ports(), self.desk.policy).status == Status.SUCCEEDED

    def lose_old_parts(self) -> None:
        """Two rows, one in a part that has left by age and one in a part that is listed."""
        self.desk.push({"k0": 1, "k1": 2})
        self.age()
        self.desk.push({"k0": 1, "k1": 3})
        assert self.manifest["whole_from"] is None


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path)


@pytest.mark.guarantee("Files")
def test_a_manifest_that_was_put_back_stops_the_push_before_newer_parts_are_removed(export: Export) -> None:
    export.desk.push({"k0": 1})
    old = export.path.read_bytes()
    export.desk.push({"k0": 1, "k1": 2})
    export.path.write_bytes(old)
    files = sorted(export.path.parent.iterdir())
    with pytest.raises(DestinationError, match="put back: its record is of run 1, and run 2"):
        export.desk.push({"k0": 1, "k1": 2, "k2": 3})
    assert sorted(export.path.parent.iterdir()) == files
    export.desk.ask("resync")
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.rows() == {"k0": 1, "k1": 2, "k2": 3}


def test_an_object_of_another_sync_stops_the_push_before_it_starts_and_names_the_ways_out(export: Export) -> None:
    export.desk.push({"k0": 1})
    export.path.write_text(json.dumps({**export.manifest, "sync_id": "former"}))
    other = Export(export.path.parents[1])
    with pytest.raises(DestinationError, match=r"renamed_from.*another object.*remove manifest\.json: the next run"):
        other.desk.push({"k0": 2})
    assert not other.desk.state().fence
    export.path.unlink()
    assert other.desk.push().status == Status.SUCCEEDED
    assert other.rows() == {"k0": 2}
    listed = {part["name"] for part in other.manifest["parts"]}
    assert {file.name for file in export.path.parent.glob("*.jsonl")} == listed


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("operation", ["resync", "forget"])
def test_after_parts_have_left_by_age_a_resync_or_forget_makes_the_object_whole_again(
    operation: str, export: Export
) -> None:
    export.lose_old_parts()
    with pytest.raises(DestinationError, match="in no listed part"):
        export.rows()
    export.desk.ask(operation)
    assert export.desk.push().counts.delivered.total == 2
    assert export.rows() == {"k0": 1, "k1": 3}


def test_after_adopt_where_no_manifest_is_the_parts_are_not_called_whole_until_a_resync(export: Export) -> None:
    export.desk.changelog.capture({"k0": 1})
    export.desk.ask("adopt")
    assert export.manifest["whole_from"] is None
    assert export.desk.push({"k0": 1, "k1": 2}).counts.delivered.total == 1
    with pytest.raises(DestinationError, match="in no listed part, after keep_days or adopt"):
        export.rows()
    export.desk.ask("resync")
    export.desk.push()
    assert export.manifest["whole_from"] == export.manifest["fence"]
    assert export.rows() == {"k0": 1, "k1": 2}


def test_a_resync_that_is_cut_off_makes_the_object_whole_when_a_later_run_has_sent_the_rest(export: Export) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    export.cut_off()
    assert export.manifest["whole_from"] is None
    began = export.manifest["fence"]
    export.push_one(max("k0", "k1", key=bucket))
    assert export.manifest["whole_from"] is None, "all rows but one may be missing"
    assert export.desk.push({"k0": 1, "k1": 3, "k2": 4}).counts.delivered.total == 1
    assert export.manifest["whole_from"] == began
    assert export.rows() == {"k0": 1, "k1": 3, "k2": 4}


def test_a_resync_that_is_cut_off_and_then_given_up_makes_nothing_whole(export: Export) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    export.cut_off()
    export.desk.ask("adopt")
    export.desk.push({"k0": 9, "k1": 9})
    assert export.manifest["whole_from"] is None


def test_a_resync_whose_parts_leave_before_its_end_makes_nothing_whole(export: Export) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    export.cut_off()
    export.age()
    export.push_one(max("k0", "k1", key=bucket))
    export.desk.push()
    assert export.manifest["whole_from"] is None


@pytest.mark.guarantee("Files")
def test_a_resync_that_leaves_a_row_out_makes_nothing_whole_until_a_run_leaves_none_out(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    export.refuse(monkeypatch, "k1")
    assert export.desk.push().counts.delivered.total == 1
    began = export.manifest["fence"]
    assert export.manifest["whole_from"] is None
    monkeypatch.undo()
    assert export.desk.push({"k0": 2, "k1": 3}).status == Status.PARTIAL, "k1 waits"
    assert export.manifest["whole_from"] is None
    export.desk.clock.sleep(3600)
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.manifest["whole_from"] == began
    assert export.rows() == {"k0": 2, "k1": 3}


def test_a_resync_with_a_batch_that_the_storage_did_not_take_makes_nothing_whole(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    export.desk.policy = replace(export.desk.policy, waves=WaveSize(rows=1, most=1))
    usual, last = FilesRun._write, max("k0", "k1", key=bucket)

    def write(run: FilesRun, piece: Any) -> None:
        if last.encode() in piece[1]:
            raise OSError(errno.EIO, "away")
        usual(run, piece)

    with monkeypatch.context() as broken:
        broken.setattr(FilesRun, "_write", write)
        assert export.desk.push().status == Status.PARTIAL
    began = export.manifest["fence"]
    assert export.manifest["whole_from"] is None
    export.desk.clock.sleep(3600)
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.manifest["whole_from"] == began


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("keep_days", [None, 7])
def test_a_resync_replaces_all_parts_of_an_object_that_is_owned(keep_days: int | None, tmp_path: Path) -> None:
    export = Export(tmp_path, keep_days)
    export.desk.full_loads = export.desk.owns_object = True
    export.desk.push({"k0": 1, "k2": 1})
    old = export.path.read_bytes()
    for value in (2, 3):
        export.desk.push({"k0": value, "k1": value})
    export.path.write_bytes(old)
    for part in json.loads(old)["parts"]:  # as after `keep_days`
        (export.path.parent / part["name"]).unlink(missing_ok=True)
    export.desk.ask("resync")
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.rows() == {"k0": 3, "k1": 3}
    assert len(export.manifest["superseded"]) == (1 if keep_days else 0)


def test_a_resync_that_leaves_a_row_out_replaces_no_part_of_an_object_that_is_owned(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.desk.owns_object = True
    export.desk.push({"k0": 1, "k1": 2})
    export.desk.ask("resync")
    export.refuse(monkeypatch, "k1")
    export.desk.push({"k0": 3, "k1": 4})
    assert export.rows() == {"k0": 3, "k1": 2}


@pytest.mark.parametrize("owner", [False, True])
def test_a_row_that_waits_alone_in_its_wave_keeps_the_part_with_its_last_version(
    owner: bool, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.desk.owns_object = owner
    export.desk.push({"k0": 1, "k1": 2})
    export.desk.policy = replace(export.desk.policy, waves=WaveSize(rows=1, most=1))
    with monkeypatch.context() as refusing:
        export.refuse(refusing, "k1")
        export.desk.push({"k0": 1, "k1": 3})
    export.desk.ask("resync")
    result = export.desk.push({"k0": 2, "k1": 3})
    assert (result.status, result.counts.skipped.total) == (Status.PARTIAL, 1)
    began = export.manifest["fence"]
    assert export.manifest["whole_from"] == 1, "of the first push"
    assert export.rows() == {"k0": 2, "k1": 2}
    export.desk.clock.sleep(3600)
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.rows() == {"k0": 2, "k1": 3}
    assert export.manifest["whole_from"] == began


def test_a_resync_is_whole_although_a_batch_had_to_be_repeated(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    export.lose_old_parts()
    export.desk.ask("resync")
    usual, failures = FilesRun._write, [OSError(errno.EIO, "away")]

    def write(run: FilesRun, pieces: Any) -> None:
        if failures:
            raise failures.pop()
        usual(run, pieces)

    monkeypatch.setattr(FilesRun, "_write", write)
    assert export.desk.push().status == Status.SUCCEEDED
    assert not failures
    assert export.manifest["whole_from"] == export.manifest["fence"]


def test_a_resync_is_whole_although_a_row_that_was_refused_before_is_sent_after_the_others(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.lose_old_parts()
    with monkeypatch.context() as refusing:
        export.refuse(refusing, "k1")
        export.desk.push({"k0": 1, "k1": 4})
    export.desk.ask("resync")
    export.desk.clock.sleep(3600)
    assert export.desk.push().status == Status.SUCCEEDED
    assert export.manifest["whole_from"] == export.manifest["fence"]


def test_a_refused_row_that_is_given_back_its_former_value_stays_listed(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.desk.owns_object = True
    export.desk.push({"k0": 1, "k1": 2})
    export.desk.ask("resync")
    export.refuse(monkeypatch, "k1")
    export.desk.push({"k0": 3, "k1": 4})
    monkeypatch.undo()
    export.desk.push({"k0": 3, "k1": 2})
    export.desk.clock.sleep(3600)
    export.desk.push()
    assert export.rows() == {"k0": 3, "k1": 2}


def test_parts_from_before_an_image_that_an_earlier_build_called_whole_stay_until_they_are_old(export: Export) -> None:
    """It did so although rows were left out of the image."""
    export.desk.owns_object = True
    export.desk.push({"k0": 1, "k1": 2})
    export.path.write_text(json.dumps({**export.manifest, "whole_from": 2}))
    export.desk.push({"k0": 3, "k1": 2})
    assert export.rows() == {"k0": 3, "k1": 2}
    export.age()
    export.desk.push({"k0": 4, "k1": 2})
    assert export.rows() == {"k0": 4}


def test_one_row_sent_after_forget_makes_nothing_whole_and_the_push_of_the_rest_does(export: Export) -> None:
    export.lose_old_parts()
    export.desk.ask("forget")
    export.push_one("k0")
    assert export.manifest["whole_from"] is None
    began = export.manifest["fence"]
    export.desk.push()
    assert export.manifest["whole_from"] == began
    assert export.rows() == {"k0": 1, "k1": 3}


@pytest.mark.guarantee("Files")
def test_the_image_of_a_sync_that_owns_its_object_stays_until_another_one_replaces_it(export: Export) -> None:
    export.desk.full_loads = export.desk.owns_object = True
    image = {f"k{number}": number for number in range(5)}
    export.desk.push(image)
    export.age()
    export.desk.full_loads = False  # as where few rows changed
    export.desk.push({**image, "k0": 50})
    assert export.rows() == {**image, "k0": 50}
    export.age()
    export.desk.ask("resync")
    export.desk.push()
    export.age()
    assert {part["fence"] for part in export.manifest["parts"]} == {export.manifest["whole_from"]}
    export.desk.push({**image, "k0": 60})
    assert export.rows() == {**image, "k0": 60}
