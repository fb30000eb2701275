"""Partitioned parts of the files sink, found again by the folders' names with a reader that is not ours."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.files import partitions
from dbt_reverse_etl.sinks.files.partitions import LONGEST_FOLDER, LONGEST_NAME
from dbt_reverse_etl.sinks.files.settings import FilesOptions
from dbt_reverse_etl.testing import Change, Row, batch_of, next_run, opened, outcomes
from tests.support.effort import scaled
from tests.support.sinks.files import BY_ALL, TEXTS, VISITS, manifest, sink_at, task_of, visit, visits
from tests.support.sinks.files_consumer import state


def found(home: Path, *fields: str, form: str = "parquet") -> list[Row]:
    """The listed changes as Arrow finds them: the partition's fields from the folders alone."""
    folder = home / "people"
    schema = pa.schema([VISITS.field(name) for name in fields])
    data = ds.dataset(
        [str(folder / part["name"]) for part in manifest(home)["parts"]],
        format=form,
        partitioning=ds.partitioning(schema, flavor="hive"),
        partition_base_dir=str(folder),
    )
    rows: list[Row] = data.to_table().to_pylist()
    return rows


def read(home: Path, task: SinkTask, **form: Any) -> list[Row]:
    rows = [row for table in sink_at(home, **form).read(task) for row in table.to_pylist()]
    return [{name: row[name] for name in task.schema.names} for row in rows]


def by_id(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_any_value_that_a_folder_can_name_is_found_again_by_its_name(form: Any, tmp_path: Path) -> None:
    rows = [visit(number, text, None if number % 7 == 0 else date(2024, 1, 1 + number % 3), number % 2 == 0)
            for number, text in enumerate([*TEXTS, None])]  # fmt: skip
    task = visits(*BY_ALL)
    with opened(sink_at(tmp_path, format=form), task) as sink:
        assert sink.deliver(batch_of(task, [("insert", row) for row in rows])).results == ()
        sink.finish()
    assert by_id(read(tmp_path, task, format=form)) == rows
    seen = found(tmp_path, *BY_ALL, form="json" if form == "jsonl" else form)
    assert by_id([{name: row[name] for name in VISITS.names} for row in seen]) == rows


def test_the_folders_are_those_of_hive(tmp_path: Path) -> None:
    task = visits("country", "day")
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1)), ("insert", visit(2, "a/b: é", None))]))
    folders = [part["name"].rpartition("/")[0] for part in manifest(tmp_path)["parts"]]
    assert folders == ["country=DE/day=2024-01-31", "country=a%2Fb%3A é/day=__HIVE_DEFAULT_PARTITION__"]
    assert [part["partition"] for part in manifest(tmp_path)["parts"]] == [
        {"country": "DE", "day": "2024-01-31"},
        {"country": "a/b: é", "day": None},
    ]
    (part,) = (tmp_path / "people" / "country=DE").rglob("*.jsonl")
    assert set(json.loads(part.read_bytes())) == {"_operation", "_event_id", "id", "new"}


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize(
    "text",
    ["", "__HIVE_DEFAULT_PARTITION__", "x" * (LONGEST_NAME - len("country=") + 1), "é" * 124, "/" * 83],
    ids=["empty", "the word for NULL", "too long", "too many bytes", "too long when escaped"],
)
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_value_that_no_folder_can_name_refuses_its_row_alone(form: Any, text: str, tmp_path: Path) -> None:
    task = visits("country")
    with opened(sink_at(tmp_path, format=form), task) as sink:
        delivery = sink.deliver(batch_of(task, [("insert", visit(1, text)), ("insert", visit(2))]))
        assert outcomes(delivery, 2) == [Outcome.REJECTED, Outcome.DELIVERED]
        assert delivery.results[0].reason.startswith("field country: ")
        assert text not in delivery.results[0].reason or not text
    assert [row["id"] for row in read(tmp_path, task)] == [2]


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("days", [2_932_897, -719_163, 2**31 - 1, -(2**31)], ids=["10000", "0", "last", "first"])
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_date_of_a_year_that_no_reader_takes_refuses_its_row_alone(form: Any, days: int, tmp_path: Path) -> None:
    task = visits("day")
    batch = batch_of(task, [("insert", visit(1)), ("insert", visit(2))])
    far = pa.array([days, 0], pa.int32()).cast(pa.date32())
    rows = batch.rows.set_column(batch.rows.schema.get_field_index("day"), "day", far)
    with opened(sink_at(tmp_path, format=form), task) as sink:
        delivery = sink.deliver(replace(batch, rows=rows))
    assert [(one.index, one.reason) for one in delivery.results] == [(0, "field day: a year outside 1 to 9999")]
    assert [part["partition"] for part in manifest(tmp_path)["parts"]] == [{"day": "1970-01-01"}]
    assert [row["id"] for row in read(tmp_path, task, format=form)] == [2]


