"""Tasks, rows and targets for the tests of the Singer sink."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.singer.settings import SingerOptions, SingerSettings
from dbt_reverse_etl.sinks.singer.sink import SingerSink
from dbt_reverse_etl.testing import PEOPLE, person

HOSTILE = str(Path(__file__).with_name("singer_hostile.py"))


def task_of(**changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "a1", "sync": "people", "fence": 1, "object": "people", "mode": Mode.MIRROR}
    return SinkTask(**{**values, "key": ("id",), "schema": PEOPLE, "options": MIRROR, **changes})


def hostile(what: str, tmp_path: Path, **more: Any) -> SingerSink:
    settings = {"command": [sys.executable, "-I", "-S", HOSTILE, what], "config": {"out": str(tmp_path / "out")}}
    return SingerSink(SingerSettings.model_validate(settings | more))


def inserts(count: int) -> list[Any]:
    return [("insert", person(number)) for number in range(count)]


MIRROR = SingerOptions(deletes="sdc_deleted_at")
