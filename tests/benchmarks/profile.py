"""Where the time of a warm `dbt run` goes: every statement that dbt and the push give to Spark, in order, with its seconds.

python -m tests.benchmarks.bench --profile
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from tests.support.dbt.project import Project, Result

RUNS = 6  # the last one counts: the code of Spark and the plans are warm then
ACTIONS = ("collect", "toArrow", "count", "first", "head", "take", "toLocalIterator", "localCheckpoint", "toPandas")


@dataclass
class Timeline:
    """Calls of Spark, in order.

    Attributes:
        calls: (when it began, seconds, what was asked).
    """

    calls: list[tuple[float, float, str]] = field(default_factory=list)
    _inside: list[str] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes each call that makes Spark work; those inside another one belong to it."""
        patches = [patch.object(SparkSession, "sql", self._noted(SparkSession.sql))]
        patches += [patch.object(DataFrame, name, self._noted(getattr(DataFrame, name))) for name in ACTIONS]
        for one in patches:
            one.start()
        yield
        for one in patches:
            one.stop()

    def _noted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(this: Any, *args: Any, **more: Any) -> Any:
            if self._inside:
                return method(this, *args, **more)
            self._inside.append(method.__name__)
            began = time.perf_counter()
            try:
                made = method(this, *args, **more)
            finally:
                self._inside.pop()
            text = str(args[0]) if method.__name__ == "sql" else f"  {method.__name__}"
            self.calls.append((began, time.perf_counter() - began, text))
            return made

        return called


def short(text: str, width: int = 100) -> str:
    """A statement as one line: without dbt's comment, and with its beginning and its end."""
    line = " ".join(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).split()) if text.strip() else text
    line = line if not text.startswith("  ") else f"  {line}"
    return line if len(line) <= width else f"{line[: width - 33]} ... {line[-28:]}"


def warm_run(spark: SparkSession, home: Path, rows: int = 1_000, changed: int = 4) -> tuple[Result, Timeline, float]:
    """The last of several runs of a project with one changelog, a few of whose rows change, and one sync; its seconds."""
    project = Project(home / "profile", spark, "bench_profile", quiet=True)
    project.table("source", f"select id, concat('name', id) as name, id % 7 as plan from range({rows})")
    project.changelog("things", f"select * from {project.schema}.source")
    project.sync("crm_things", "things", mode="mirror")
    timeline, seconds, result = Timeline(), 0.0, None
    for number in range(RUNS):
        changes = f"if(id < {changed}, concat('name', id, '-', {number}), concat('name', id)) as name"
        project.table("source", f"select id, {changes}, id % 7 as plan from range({rows})")
        timeline, began = Timeline(), time.perf_counter()
        with timeline.watched():
            result = project.dbt("run")
        seconds = time.perf_counter() - began
        assert result.success, result.text
    assert result
    return result, timeline, seconds


def profile(spark: SparkSession, home: Path) -> None:
    """Print it."""
    result, timeline, seconds = warm_run(spark, home)
    begin, last = timeline.calls[0][0], timeline.calls[0][0]
    print(f"{'at':>6} {'idle':>6} {'took':>6}  statement")
    for began, took, text in timeline.calls:
        print(f"{began - begin:6.2f} {began - last:6.2f} {took:6.2f}  {short(text)}")
        last = began + took
    asked = sum(took for _, took, _ in timeline.calls)
    print(f"{seconds:.2f} s in all, {asked:.2f} s of them in {len(timeline.calls)} calls of Spark")
    for name, took in result.seconds.items():
        print(f"{took:6.2f} s  {name}")
    print(f"{result.push_seconds:6.2f} s  push")
