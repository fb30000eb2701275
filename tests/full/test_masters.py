"""Pushes from the executors where Spark repeats a lost task by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

FILE = "tests/spark/delivery/test_executors.py"


@pytest.mark.guarantee("What is sent")
def test_executors_keep_their_promises_where_spark_repeats_a_lost_task() -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "killed_worker", FILE],
        cwd=ROOT,
        env={**ours, "TEST_SPARK_MASTER": "local[2,4]", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:]
