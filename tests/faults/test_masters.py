"""Pushes from the executors where Spark repeats a lost task by itself, and where executors are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/integration/test_executors.py"


# Under local[2,4] only a lost task is another thing than in the session of the other tests.
@pytest.mark.parametrize(
    ("master", "tests"), [("local[2,4]", "killed_worker"), ("local-cluster[2,1,1024]", "api or killed_worker")]
)
def test_executors_keep_their_promises_under_other_masters(master: str, tests: str) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", tests, FILE],
        cwd=ROOT,
        env={**ours, "TEST_SPARK_MASTER": master, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:]
