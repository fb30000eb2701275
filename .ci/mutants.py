"""Plants each fault of tests/mutants.yml in a copy of the project and runs the tests that must notice it.

python .ci/mutants.py              every mutant
python .ci/mutants.py ledger       those whose name or file holds this text
python .ci/mutants.py --third      every third one, others each day: an hour has no room for all
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
COPIES = ROOT / ".mutants"
AT_ONCE = int(os.environ.get("JOBS", "2"))
SECONDS = 600  # a test that hangs has noticed, too
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider"]
AS_MAKE_TEST = {"EFFORT": "0.15", "SHRINK": "0"}
THIRD = "--third"
FAILED = 1  # pytest's exit code where tests ran and one failed


@dataclass(frozen=True)
class Mutant:
    """One small fault: `old` stands once in `file`."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def main(words: list[str]) -> int:
    """Exit code: 0, or 1 where a mutant survived or could not be planted."""
    wanted = chosen(words, mutants())
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(AT_ONCE):
        copies.put(copied(COPIES / str(number)))

    def tried(mutant: Mutant) -> str:
        copy, began = copies.get(), time.monotonic()
        try:
            verdict = planted(mutant, copy)
        finally:
            copies.put(copy)
        print(f"{verdict or 'killed':8} {time.monotonic() - began:4.0f} s  {mutant.name}", flush=True)
        return verdict

    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(tried, wanted))
    shutil.rmtree(COPIES)
    wrong = [f"{mutant.name}: {verdict}" for mutant, verdict in zip(wanted, verdicts, strict=True) if verdict]
    print("\n".join(wrong) if wrong else f"All {len(wanted)} mutants were killed")
    return int(bool(wrong) or not wanted)


def chosen(words: list[str], known: list[Mutant]) -> list[Mutant]:
    """Those of today, those that are named, or all."""
    if words == [THIRD]:
        part = date.today().toordinal() % 3
        print(f"The mutants of today, part {part + 1} of 3; `make mutants` plants all")
        return known[part::3]
    return [one for one in known if not words or any(word in f"{one.name} {one.file}" for word in words)]


def mutants() -> list[Mutant]:
    """The list, in its order."""
    return [Mutant(**one) for one in yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text(encoding="utf-8"))]


def copied(copy: Path) -> Path:
    """The files of this checkout, as they stand."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607
    for name in filter(None, listed.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def planted(mutant: Mutant, copy: Path) -> str:
    """Empty where its tests fail with it; else what is wrong."""
    file = copy / mutant.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return f"`old` stands {text.count(mutant.old)} times in {mutant.file}"
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code = run(mutant.tests.split(), copy)
    finally:
        file.write_text(text, encoding="utf-8")
    return "" if code == FAILED else "survived" if code == 0 else f"pytest ended with {code}"


def run(tests: list[str], copy: Path) -> int:
    """Exit code of the tests in the copy."""
    # As `make test` runs them; a test that is named is meant, also one that only `make test-full` runs.
    if not all("::" in test for test in tests):
        tests = ["-m", "not full", *tests]
    env = {**os.environ, **AS_MAKE_TEST, "PYTHONPATH": str(copy / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([*PYTEST, *tests], cwd=copy, env=env, capture_output=True, timeout=SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return FAILED
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