def test_the_longest_name_that_is_taken_can_be_written(tmp_path: Path) -> None:
    task = visits("country")
    longest = "x" * (LONGEST_NAME - len("country="))
    with opened(sink_at(tmp_path), task) as sink:
        assert sink.deliver(batch_of(task, [("insert", visit(1, longest))])).results == ()
    assert read(tmp_path, task) == [visit(1, longest)]


def test_a_path_that_is_too_long_for_object_storage_refuses_its_row(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in "abc")])
    task = task_of(schema=schema, options=FilesOptions(partition_by=("a", "b", "c")))
    texts = dict.fromkeys("abc", "x" * (LONGEST_FOLDER // 3))
    with opened(sink_at(tmp_path), task) as sink:
        delivery = sink.deliver(batch_of(task, [("insert", {"id": 1, **texts})]))
    assert outcomes(delivery, 1) == [Outcome.REJECTED]


def test_text_that_is_not_utf8_refuses_its_row_alone(tmp_path: Path) -> None:
    task = visits("country")
    batch = batch_of(task, [("insert", visit(1)), ("insert", visit(2))])
    bad = pa.array([b"\xff", b"DE"], pa.binary()).view(pa.string())
    with opened(sink_at(tmp_path, format="parquet"), task) as sink:
        delivery = sink.deliver(replace(batch, rows=batch.rows.set_column(3, "country", bad)))
    assert outcomes(delivery, 2) == [Outcome.REJECTED, Outcome.DELIVERED]


def test_a_batch_that_would_make_too_many_folders_stops_the_sync_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MOST_FOLDERS", 3)
    task = visits("country")
    with opened(sink_at(tmp_path), task) as sink:
        rows: list[Change] = [("insert", visit(number, str(number))) for number in range(4)]
        assert sink.deliver(batch_of(task, rows[:3])).results == ()
        delivery = sink.deliver(batch_of(task, rows, "c2"))
    assert outcomes(delivery, 4) == [Outcome.FATAL] * 4
    assert "folders" in delivery.results[0].reason
    assert len(manifest(tmp_path)["parts"]) == 3


def test_fields_that_cannot_name_folders_are_refused_all_at_once(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("tags", pa.list_(pa.string()))])
    task = task_of(schema=schema, options=FilesOptions(partition_by=("score", "tags", "nowhere", "nowhere")))
    with pytest.raises(ConfigurationError) as caught:
        sink_at(tmp_path).validate(task)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigurationError, match="every field"):
        sink_at(tmp_path).validate(visits("id", *BY_ALL))


def test_a_row_that_moves_is_its_newest_change_over_all_folders_and_a_repeat_adds_nothing(tmp_path: Path) -> None:
    task = visits("country")
    with opened(sink_at(tmp_path, format="parquet"), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1)), ("insert", visit(2)), ("insert", visit(3, "FR"))], "c1"))
        for _ in range(2):
            moved: list[Change] = [("update", visit(1, "FR")), ("update", visit(3, None)), ("delete", {"id": 2})]
            assert sink.deliver(batch_of(task, moved, "c2")).results == ()
        sink.finish()
    assert by_id(read(tmp_path, task)) == [visit(1, "FR"), visit(3, None)]
    changes = found(tmp_path, "country")
    assert len(changes) == 6
    assert by_id(state(changes, ["id"])) == [visit(1, "FR"), visit(3, None)]
    assert [row["id"] for row in changes if row["country"] == "DE"] == [1, 2], "one folder alone is not up to date"


@pytest.mark.guarantee("Files")
def test_with_the_field_in_the_key_each_folder_is_right_by_itself(tmp_path: Path) -> None:
    task = visits("country", key=("id", "country"))
    with opened(sink_at(tmp_path, format="parquet"), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1)), ("insert", visit(2))], "c1"))
        moved: list[Change] = [("insert", visit(1, "FR")), ("delete", {"id": 1, "country": "DE"})]
        sink.deliver(batch_of(task, moved, "c2"))
    changes = found(tmp_path, "country")
    for country, numbers in (("DE", [2]), ("FR", [1])):
        alone = state([row for row in changes if row["country"] == country], ["id", "country"])
        assert [row["id"] for row in alone] == numbers


