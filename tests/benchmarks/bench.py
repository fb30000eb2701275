"""`make bench`: our work against the physical limit, the usual way and other tools, side by side in one run, as ratios.

Candidates take turns, and the fastest of several rounds counts: other jobs on the machine only ever slow one down.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

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
from tests.benchmarks.strategies import against_dbt_snapshot, strategies
from tests.benchmarks.wide import wide

PARTS = [
    "capture",
    "strategies",
    "history",
    "wide",
    "delta",
    "push",
    "reconcile",
    "from spark",
    "encoding",
    "sqlite",
    "postgres",
    "mysql",
    "http",
    "kafka",
    "crash",
]


IN_SPARK = {"capture", "strategies", "history", "wide", "delta", "push", "reconcile", "from spark"}


def in_spark(home: Path, parts: Sequence[str], rows: int, rounds: int) -> None:
    """The parts that share a session of Spark."""
    spark = session(home)
    if "capture" in parts:
        capture(spark, home, rows, rounds)
    if "strategies" in parts:
        strategies(spark, home, rows, rounds)
        against_dbt_snapshot(spark, home, rows, rounds)
    if "history" in parts:
        history(spark, home, rows // 6, rounds)
    if "wide" in parts:
        wide(spark, home, rows, rounds)
    if "delta" in parts:
        delta(spark, home, rows // 3, rounds)
    if "push" in parts:
        push(spark, home)
    if "reconcile" in parts:
        reconcile(spark, home, rows // 3)
    if "from spark" in parts:
        from_spark(spark, home, rows // 3, rounds)
    spark.stop()


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
    """These parts, in their order."""
    if IN_SPARK & {*parts}:
        in_spark(home, parts, rows, rounds)
    if "encoding" in parts:
        encoding(rows // 30, rounds)
    if "sqlite" in parts:
        sqlite(home, rounds)
    if "postgres" in parts:
        postgres(home, rows // 3, rounds)
    if "mysql" in parts:
        mysql(home, rows // 15, rounds)
    if "http" in parts:
        http(home, rounds)
    if "kafka" in parts:
        kafka(home, rows // 6, rounds)
    if "crash" in parts:
        crash(home, rows // 2)


if __name__ == "__main__":
    main()
