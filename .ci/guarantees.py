"""`make docs`: docs/guarantees.md, from the tests that are marked `@pytest.mark.guarantee(section)`: the name of a test is its sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
CONTRACT = [f"python/dbt_reverse_etl/testing/{name}.py" for name in ("contract", "transactions")]
# In the order of the page, with what each is about.
SECTIONS = {
    "Capture": "each change of a model is captured once, and nothing else",
    "What is sent": "exactly the net changes, through the current filter and mapping",
    "Crashes and claims": "after any crash, the next run makes the destination equal",
    "Leases and rivals": "of two runs one wins; one that slept undoes nothing",
    "Refusals and outages": "a refused row holds back no other; an outage rejects none",
    "Guards": "too many deletes or changes, or a failed test, stop a push before its first request",
    "Every destination": "the contract that each type of destination passes",
    "SQL databases": "rows and their record are one transaction, protected by a fence: Postgres, MySQL, MariaDB, SQLite, DuckDB",
    "Postgres": "nobody else's functions run with our rights; nothing of the environment is read",
    "MySQL and MariaDB": "upserts touch no row of another key; no default of the server matters",
    "SQLite": "every value without loss; locks, disks and triggers",
    "Files": "each part is listed once, whole",
    "Kafka": "no message is lost, in order by key",
    "HTTP": "a row is delivered only if the answer confirms it",
    "Singer": "a batch counts once its own STATE came back",
    "Values in JSON": "every value reads back as it was",
    "Secrets and row values": "neither is in a log, an artifact, the ledger or a message",
    "Configuration": "mistakes are reported all at once, before anything is captured",
    "dbt and its commands": "plain dbt commands push, and never hide a failure",
    "dbt Cloud": "each finished run is pushed once, on its webhook or when asked",
    "Report and alerts": "people get one message of a failure, and one of its end",
    "What people look at": "lines, bars and logs are true",
    "Packaging": "what is installed is what was tested",
}


def page() -> str:
    """The whole page."""
    found = proofs()
    unknown = {*found} - {*SECTIONS}
    if unknown:
        raise ValueError(f"found sections {', '.join(sorted(unknown))}; expected some of {', '.join(SECTIONS)}")
    return "\n".join([*summary(found), *details(found)]) + "\n"


def summary(found: dict[str, list[Proof]]) -> Iterator[str]:
    """The first screen."""
    yield "# Guarantees\n"
    yield "What is promised, and the tests that prove it: a test's name is what it proves. `make test` runs them, and those marked *at night* run with `make test-full`. `make docs` writes this page.\n"
    yield "| about | tests | in short |"
    yield "|---|---|---|"
    for section, short in SECTIONS.items():
        yield f"| [{section}](#{anchor(section)}) | {len(found.get(section, []))} | {short} |"


def details(found: dict[str, list[Proof]]) -> Iterator[str]:
    """Each section with its tests."""
    for section in SECTIONS:
        yield f"\n## {section}"
        for file, proved in groupby(found.get(section, []), key=lambda proof: proof.file):
            yield f"\n[{file}](../{file}):\n"
            yield from (f"- {proof.sentence}{' *(at night)*' if proof.at_night else ''}" for proof in proved)


class Proof(NamedTuple):
    """What a test proves."""

    file: str
    sentence: str
    at_night: bool


def proofs() -> dict[str, list[Proof]]:
    """By section; within one in the order of files and lines."""
    found: dict[str, list[Proof]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for section, sentence, at_night in marked(file):
            found.setdefault(section, []).append(Proof(str(file.relative_to(ROOT)), sentence, at_night))
    found.setdefault("Every destination", [])[:0] = [
        Proof(file, spoken(node.name), at_night=False)
        for file in CONTRACT
        for node in functions(ROOT / file)
        if node.name.startswith("test_")
    ]
    return found


def marked(file: Path) -> Iterator[tuple[str, str, bool]]:
    """Section and sentence of each test of a file that proves a guarantee, and whether it only runs at night."""
    all_at_night = (
        file.is_relative_to(ROOT / "tests" / "full") or "\npytestmark = pytest.mark.full\n" in file.read_text()
    )
    for node in functions(file):
        marks = {ast.unparse(mark) for mark in node.decorator_list}
        at_night = all_at_night or "pytest.mark.full" in marks
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee":
                section, *said = (ast.literal_eval(argument) for argument in mark.args)
                yield section, said[0] if said else spoken(node.name), at_night


def functions(file: Path) -> list[ast.FunctionDef]:
    """All of a file and of its classes, in the order of their lines."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    nodes = [one for node in body for one in (node.body if isinstance(node, ast.ClassDef) else [node])]
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def spoken(name: str) -> str:
    """test_a_crash_loses_nothing -> A crash loses nothing"""
    words = name.removeprefix("test_").replace("_", " ")
    return words[:1].upper() + words[1:]


def anchor(section: str) -> str:
    """As GitHub makes it of a heading."""
    return section.lower().replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
