"""What `dbt-reverse-etl reconcile` reads of the files sink, and the examples of its documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.files import reading
from dbt_reverse_etl.sinks.files.settings import FilesOptions
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing import PEOPLE, Change, Row, batch_of, next_run, opened, person
from tests.support import ROOT
from tests.support.sinks.files import changed, full, inserted, loaded, manifest, sink_at, task_of

FORMS: list[Any] = ["jsonl", "csv", "parquet"]
DOCS = ROOT / "docs" / "files.md"


def read(home: Path, task: SinkTask) -> list[Row]:
    return [row for table in sink_at(home).read(task) for row in table.to_pylist()]


def delivered(home: Path, task: SinkTask, *batches: Sequence[Change], form: Any = "jsonl") -> None:
    with opened(sink_at(home, format=form), task) as sink:
        for number, changes in enumerate(batches):
            assert sink.deliver(batch_of(task, changes, f"c{task.fence}-{number}")).results == ()
        sink.finish()


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("form", FORMS)
def test_the_newest_change_of_each_key_is_read_however_few_changes_are_folded_at_once(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_FOLD_AT_ONCE", 3)
    monkeypatch.setattr(reading, "READ_AT_ONCE", 2)
    task = task_of()
    batches: list[list[Change]] = [
        [("insert", person(number, "old")) for number in range(6)],
        [("delete", {"id": 1}), ("update", person(2, "new", None)), ("delete", {"id": 9})],
        [("insert", person(1, "back")), ("delete", {"id": 5}), ("update", person(2, "newest"))],
        [("insert", person(7, "late"))],
    ]
    delivered(tmp_path, task, *batches, form=form)
    tables = list(sink_at(tmp_path).read(task))
    rows = sorted((row["id"], row["name"]) for table in tables for row in table.to_pylist())
    assert rows == [(0, "old"), (1, "back"), (2, "newest"), (3, "old"), (4, "old"), (7, "late")]
    assert len(tables) > 1


@pytest.mark.parametrize("form", FORMS)
def test_keys_of_several_fields_and_of_every_kind_are_told_apart(form: Any, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.list_(pa.int64())), ("c", pa.decimal128(9, 2)), ("n", pa.int64())])
    task = task_of(schema=schema, key=("a", "b", "c"))
    rows: list[Row] = [{"a": a, "b": b, "c": 1, "n": 1} for a in ("x", "y", "'x", "=x") for b in ([], [1], [1, 2])]
    delivered(tmp_path, task, [("insert", row) for row in rows], [("update", {**rows[4], "n": 2})], form=form)
    found = read(tmp_path, task)
    assert [(row["a"], row["b"]) for row in found] == [(row["a"], row["b"]) for row in rows if row != rows[4]] + [
        ("y", [1])
    ]
    assert [(row["a"], row["b"]) for row in found if row["n"] == 2] == [("y", [1])]


@pytest.mark.parametrize("form", FORMS)
def test_a_field_that_older_parts_do_not_have_is_null_there_and_another_type_is_marked(
    form: Any, tmp_path: Path
) -> None:
    old = task_of(schema=pa.schema([("id", pa.int64()), ("score", pa.string())]))
    delivered(tmp_path, old, [("insert", {"id": 1, "score": "1.5"}), ("insert", {"id": 2, "score": "much"})], form=form)
    rows = sorted(read(tmp_path, replace(old, schema=PEOPLE)), key=lambda row: row["id"])
    assert [(row["id"], row["name"]) for row in rows] == [(1, None), (2, None)]
    assert rows[1][UNREADABLE]
    assert (rows[0]["score"], rows[0][UNREADABLE]) == (1.5, False) or form == "parquet"


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize(("kind", "value"), [(pa.string(), "much!more"), (pa.int64(), 5)], ids=str)
def test_of_parts_from_before_a_column_was_binary_the_rows_are_marked(
    kind: pa.DataType, value: Any, form: Any, tmp_path: Path
) -> None:
    old = task_of(schema=pa.schema([("id", pa.int64()), ("score", kind)]))
    delivered(tmp_path, old, [("insert", {"id": 1, "score": value}), ("insert", {"id": 2, "score": None})], form=form)
    rows = read(tmp_path, replace(old, schema=pa.schema([("id", pa.int64()), ("score", pa.binary())])))
    assert [(row["id"], row["score"], row[UNREADABLE]) for row in rows] == [(1, None, True), (2, None, False)]


def test_what_is_not_listed_is_not_read(tmp_path: Path) -> None:
    task = task_of()
    changed(tmp_path, 1, 1)
    crashed = sink_at(tmp_path)
    crashed.open(next_run(task))
    crashed.deliver(inserted(task, 2, claim="c2", last=False))
    assert [row["id"] for row in read(tmp_path, task)] == [1]


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_listed_part_that_is_gone_or_changed_is_an_error_and_no_difference(harm: str, tmp_path: Path) -> None:
    changed(tmp_path, 1, 1, 2)
    part = tmp_path / "people" / manifest(tmp_path)["parts"][0]["name"]
    part.unlink() if harm == "gone" else part.write_bytes(part.read_bytes().replace(b"Ada", b"Eve"))
    with pytest.raises(DestinationError, match="no file" if harm == "gone" else "another content") as caught:
        read(tmp_path, task_of())
    assert "Eve" not in str(caught.value)


def test_an_object_that_is_not_there_or_of_another_sync_or_damaged_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match=r"no manifest\.json of this sync"):
        read(tmp_path, task_of())
    changed(tmp_path, 1, 1)
    with pytest.raises(DestinationError, match=r"no manifest\.json of this sync"):
        read(tmp_path, task_of(sync_id="b"))
    (tmp_path / "people" / "manifest.json").write_text("{")
    with pytest.raises(DestinationError, match="damaged"):
        read(tmp_path, task_of())


def aged(home: Path) -> None:
    """Every part was written long ago."""
    path = home / "people" / "manifest.json"
    path.write_text(re.sub(r'("written": ?")\d{4}', r"\g<1>2001", path.read_text()))


@pytest.mark.guarantee("Files")
def test_once_parts_have_left_by_age_it_cannot_be_read_until_every_row_is_sent_again(tmp_path: Path) -> None:
    changed(tmp_path, 1, 1)
    aged(tmp_path)
    changed(tmp_path, 2, 2, keep_days=7)
    with pytest.raises(DestinationError, match="in no listed part"):
        read(tmp_path, task_of())
    aged(tmp_path)
    again = task_of(fence=3, first=False, sends_all=True)  # as after resync
    with opened(sink_at(tmp_path, keep_days=7), again) as sink:
        sink.deliver(inserted(again, 1, 2, claim="c3"))
        sink.finish(complete=True)
    assert [row["id"] for row in read(tmp_path, task_of())] == [1, 2]
    aged(tmp_path)
    changed(tmp_path, 4, 3, keep_days=7)
    with pytest.raises(DestinationError, match="in no listed part"):
        read(tmp_path, task_of())
    loaded(sink_at(tmp_path, keep_days=7), full(5), 4, 5)
    assert [row["id"] for row in read(tmp_path, task_of())] == [4, 5]


def example(title: str) -> str:
    """The Python code below a heading of the documentation."""
    found = re.search(rf"^##+ {title}\n.*?```python\n(.*?)```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("partitioned", [False, True])
def test_the_documented_consumer_gets_the_rows(
    partitioned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([*PEOPLE, ("country", pa.string()), ("account", pa.int64())])
    options = FilesOptions(partition_by=("country",) if partitioned else ())
    task = task_of(object="customers", schema=schema, options=options)
    rows = [{**person(number, f"name {number}"), "country": "DE", "account": 2**53 + 1} for number in range(4)]
    moved = {**rows[2], "country": "FR"}
    exports = tmp_path / "exports"
    delivered(exports, task, [("insert", row) for row in rows], form="parquet")
    wider = replace(next_run(task), schema=schema.append(pa.field("city", pa.string())))
    named = {**moved, "city": "Lyon"}
    delivered(exports, wider, [("delete", {"id": 1}), ("update", named)], form="parquet")
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {}
    exec(example("Example"), said)
    got = said["rows"].sort_values("id")[wider.schema.names]
    records = got.astype(object).where(got.notna(), None).to_dict("records")
    assert records == [{**rows[0], "city": None}, named, {**rows[3], "city": None}]
