"""Tasks, rows and sinks for the tests of the files sink, and what a consumer reads."""

from __future__ import annotations

import signal
import textwrap
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.files.settings import FilesOptions, FilesSettings
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import PEOPLE, Row, batch_of, opened, person
from tests.support.servers import forks
from tests.support.sinks import files_consumer
from tests.support.sinks.files_consumer import in_folder


def listed(directory: Path) -> list[Row]:
    """What a consumer reads."""
    return files_consumer.listed(in_folder(directory))


def sink_at(path: Path, **more: Any) -> FilesSink:
    return FilesSink(FilesSettings(path=str(path), **more))


def task_of(**changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "a1", "sync": "people", "fence": 1, "object": "people", "mode": Mode.MIRROR}
    return SinkTask(**{**values, "key": ("id",), "schema": PEOPLE, "options": FilesOptions(), **changes})


def manifest(path: Path) -> dict[str, Any]:
    return orjson.loads((path / "people" / "manifest.json").read_bytes())  # type: ignore[no-any-return]


def inserted(task: SinkTask, *numbers: int, claim: str = "c1", last: bool = True, left_out: int = 0) -> Any:
    return batch_of(task, [("insert", person(number)) for number in numbers], claim, last=last, left_out=left_out)


def full(fence: int) -> SinkTask:
    return replace(task_of(), fence=fence, first=fence == 1, full_load=True)


def loaded(sink: FilesSink, task: SinkTask, *numbers: int) -> None:
    """A run that is one full load, a part for each row."""
    with opened(sink, task):
        load(sink, task, *numbers, claim=f"w{task.fence}")
        sink.finish(f"w{task.fence}")


def load(sink: FilesSink, task: SinkTask, *numbers: int, claim: str) -> None:
    for number in numbers:
        assert sink.deliver(inserted(task, number, claim=claim, last=False)).results == ()
    sink.swap(claim)


def changed(path: Path, fence: int, *numbers: int, **settings: Any) -> None:
    task = replace(task_of(), fence=fence, first=fence == 1)
    with opened(sink_at(path, **settings), task) as sink:
        assert sink.deliver(inserted(task, *numbers, claim=f"c{fence}")).results == ()
        sink.finish()


def killed(program: str) -> list[str]:
    """What a program said before it killed itself."""
    code, said = forks.python(textwrap.dedent(program))
    assert code == -signal.SIGKILL, said
    return said.split()


VISITS = pa.schema([("id", pa.int64()), ("country", pa.string()), ("day", pa.date32()), ("new", pa.bool_())])

BY_ALL = ("country", "day", "new")

# Everything that is special in a path, to Hive, or to a reader of percent signs.
TEXTS = [
    *(f"{chr(one)}x" for one in range(128)),
    "DE",
    "..",
    "a/../b",
    "%41",
    "a=b",
    " a ",
    "é",
    "日本",
    "😀",
    "x\u2028y",
    "01",
    "true",
]


def visits(*fields: str, **changes: Any) -> SinkTask:
    return task_of(schema=VISITS, options=FilesOptions(partition_by=fields), **changes)


def visit(
    number: int, country: str | None = "DE", day: date | None = date(2024, 1, 31), new: bool | None = True
) -> Row:
    return {"id": number, "country": country, "day": day, "new": new}


def ids(folder: Path) -> list[int]:
    return [row["id"] for row in listed(folder / "people")]
