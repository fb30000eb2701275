"""A process that delivers a batch to a DuckDB file, begins another one, and is killed at a step of it. Imports little."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.sinks.base import Batch, Mode, SinkTask
from dbt_reverse_etl.sinks.sql.sqlalchemy.settings import SqlalchemySettings
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink

SCHEMA = pa.schema([("id", pa.int64())])
TASK = SinkTask("5c", "people", 1, "people", Mode.MIRROR, ("id",), SCHEMA)


def batch(number: int, claim: str) -> Batch:
    return Batch(pa.table({"_operation": ["insert"], "_event_id": ["e"], "id": [number]}), claim)


def main(file: str, step: str) -> None:
    sink: Any = SqlalchemySink(SqlalchemySettings.model_validate({"url": f"duckdb:///{file}", "create_object": True}))
    sink.open(TASK)
    sink.deliver(batch(1, "first"))
    commit = sink._commit

    def killed(*given: Any) -> None:
        if step == "after":
            commit(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    sink._commit = killed
    sink.deliver(batch(2, "second"))


if __name__ == "__main__":
    main(*sys.argv[1:])
