"""`make bench`: our work against the physical limit, the usual way and other tools, side by side in one run, as ratios.

Candidates take turns, and the fastest of several rounds counts: other jobs on the machine only ever slow one down.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.capture import capture, push, session
from tests.benchmarks.crash import crash
from tests.benchmarks.delta import delta
from tests.benchmarks.encoding import encoding
from tests.benchmarks.from_spark import from_spark
from tests.benchmarks.growth import growth
from tests.benchmarks.history import history
from tests.benchmarks.http import http
from tests.benchmarks.kafka import kafka
from tests.benchmarks.mysql import mysql
from tests.benchmarks.postgres import postgres
from tests.benchmarks.profile import profile
from tests.benchmarks.reconcile import reconcile
from tests.benchmarks.sqlite import sqlite
from tests.benchmarks.strategies import strategies
from tests.benchmarks.wide import wide

IN_SPARK: dict[str, Callable[[SparkSession, Path, int, int], object]] = {
    "capture": capture,
    "strategies": strategies,
    "history": lambda spark, home, rows, rounds: history(spark, home, rows // 6, rounds),
    "wide": wide,
    "delta": lambda spark, home, rows, rounds: delta(spark, home, rows // 3, rounds),
    "push": lambda spark, home, *_: push(spark, home),
    "reconcile": lambda spark, home, rows, _: reconcile(spark, home, rows // 3),
    "from spark": lambda spark, home, rows, rounds: from_spark(spark, home, rows // 3, rounds),
}
ALONE: dict[str, Callable[[Path, int, int], None]] = {
    "encoding": lambda _, rows, rounds: encoding(rows // 30, rounds),
    "sqlite": lambda home, _, rounds: sqlite(home, rounds),
    "postgres": lambda home, rows, rounds: postgres(home, rows // 3, rounds),
    "mysql": lambda home, rows, rounds: mysql(home, rows // 15, rounds),
    "http": lambda home, _, rounds: http(home, rounds),
    "kafka": lambda home, rows, rounds: kafka(home, rows // 6, rounds),
    "crash": lambda home, rows, _: crash(home, rows // 2),
}
PARTS = [*IN_SPARK, *ALONE]


def main() -> None:
    """Run all parts and print one line for each claim."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--profile", action="store_true", help="only show where the time of a warm run goes")
    parser.add_argument("--growth", action="store_true", help="only measure how cost grows, and write docs/growth.md")
    options = parser.parse_args()
    if options.growth:
        sys.exit(0 if growth() else "A line through the smaller sizes missed the largest by more than a fifth")
    with tempfile.TemporaryDirectory() as home:
        if options.profile:
            profile(session(Path(home)), Path(home))
        else:
            measure(Path(home), options.part or PARTS, options.rows, options.rounds)


def measure(home: Path, parts: Sequence[str], rows: int, rounds: int) -> None:
    """These parts, in their order; those of Spark share a session."""
    if IN_SPARK.keys() & {*parts}:
        with session(home) as spark:
            for part in [part for part in IN_SPARK if part in parts]:
                IN_SPARK[part](spark, home, rows, rounds)
    for part in [part for part in ALONE if part in parts]:
        ALONE[part](home, rows, rounds)


if __name__ == "__main__":
    main()
