"""Jars of Maven Central for the tests, fetched once by the Ivy that PySpark brings."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pyspark

HOME = Path.home() / ".ivy2.5.2" / "tests"


def java() -> str:
    """The command of the Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert found, "There is no Java: set JAVA_HOME"
    return found


def jars(organisation: str, module: str, version: str, *more: str) -> list[str]:
    """Paths of a module's jars, those of its dependencies included; `more` are options of Ivy."""
    HOME.mkdir(parents=True, exist_ok=True)
    kept = HOME / f"{module}-{version}.classpath"
    with (HOME / "lock").open("w") as lock:  # Ivy's cache serves one process at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _paths(kept):
            (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
            wanted = ["-dependency", organisation, module, version, *more]
            place = ["-cache", str(HOME / "cache"), "-m2compatible", "-confs", "default", "-cachepath", str(kept)]
            done = subprocess.run(
                [java(), "-jar", str(ivy), *place, *wanted], capture_output=True, text=True, check=False
            )
            assert _paths(kept), f"{module} {version} could not be fetched:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return _paths(kept)


def _paths(kept: Path) -> list[str]:
    """What an earlier run has fetched; nothing, where some of it is gone."""
    paths = kept.read_text().strip().split(":") if kept.exists() else []
    return paths if all(Path(path).is_file() for path in paths) else []
