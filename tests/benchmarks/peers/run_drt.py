"""Runs in the environment of drt: its `run_sync` over a source that has its rows ready, so that only drt's own work counts."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drt.config.models import SyncConfig
from drt.config.profiles import PostgresProfile
from drt.destinations.postgres import PostgresDestination
from drt.destinations.rest_api import RestApiDestination
from drt.engine.sync import run_sync
from drt.sources.base import SnapshotDiffResult

DESTINATIONS = {"postgres": PostgresDestination, "rest_api": RestApiDestination}


class Ready:
    """A `Source`, and a `SnapshotDiffSource` that needs no warehouse."""

    def __init__(self, rows: list[dict[str, Any]], removed: list[dict[str, Any]]) -> None:
        self._rows, self._removed = rows, removed

    def extract(self, query: str, config: Any, *, query_tags: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def test_connection(self, config: Any) -> bool:
        return True

    def extract_snapshot_diff(self, query: str, config: Any, **how: Any) -> SnapshotDiffResult:
        return SnapshotDiffResult(iter(()), iter(self._rows), iter(self._removed), is_first_run=False)

    def commit_snapshot_diff(self, config: Any, sync_name: str) -> None:
        pass


def main() -> None:
    work = json.load(sys.stdin)
    rows, removed = pickle.loads(Path(work["rows"]).read_bytes())
    sync = SyncConfig.model_validate(
        {"name": "bench", "model": "select 1", "destination": work["destination"], "sync": work["sync"]}
    )
    destination = DESTINATIONS[work["destination"]["type"]]()
    began = time.perf_counter()
    result = run_sync(sync, Ready(rows, removed), destination, PostgresProfile("postgres"), Path(work["home"]))
    seconds = time.perf_counter() - began
    assert (result.success, result.failed, result.skipped) == (len(rows), 0, 0), result.errors[:3]
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
