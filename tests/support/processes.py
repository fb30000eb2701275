"""Processes that begin as forks of a server which has imported what they need; all of a test process share it."""

from __future__ import annotations

import multiprocessing

SINKS = [
    f"dbt_reverse_etl.sinks.{name}"
    for name in (
        "http.sink",
        "http.transport",
        "sql.dialects.mysql.sink",
        "sql.dialects.postgres.sink",
        "sql.dialects.sqlite",
    )
]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.delivery.victim", *SINKS, "tests.support.serve.process"])
