"""The files sink under whole runs of the engine: what the manifest lists after backups, age, resync and forget."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.delivery.ports import Status
from tests.support.delivery.desk import Desk
from tests.support.sinks.files import sink_at


class Export:
    """A desk whose sink writes files, and its manifest."""

    def __init__(self, home: Path) -> None:
        self.desk = Desk(cast("Any", lambda: sink_at(home, keep_days=7)))
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
        """As `reconcile` reads them."""
        tables = self.desk.sink.read(self.desk._job().task)
        return {row["key"]: row["value"] for table in tables for row in table.to_pylist()}


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
