"""How the cost of a warm `dbt run` grows with rows, syncs, snapshots and executors; writes docs/growth.md and its chart.

python -m tests.benchmarks.bench --growth

Of each axis but the executors, a line through all sizes but the largest must tell the seconds of the largest within a fifth.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

from tests.benchmarks.capture import COLUMNS, changed_where, session
from tests.benchmarks.history import changelog_of, row_at
from tests.benchmarks.meter import SETTINGS, metered
from tests.support import ROOT
from tests.support.dbt.project import Project
from tests.support.servers.postgres import new_database
from tests.support.servers.spark import standalone_cluster

SIZES: Mapping[str, Sequence[int]] = {
    "rows": (1_000_000, 3_000_000, 10_000_000, 30_000_000),
    "syncs": (1, 10, 100),
    "snapshots": (10, 100, 1_000),
    "executors": (1, 2),
}
WHAT = {
    "rows": "One changelog of ten columns, 1 % of whose rows changed, and one SQLite sync of a tenth of its rows, in which all the changed ones are.",
    "syncs": "One changelog of 1 000 rows, 4 of them changed, and so many SQLite syncs.",
    "snapshots": "One changelog of 100 000 rows and so many snapshots, with 1 % of changes each, and one SQLite sync.",
    "executors": "One changelog of 3 000 000 rows, 10 % of them changed, and one Postgres sync, sent from the executors of a standalone cluster: one with two cores, or two with one.",
}
AGAIN = 3  # runs with changes; the first warms up, and the fastest of the others counts
MANY_ROWS, MANY_SYNCS = 10**9, 100
SENT = 300_000  # rows, on the axis of executors
CLUSTER = "a driver and 8 workers of AWS m7i.2xlarge (8 cores, 32 GB, 12.5 Gbit/s each)"
HERE = 2  # cores of each measurement
WORKERS, CORES, NETWORK = 8, 8, 12.5e9 / 8  # bytes a second of one worker
OFF_BY = 0.2
Found = dict[str, dict[int, dict[str, float]]]


def growth(sizes: Mapping[str, Sequence[int]] = SIZES, folder: Path = ROOT / "docs") -> bool:
    """Measure each size in a process of its own and write the page. False where a line missed the largest size."""
    found: Found = {}
    spawn = multiprocessing.get_context("spawn")
    for axis, values in sizes.items():
        for size in values:
            with spawn.Pool(1) as pool:
                found.setdefault(axis, {})[size] = pool.apply(_measured, (axis, size))
            print(f"{axis:>9} {size:>10}  " + "  ".join(_cells(found[axis][size])), flush=True)
        (folder / "growth.md").write_text(_page(found), encoding="utf-8")  # a later axis may fail
    _chart(found).savefig(folder / "growth.svg", metadata={"Date": None})
    return all(abs(off) <= OFF_BY for off in (_missed(found[axis])[1] for axis in found if axis != "executors"))


def _measured(axis: str, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with _session(home, size if axis == "executors" else 0) as spark:
            project, change = PREPARED[axis](spark, home, size)
            found = []
            for number in range(AGAIN):
                change(number)
                with metered(spark, home / "warehouse") as cost:
                    result = project.run()
                assert result.success, result.text
                assert "behind" not in result.text, result.text
                found.append({**asdict(cost), "capture": result.seconds["things"], "push": result.push_seconds})
    return min(found[1:], key=lambda one: one["seconds"])


@contextmanager
def _session(home: Path, executors: int) -> Iterator[SparkSession]:
    """Two cores: in this process, or in executors of a cluster."""
    if not executors:
        with session(home, SETTINGS) as spark:
            yield spark
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the executors, too
    with standalone_cluster(home / "cluster") as cluster:
        placed = {
            "spark.master": cluster.url,
            "spark.driver.host": "127.0.0.1",
            "spark.cores.max": "2",
            "spark.executor.cores": str(2 // executors),
            "spark.executor.memory": "1500m",
        }
        with session(home, SETTINGS | placed) as spark:
            yield spark


Prepared = tuple[Project, Callable[[int], None]]


def _of_rows(spark: SparkSession, home: Path, rows: int) -> Prepared:
    project = _project(spark, home, rows)
    project.sync("crm_things", "things", mode="mirror", where="id % 10 = 3")
    assert project.run().success
    return project, lambda number: _change(project, f"id % 100 = {number * 10 + 3}")


def _of_syncs(spark: SparkSession, home: Path, syncs: int) -> Prepared:
    project = _project(spark, home, 1_000)
    for number in range(syncs):
        project.sync(f"crm_{number}", "things", mode="mirror", object=f"things_{number}")
    assert project.run().success
    return project, lambda number: _change(project, f"id % 250 = {number}")


def _of_snapshots(spark: SparkSession, home: Path, snapshots: int) -> Prepared:
    rows = 100_000
    project = changelog_of(spark, home, rows, snapshots)
    project.sync("crm_things", "things", mode="mirror")
    return project, lambda number: project.table(
        "source", f"select {row_at(snapshots + 1 + number)} from range({rows})"
    )


def _of_executors(spark: SparkSession, home: Path, executors: int) -> Prepared:
    project = _project(spark, home, 3_000_000)
    database = new_database()
    database.may_create()
    project.destinations = {"crm": {"type": "postgres", **database.settings(), "create_object": True}}
    project.sync("crm_things", "things", mode="mirror", where="id % 10 = 3")
    assert project.run().success
    return project, lambda number: _change(project, "id % 10 = 3")


PREPARED = {"rows": _of_rows, "syncs": _of_syncs, "snapshots": _of_snapshots, "executors": _of_executors}


def _project(spark: SparkSession, home: Path, rows: int) -> Project:
    project = Project(home / "growth", spark, "bench_growth", quiet=True)
    project.table("source", f"select {COLUMNS} from range({rows})")
    project.changelog("things", f"select * from {project.schema}.source")
    return project


def _change(project: Project, condition: str) -> None:
    project.table("source", changed_where(project, condition))


def _line(
    found: Mapping[int, Mapping[str, float]], part: str = "seconds", *, but_largest: bool = True
) -> tuple[float, float]:
    """Seconds of nothing, and of one more, which are none at least: least squares of the relative errors."""
    sizes = sorted(found)[:-1] if but_largest else sorted(found)
    seconds = np.array([found[size][part] for size in sizes])
    each, fixed = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    if each < 0:
        each, fixed = 0, np.average(seconds, weights=1 / seconds**2)
    return float(fixed), float(each)


def _missed(found: Mapping[int, Mapping[str, float]]) -> tuple[float, float]:
    """Seconds that the line tells for the largest size, and by what share they are off."""
    (fixed, each), largest = _line(found), max(found)
    told = fixed + each * largest
    return told, told / found[largest]["seconds"] - 1


def _cells(cost: Mapping[str, float]) -> list[str]:
    return [
        *(f"{cost[name]:.1f}" for name in ("seconds", "capture", "push")),
        _spaced(cost["shuffled"] / 1e6, 1),
        *(f"{cost[name]:.0f}" for name in ("files", "commits")),
        f"{cost['heap'] / 1e6:.0f}",
    ]


def _spaced(number: float, digits: int = 0) -> str:
    return f"{number:,.{digits}f}".replace(",", " ")


def _page(found: Found) -> str:
    text = [
        "# How cost grows\n",
        "`make bench ARGS=--growth` writes this page: a `dbt run` with changes in a process that has run before, the faster of two. The last two columns of seconds are parts of the first.\n",
        f"{_machine()}\n",
        "![Seconds of a run by rows, syncs and snapshots](growth.svg)\n",
    ]
    for axis, sizes in found.items():
        text.append(f"## {axis.capitalize()}\n\n{WHAT[axis]}\n")
        text.append(f"| {axis} | seconds | capture | push | MB shuffled | files read | commits | MB the driver keeps |")
        text.append("|" + "---|" * 8)
        text += [f"| {_spaced(size)} | " + " | ".join(_cells(cost)) + " |" for size, cost in sizes.items()]
        if axis != "executors":
            (fixed, each), (told, off) = _line(sizes), _missed(sizes)
            text.append(
                f"\nA line through all but the largest, {fixed:.1f} s + {each:.3g} s each, tells {told:.1f} s for the largest: {100 * off:+.0f} %.\n"
            )
        else:
            text.append("")
    if found.keys() == SIZES.keys():
        text.append(_far_beyond(found))
    return "\n".join(text).rstrip() + "\n"


def _far_beyond(found: Found) -> str:
    """The model at a billion rows; what it takes for granted is said in its text."""
    largest = max(found["rows"])
    fixed, each = _line(found["rows"], "capture", but_largest=False)
    bytes_of_row = found["rows"][largest]["shuffled"] / largest
    shuffled = MANY_ROWS * bytes_of_row
    compare = each * MANY_ROWS * HERE / (WORKERS * CORES)
    of_sync = _line(found["syncs"], "push", but_largest=False)[1]
    rate = SENT / min(one["push"] for one in found["executors"].values())
    parts = [
        (f"the compare of {_spaced(MANY_ROWS)} rows: {1e6 * each:.2f} µs each on {HERE} cores", compare, "more cores"),
        (
            f"its exchange, {shuffled / 1e9:.0f} GB ({bytes_of_row:.0f} bytes a row), over the network, while it compares",
            shuffled / (WORKERS * NETWORK),
            "more workers",
        ),
        ("statements and commits of a capture, whatever the rows", fixed, "fewer statements"),
        (
            f"{MANY_SYNCS} syncs: {of_sync:.2f} s each, four at once on the driver",
            MANY_SYNCS * of_sync,
            "one commit for the claims of several syncs: each plans its rows, writes two commits into one table, and looks twice who else wrote",
        ),
    ]
    first = max(parts, key=lambda part: part[1])
    text = [
        f"## {_spaced(MANY_ROWS)} rows and {MANY_SYNCS} syncs\n",
        f"On {CLUSTER}, by lines through all sizes of the capture and the push: rows are shared by all cores, what a sync costs is not; a core is as fast as here.\n",
        "| part | seconds |\n|---|---|",
        *(f"| {what} | {seconds:.0f} |" for what, seconds, _ in parts),
        f"\nTo these come the rows themselves: {_spaced(rate)} a second left {HERE} cores for a Postgres on the same cores, and no more arrive than the destination takes.",
        f"\n**The first bottleneck** is {first[0].partition(':')[0]}. What would remove it: {first[2]}.",
    ]
    return "\n".join(text)


def _machine() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    versions = ", ".join(
        f"{name} {version(package)}"
        for name, package in (("Spark", "pyspark"), ("Delta Lake", "delta-spark"), ("dbt", "dbt-core"))
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{date.today()}, commit {commit.stdout.strip()}: {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}, {versions}."


def _chart(found: Found) -> Figure:
    axes = [axis for axis in found if axis != "executors"]
    figure = Figure(figsize=(4 * len(axes), 3.4), layout="constrained")
    for axis, plot in zip(axes, np.atleast_1d(figure.subplots(1, len(axes))), strict=True):
        sizes = sorted(found[axis])
        fixed, each = _line(found[axis])
        plot.plot(
            sizes,
            [fixed + each * size for size in sizes],
            color="0.6",
            linestyle="--",
            label="line through all but the largest",
        )
        for part, colour in (("seconds", "C0"), ("capture", "C1"), ("push", "C2")):
            plot.plot(sizes, [found[axis][size][part] for size in sizes], color=colour, marker="o", label=part)
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.set_xlabel(axis)
        plot.set_ylabel("seconds")
    plot.legend(fontsize=8, frameon=False)
    return figure