@pytest.mark.guarantee("Files")
def test_after_a_full_load_each_folder_is_right_by_itself(tmp_path: Path) -> None:
    task = visits("country")
    with opened(sink_at(tmp_path, format="parquet"), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1))]))
        sink.finish()
    full = replace(next_run(task), full_load=True)
    with opened(sink_at(tmp_path, format="parquet"), full) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1, "FR"))], "whole", last=False))
        sink.swap("whole")
        sink.finish()
    assert [(row["id"], row["country"]) for row in found(tmp_path, "country")] == [(1, "FR")]


def test_orphans_in_folders_of_partitions_are_swept_and_files_of_other_objects_are_not(tmp_path: Path) -> None:
    task, folder = visits("country"), tmp_path / "people"
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1))]))
    with opened(sink_at(tmp_path), visits("country", object="people/old", sync_id="b")) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1))]))
    name = "0000000001-c1-0123456789ab.jsonl"
    orphans = [folder / "country=FR" / name, folder / "country=DE" / ".tmp-1-x"]
    other = folder / "old"
    kept = [folder / "country=DE" / "mine.txt", other / name, other / ".tmp-1-x", other / "country=DE" / name]
    for path in (*orphans, *kept):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    with opened(sink_at(tmp_path), next_run(task)):
        assert [path for path in (*orphans, *kept) if path.exists()] == kept
    assert [row["id"] for row in read(tmp_path, task)] == [1]


@pytest.mark.guarantee("Files")
def test_a_file_system_that_knows_a_folder_by_another_spelling_loses_no_part(tmp_path: Path) -> None:
    task, folder = visits("country"), tmp_path / "people"
    with opened(sink_at(tmp_path), task) as sink:
        sink.deliver(batch_of(task, [("insert", visit(1))]))
        sink.finish()
    (folder / "country=DE").rename(folder / "country=de")
    with suppress(FileExistsError):  # where both names are one
        (folder / "country=DE").symlink_to("country=de")
    orphan = folder / "country=de" / "0000000001-c1-0123456789ab.jsonl"
    orphan.write_text("x")
    with opened(sink_at(tmp_path), next_run(task)):
        assert not orphan.exists()
    assert [row["id"] for row in read(tmp_path, task)] == [1]


def test_parts_of_another_partitioning_stay_readable(tmp_path: Path) -> None:
    for fence, fields in enumerate([(), ("country",), ("day", "country"), ("new",)], 1):
        task = visits(*fields, fence=fence, first=fence == 1)
        with opened(sink_at(tmp_path), task) as sink:
            sink.deliver(batch_of(task, [("insert", visit(fence)), ("update", visit(0, str(fence)))], f"c{fence}"))
            sink.finish()
    assert by_id(read(tmp_path, task)) == [visit(0, "4"), *(visit(number) for number in range(1, 5))]


COUNTRIES = st.one_of(st.none(), st.sampled_from(["DE", "FR", "a/b", "é"]))
STATES = st.lists(st.dictionaries(st.integers(0, 5), st.one_of(st.just("gone"), COUNTRIES), max_size=6), max_size=6)


@pytest.mark.guarantee("Files")
@settings(max_examples=scaled(25), deadline=None)
@given(STATES, st.sampled_from(["parquet", "csv", "jsonl"]))
def test_after_any_moves_and_deletes_the_fold_over_all_folders_is_the_last_state(
    history: list[dict[int, str | None]], form: Any
) -> None:
    with tempfile.TemporaryDirectory() as home:
        task, wanted = visits("country", "day"), dict[int, Row]()
        with opened(sink_at(Path(home), format=form), task) as sink:
            for number, step in enumerate(history):
                changes: list[Change] = []
                for key, country in step.items():
                    row = visit(key, country, date(2024, 1, 1 + number % 2))
                    changes.append(("delete", {"id": key}) if country == "gone" else ("update", row))
                    wanted.pop(key, None)
                    wanted |= {} if country == "gone" else {key: row}
                assert sink.deliver(batch_of(task, changes, f"c{number}")).results == ()
            sink.finish()
        assert by_id(read(Path(home), task, format=form)) == by_id(list(wanted.values()))
