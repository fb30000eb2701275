"""Runs in the environment of dlt: a pipeline that merges Arrow tables by key, deletes included."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import dlt
import pyarrow as pa


def main() -> None:
    work = json.load(sys.stdin)
    before, after = (_read(Path(work[name])) for name in ("before", "after"))
    pipeline = dlt.pipeline(
        "bench", pipelines_dir=work["home"], destination=dlt.destinations.postgres(work["url"]), dataset_name="crm"
    )

    def load(rows: pa.Table) -> None:
        people: Any = dlt.resource(
            rows,
            name="people",
            primary_key="id",
            write_disposition={"disposition": "merge", "strategy": "upsert"},
            columns={"deleted": {"hard_delete": True}, **({"id": {"unique": True}} if work["unique"] else {})},
        )
        pipeline.run(people, loader_file_format=work["format"])

    load(before)
    with pipeline.sql_client() as client:
        client.execute_sql("ANALYZE people")
        client.execute_sql("CHECKPOINT")
    began = time.perf_counter()
    load(after)
    print(json.dumps({"seconds": time.perf_counter() - began}))


def _read(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


if __name__ == "__main__":
    main()
