"""What a report page of `serve` is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.serve.reports import Reports

NOBODY: Any = None


def manifest(folder: Path, **metadata: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"metadata": metadata}))
    return folder


@pytest.mark.guarantee("dbt Cloud")
def test_a_report_is_made_from_the_newest_run_also_if_an_older_one_is_pushed_after_it(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "reports", NOBODY, NOBODY, NOBODY)
    kept = tmp_path / "reports" / "prod" / "manifest.json"
    days = [manifest(tmp_path / str(day), generated_at=f"2026-03-{day:02}T09:00:00.5Z") for day in (1, 2, 3)]
    reports.keep(days[0], "prod")
    reports.keep(days[2], "prod")
    reports.keep(days[1], "prod")
    assert kept.read_bytes() == (days[2] / "manifest.json").read_bytes()
    again = manifest(tmp_path / "again", generated_at="2026-03-03T09:00:00.5Z", project_name="shop")
    reports.keep(again, "prod")
    assert kept.read_bytes() == (again / "manifest.json").read_bytes()
    reports.keep(days[0], "dev")
    assert (tmp_path / "reports" / "dev" / "manifest.json").is_file()
