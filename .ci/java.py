"""Prints the home of a Java that Spark 4 runs on: one that is there, or one that is installed into .tools/."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WANTED = ("17", "21")
TOOLS = Path(__file__).parents[1] / ".tools"
HINT = "install Java 17 or 21 (e.g. apt install openjdk-17-jre-headless, brew install openjdk@17) and set JAVA_HOME"


def main() -> int:
    found = next((home for home in map(home_of, candidates()) if home), None) or installed()
    if found is None:
        print(f"The download failed: {HINT}", file=sys.stderr)
        return 1
    print(found)
    return 0


def candidates() -> Iterator[Path]:
    """Commands `java` that may be there, the user's choice first."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    # The second form is that of macOS.
    yield from TOOLS.glob("*/bin/java")
    yield from TOOLS.glob("*/Contents/Home/bin/java")


def home_of(java: Path) -> str | None:
    """The home of a Java of a wanted version; None for any other."""
    try:
        command = [str(java), "-XshowSettings:properties", "-version"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr  # noqa: S603
    except OSError:
        return None
    version = re.search(r"java\.specification\.version = (\S+)", told)
    home = re.search(r"java\.home = (.+)", told)
    return home[1].strip() if version and home and version[1] in WANTED else None


def installed() -> str | None:
    """Download one; None where that is not possible."""
    import jdk

    print("There is no Java 17 or 21: downloading one into .tools/", file=sys.stderr)
    try:
        TOOLS.mkdir(exist_ok=True)
        jdk.install(WANTED[0], jre=True, path=str(TOOLS))
    except Exception:  # no network, no build for this machine, a damaged archive
        return None
    return next((home for home in map(home_of, candidates()) if home), None)


if __name__ == "__main__":
    sys.exit(main())
