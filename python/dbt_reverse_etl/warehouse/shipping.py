"""Brings this package to executors whose Python does not have it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import zipfile
from functools import cache
from pathlib import Path

from pyspark import SparkContext

_LOCK = threading.Lock()
_NOT_FOR_EXECUTORS = {"__pycache__", "dbt_package", "vendor"}
_told: set[str | None] = set()  # applications


def reach_executors(context: SparkContext) -> None:
    """On one machine executors use the Python of the driver; elsewhere they get this package, of the version that the driver has."""
    if str(context.master).startswith("local"):
        # Spark would take the first `python3` of PATH, which need not be that of our packages.
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
        return
    with _LOCK:  # several syncs are pushed at once
        if context.applicationId not in _told:
            context.addPyFile(str(archive()))
            _told.add(context.applicationId)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Lives as long as this process: executors that start later fetch the file from it."""
    return tempfile.TemporaryDirectory(prefix="dbt-reverse-etl-")


@cache
def archive() -> Path:
    """This package as a zip file, without what only the driver and dbt use."""
    package = Path(__file__).parents[1]
    made = Path(_folder().name) / "dbt_reverse_etl.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package)
            if path.is_file() and not _NOT_FOR_EXECUTORS & {*inside.parts}:
                file.write(path, package.name / inside)
    return made
